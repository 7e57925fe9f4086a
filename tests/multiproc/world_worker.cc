// A process that joins worlds by a Bulletin of files:
//   world_worker FOLDER RANK SIZE MODE    see the test
#include <poll.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <stormo/comm/communicator.h>
#include <stormo/comm/job/join_by_bulletin.h>
#include <stormo/launch/environment.h>
#include <stormo/launch/network.h>
#include <stormo/transport/store/store_keeper.h>

#include "file_bulletin.h"

namespace {

using stormo::Deadline;
using stormo::Result;
using stormo::Status;
using stormo::comm::Communicator;
using stormo::comm::WorldOptions;
using stormo::testing::FileBulletin;
namespace fs = std::filesystem;

constexpr auto kGenerous = std::chrono::seconds(30);
constexpr int kRounds = 100;

/// Kills this process after its n-th use.
class Deadly final : public stormo::comm::Bulletin {
 public:
  Deadly(fs::path folder, int uses) : files_(std::move(folder)), uses_(uses) {}
  Status set(const std::string& key, const std::string& value) override {
    return used(files_.set(key, value));
  }
  Result<std::string> get(const std::string& key, Deadline by) override {
    return used(files_.get(key, by));
  }

 private:
  template <class T>
  T used(T outcome) {
    if (--uses_ == 0) ::raise(SIGKILL);
    return outcome;
  }
  FileBulletin files_;
  int uses_;
};

struct Place {
  fs::path folder;
  int rank = 0;
  int size = 1;
};

Result<std::unique_ptr<Communicator>> enter(stormo::comm::Bulletin& bulletin, int rank, int size) {
  STORMO_ASSIGN_OR_RETURN(stormo::transport::JobSettings settings,
                          stormo::launch::read_settings(stormo::launch::process_environment()));
  WorldOptions options;
  static_cast<stormo::transport::JobSettings&>(options) = settings;
  options.rank = rank;
  options.size = size;
  options.find_interface = stormo::launch::only_interface;
  return stormo::comm::join(bulletin, options);
}

Result<std::unique_ptr<Communicator>> enter(const Place& p) {
  FileBulletin bulletin(p.folder);
  return enter(bulletin, p.rank, p.size);
}

/// By boards, through the Arena, and from private memory.
Status add_up(Communicator& world) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{100'000}}) {
    std::vector<double> own(count, world.rank() + 1.0);
    STORMO_RETURN_IF_ERROR(
        world.all_reduce(own, stormo::comm::ReduceOp::kSum, Deadline::after(kGenerous)));
    const double sum = world.size() * (world.size() + 1) / 2.0;
    auto* const shared = static_cast<double*>(world.arena().allocate(count * sizeof(double)));
    std::fill_n(shared, count, world.rank() + 1.0);
    const Status reduced = world.all_reduce(std::span(shared, count), stormo::comm::ReduceOp::kSum,
                                            Deadline::after(kGenerous));
    const bool right = own.back() == sum && shared[count - 1] == sum;
    world.arena().deallocate(shared);
    STORMO_RETURN_IF_ERROR(reduced);
    if (!right) return stormo::invalid_argument("wrong sum");
  }
  return {};
}

/// To the next rank, from the last.
Status send_around(Communicator& world) {
  std::int64_t x = world.rank();
  const int next = (world.rank() + 1) % world.size();
  const int last = (world.rank() + world.size() - 1) % world.size();
  if (world.size() == 1) return {};
  STORMO_RETURN_IF_ERROR(world.send(std::span(&x, 1), next, 7, Deadline::after(kGenerous)));
  std::int64_t y = -1;
  STORMO_RETURN_IF_ERROR(world.recv(std::span(&y, 1), last, 7, Deadline::after(kGenerous)));
  return y == last ? Status() : stormo::invalid_argument("wrong message");
}

Status form_one(const Place& p) {
  STORMO_ASSIGN_OR_RETURN(auto world, enter(p));
  STORMO_RETURN_IF_ERROR(add_up(*world));
  STORMO_RETURN_IF_ERROR(send_around(*world));
  std::string hosts;
  for (const int ranks : world->ranks_per_host()) hosts += " " + std::to_string(ranks);
  std::printf("hosts%s\n", hosts.c_str());
  return world->finalize(Deadline::after(kGenerous));
}

/// What a process has of what a world takes.
struct Holdings {
  long descriptors = 0;
  long threads = 0;
  long memory_files = 0;  ///< mapped
  long mebibytes = 0;     ///< of address space

  static Holdings now() {
    const auto entries = [](const char* folder) {
      return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
    };
    Holdings h{entries("/proc/self/fd"), entries("/proc/self/task"), 0, 0};
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      if (line.find("memfd:") != std::string::npos) ++h.memory_files;
    }
    std::ifstream("/proc/self/statm") >> h.mebibytes;
    h.mebibytes /= 256;
    return h;
  }
  /// When the others have left the jobs that this process serves.
  static Holdings without_servers() {
    stormo::transport::StoreKeeper::of_process().wait(Deadline::after(kGenerous));
    return now();
  }
  std::string text() const {
    return std::to_string(descriptors) + " descriptors, " + std::to_string(threads) + " threads, " +
           std::to_string(memory_files) + " memory files, " + std::to_string(mebibytes) + " MiB";
  }
  /// Stacks and heaps of threads that have ended are kept for the next. A thread that was about to
  /// end may have been counted before.
  bool as_much_as(const Holdings& o) const {
    return descriptors == o.descriptors && threads <= o.threads && memory_files == o.memory_files &&
           mebibytes < o.mebibytes + 256;
  }
};

/// Threads that have been told to end are in /proc for some time.
Status expect_the_same(const Holdings& before) {
  const Deadline by = Deadline::after(kGenerous);
  while (!Holdings::without_servers().as_much_as(before)) {
    if (by.expired()) {
      return stormo::invalid_argument(before.text() + " before, now " + Holdings::now().text());
    }
    ::poll(nullptr, 0, 10);
  }
  std::printf("same: %s\n", before.text().c_str());
  return {};
}

/// In such a round a rank goes away as soon as it has joined.
bool breaks_in(int round, int size) { return round % 3 == 2 && size > 1; }

/// Ends in order, or by leaving, or because one rank goes away while others work.
Status use_and_end(std::unique_ptr<Communicator> world, int round) {
  const bool breaks = breaks_in(round, world->size());
  if (breaks && world->rank() == round % world->size()) return {};
  const Status added = add_up(*world);
  if (breaks && added.ok()) return stormo::invalid_argument("nobody misses a rank that has gone");
  if (breaks) return {};
  STORMO_RETURN_IF_ERROR(added);
  if (round % 3 == 1) return world->leave();
  STORMO_RETURN_IF_ERROR(send_around(*world));
  return world->finalize(Deadline::after(kGenerous));
}

/// A world of its own for each round, with those that `members` says, this one among them or not.
Status form_many(const Place& p, const std::function<std::vector<int>(int)>& members) {
  Holdings before;
  for (int round = 0; round <= kRounds; ++round) {
    const std::vector<int> who = members(round);
    const auto me = std::ranges::find(who, p.rank);
    if (me != who.end()) {
      const auto size = static_cast<int>(who.size());
      auto world =
          enter({p.folder / std::to_string(round), static_cast<int>(me - who.begin()), size});
      const bool broke_early =
          world.status().code() == stormo::Code::kPeerLost && breaks_in(round, size);
      const Status used =
          world.ok() ? use_and_end(std::move(world).value(), round) : world.status();
      if (!broke_early) {
        STORMO_RETURN_IF_ERROR(used.within("round " + std::to_string(round)));
      }
    }
    if (round == 2) before = Holdings::without_servers();  // with the Arena, which stays
  }
  return expect_the_same(before);
}

/// Two worlds with the same processes in opposite order, each in a thread.
Status form_two(const Place& p) {
  Status outcomes[2];
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      const int rank = i == 0 ? p.rank : p.size - 1 - p.rank;
      for (int round = 0; round < 5 && outcomes[i].ok(); ++round) {
        const std::string name = std::to_string(i) + "." + std::to_string(round);
        outcomes[i] = [&]() -> Status {
          STORMO_ASSIGN_OR_RETURN(auto world, enter({p.folder / name, rank, p.size}));
          STORMO_RETURN_IF_ERROR(add_up(*world));
          return world->finalize(Deadline::after(kGenerous));
        }();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  return outcomes[0].ok() ? outcomes[1] : outcomes[0];
}

/// All ranks of a world as threads of this process.
Status form_alone(const Place& p) {
  std::vector<Status> outcomes(static_cast<std::size_t>(p.size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < p.size; ++rank) {
    threads.emplace_back([&, rank] {
      outcomes[static_cast<std::size_t>(rank)] = form_one({p.folder, rank, p.size});
    });
  }
  for (std::thread& t : threads) t.join();
  const auto bad = std::ranges::find_if(outcomes, [](const Status& s) { return !s.ok(); });
  return bad == outcomes.end() ? Status() : *bad;
}

Status run(const Place& p, const std::string& mode) {
  if (mode == "one") return form_one(p);
  if (mode == "two") return form_two(p);
  if (mode == "threads") return form_alone(p);
  if (mode.starts_with("dies:")) {
    Deadly bulletin(p.folder, std::stoi(mode.substr(5)));
    STORMO_ASSIGN_OR_RETURN(auto world, enter(bulletin, p.rank, p.size));
    ::raise(SIGKILL);
  }
  std::vector<int> all;
  for (int rank = 0; rank < p.size; ++rank) all.push_back(rank);
  if (mode == "many") return form_many(p, [&](int) { return all; });
  if (mode != "others") return stormo::invalid_argument("mode " + mode);
  return form_many(p, [&](int round) {
    std::vector<int> some = all;
    if (round > 0) some.erase(some.begin() + round % p.size);
    if (round % 5 == 4) std::ranges::reverse(some);
    return some;
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const Status outcome = run({argv[1], std::stoi(argv[2]), std::stoi(argv[3])}, argv[4]);
  if (!outcome.ok()) std::fprintf(stderr, "%s\n", outcome.to_string().c_str());
  return outcome.ok() ? 0 : 1;
}
