// Random operations on random groups against a serial oracle, for as long as you like:
//   soak_test [--seconds N | --minutes N] [--seed N]
// Ranks are threads that join as processes do: a Store, shared memory inside each "host", tcp
// between them. Ends at the first difference, failure, or growth of memory or descriptors; the seed
// says it all again.
#include <dirent.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include <stormo/comm/operation.h>
#include <stormo/schedule/builders.h>

#include "tests/soak/operation.h"

namespace stormo::soak {
namespace {

using namespace std::chrono_literals;
using comm::Communicator;
using comm::OperationKind;

std::chrono::seconds duration{3};
std::uint64_t seed = 1;

constexpr int kOperationsPerEra = 40;
constexpr std::size_t kMaxPending = 5;
#ifdef __SANITIZE_ADDRESS__
constexpr long kMaxGrowthKilobytes = 400 << 10;  // freed memory is kept for a while
#else
constexpr long kMaxGrowthKilobytes = 64 << 10;
#endif

const std::vector<std::vector<int>>& layouts() {
  static const std::vector<std::vector<int>> all = {
      {3}, {2, 2}, {1, 1},       {5}, {1, 2}, {8}, {1, 1, 1}, {4, 4},   {2, 1, 2},
      {2}, {3, 3}, {1, 1, 1, 1}, {4}, {6},    {7}, {2, 5},    {3, 2, 3}};
  return all;
}

struct World {
  std::vector<int> ranks_per_host;
  std::unique_ptr<transport::StoreServer> store;
  std::vector<std::unique_ptr<Communicator>> ranks;
};

/// Calls body(rank) for every rank, each in a thread.
template <class F>
void on_each_rank(int n, F body) {
  std::vector<std::thread> threads;
  for (Rank r = 0; r < n; ++r) threads.emplace_back([r, &body] { body(r); });
  for (std::thread& t : threads) t.join();
}

World make_world(const std::vector<int>& ranks_per_host) {
  World w;
  w.ranks_per_host = ranks_per_host;
  const auto secret = transport::Secret::random();
  transport::StoreServer::Options options;
  options.listen = "tcp:127.0.0.1";
  options.secret = secret;
  auto store = transport::StoreServer::start(options);
  EXPECT_TRUE(store.ok()) << store.status().to_string();
  w.store = std::move(*store);
  std::vector<transport::Rendezvous> places;
  for (std::size_t h = 0; h < ranks_per_host.size(); ++h) {
    for (int l = 0; l < ranks_per_host[h]; ++l) {
      transport::Rendezvous r;
      r.rank = static_cast<Rank>(places.size());
      r.local_rank = l;
      r.local_size = ranks_per_host[h];
      r.cross_rank = static_cast<int>(h);
      r.cross_size = static_cast<int>(ranks_per_host.size());
      r.host = "host" + std::to_string(h);
      r.store = w.store->address();
      r.secret = secret;
      r.interface = "lo";
      r.heartbeat_timeout = 0s;  // a paused machine is no failure
      places.push_back(r);
    }
  }
  w.ranks.resize(places.size());
  on_each_rank(static_cast<int>(places.size()), [&](Rank r) {
    const auto i = static_cast<std::size_t>(r);
    places[i].size = static_cast<int>(places.size());
    auto joined = comm::join(places[i]);
    EXPECT_TRUE(joined.ok()) << joined.status().to_string();
    if (joined.ok()) w.ranks[i] = std::move(*joined);
  });
  return w;
}

/// Memory for one operation, in the Arena or not, beginning anywhere.
class Elements {
 public:
  Elements(Communicator& c, DType dtype, const std::vector<double>& values, std::uint64_t random)
      : arena_(random % 2 == 0 ? &c.arena() : nullptr), dtype_(dtype), count_(values.size()) {
    const std::size_t skipped = random / 2 % 5 * size_of(dtype);
    const std::size_t bytes = values.size() * size_of(dtype) + skipped;
    if (arena_ == nullptr) private_.resize(bytes);
    base_ = arena_ ? static_cast<std::byte*>(arena_->allocate(bytes)) : private_.data();
    data_ = base_ + skipped;
    const auto encoded = encode(dtype, values);
    std::copy(encoded.begin(), encoded.end(), data_);
  }
  ~Elements() {
    if (arena_ != nullptr) arena_->deallocate(base_);
  }
  Elements(const Elements&) = delete;
  comm::Buffer buffer() const { return {data_, static_cast<std::int64_t>(count_), dtype_}; }
  std::vector<double> values() const { return decode(dtype_, data_, count_); }

 private:
  transport::Arena* arena_;
  DType dtype_;
  std::size_t count_;
  std::vector<std::byte> private_;
  std::byte* base_;
  std::byte* data_;
};

/// One operation of one rank from its call to the comparison.
class Call {
 public:
  Call(Communicator& c, const Operation& o, Rng& rng)
      : o_(o),
        me_(c.rank()),
        want_(output(o, me_)),
        in_(c, o.dtype, input(o, me_), rng.next_u64()),
        out_(c, o.dtype, std::vector<double>(comm::in_place(o.kind) ? 0 : want_.size(), 1),
             rng.next_u64()) {
    describe();
    if (o.asynchronous) {
      work_ = c.submit(request_);
    } else {
      work_ = comm::Work::completed(c.run(request_, Deadline::after(60s)));
    }
  }

  /// What is wrong; empty: nothing.
  std::string finish() {
    const Status outcome = work_.wait(Deadline::after(60s));
    if (!outcome.ok()) return outcome.to_string();
    const bool sender = o_.kind == OperationKind::kSend && me_ == o_.root;
    if (want_.empty() || sender) return "";
    const auto got = (comm::in_place(o_.kind) ? in_ : out_).values();
    return agree(o_, got, want_) ? "" : "the outcome differs from the oracle's";
  }

 private:
  void describe() {
    request_.kind = o_.kind;
    request_.reduction = o_.op;
    request_.root = o_.root;
    request_.weight = weight(o_, me_);
    request_.algorithm = o_.algorithm;
    request_.pieces = o_.pieces;
    if (o_.kind == OperationKind::kSend) {
      request_.tag = 9;
      request_.root = me_ == o_.root ? o_.peer : o_.root;
      if (me_ != o_.root) request_.kind = OperationKind::kReceive;
    }
    if (o_.kind == OperationKind::kBarrier) return;
    cut_buffers();
    request_.in = ins_;
    request_.out = comm::in_place(o_.kind) ? request_.in : std::span<const comm::Buffer>(outs_);
    if (o_.equal_parts || comm::in_place(o_.kind)) return;
    for (std::size_t r = 0; r < o_.lengths.size(); ++r) {
      const bool pairs = o_.kind == OperationKind::kAllToAll;
      const auto me = static_cast<std::size_t>(me_);
      counts_.push_back(pairs ? o_.lengths[me][r] : o_.lengths[r][0]);
      if (pairs) out_counts_.push_back(o_.lengths[r][me]);
    }
    request_.counts = counts_;
    request_.out_counts = out_counts_;
  }

  void cut_buffers() {
    outs_ = {out_.buffer()};
    comm::Buffer rest = in_.buffer();
    const std::int64_t each = rest.count / o_.num_buffers;
    for (int i = 1; i < o_.num_buffers; ++i) {
      comm::Buffer head = rest;
      head.count = each;
      ins_.push_back(head);
      rest.data = static_cast<std::byte*>(rest.data) + head.bytes();
      rest.count -= each;
    }
    ins_.push_back(rest);
  }

  const Operation o_;
  const Rank me_;
  const std::vector<double> want_;
  Elements in_;
  Elements out_;
  std::vector<comm::Buffer> ins_, outs_;
  std::vector<std::int64_t> counts_, out_counts_;
  comm::Request request_;
  comm::Work work_;
};

/// What groups keep for good grows with the largest operation of each kind: those come first, so
/// that what grows later is a leak.
void run_greatest(Communicator& world, std::int64_t max_count) {
  Rng own(seed, "soak greatest", static_cast<std::uint64_t>(world.rank()));
  for (const schedule::Builder& builder : schedule::builders()) {
    const auto o = greatest_operation(builder, world.ranks_per_host(), max_count);
    if (!o) continue;
    const std::string wrong = Call(world, *o, own).finish();
    if (wrong != "") world.fail({Code::kException, "the soak ends here"});
    ASSERT_EQ(wrong, "") << o->text() << "\nrank " << world.rank() << ", seed " << seed;
  }
}

void run_era(Communicator& world, std::uint64_t era, std::int64_t max_count) {
  Rng shared(seed, "soak era", era);  // equal on all ranks
  Rng own(seed, "soak rank", era * 64 + static_cast<std::uint64_t>(world.rank()));
  std::vector<Rank> members;
  for (Rank r = 0; r < world.size(); ++r) {
    if (shared.below(3) > 0) members.push_back(r);
  }
  if (members.empty()) members.push_back(0);
  auto made = world.subgroup(members, Deadline::after(60s));
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  const std::unique_ptr<Communicator> some = std::move(*made);
  std::vector<std::pair<std::string, std::unique_ptr<Call>>> pending;
  const auto finish_all = [&] {
    for (auto& [text, call] : pending) {
      const std::string wrong = call->finish();
      if (wrong != "") world.fail({Code::kException, "the soak ends here"});
      ASSERT_EQ(wrong, "") << text << "\nrank " << world.rank() << " of the world, era " << era
                           << ", seed " << seed;
    }
    pending.clear();
  };
  for (int i = 0; i < kOperationsPerEra; ++i) {
    const bool in_subgroup = shared.below(3) == 0;
    Rng of_operation(seed, "soak operation", era * 1000 + static_cast<std::uint64_t>(i));
    Communicator* const c = in_subgroup ? some.get() : &world;
    if (c == nullptr) continue;
    const Operation o = random_operation(of_operation, c->ranks_per_host(), max_count);
    const bool takes_part =
        o.kind != OperationKind::kSend || c->rank() == o.root || c->rank() == o.peer;
    if (!takes_part) continue;
    pending.emplace_back(o.text(), std::make_unique<Call>(*c, o, own));
    if (!o.asynchronous || pending.size() >= kMaxPending) finish_all();
    if (::testing::Test::HasFatalFailure()) return;
  }
  finish_all();
  const Status left = some != nullptr ? some->finalize(Deadline::after(60s)) : Status();
  EXPECT_TRUE(left.ok()) << left.to_string();
}

struct Footprint {
  long kilobytes = 0;        // but for Arenas, which keep what was once used at the same time
  long arena_kilobytes = 0;  // in use by the groups: their copies of private buffers
  int descriptors = 0;
};

Footprint footprint(const std::vector<World>& worlds) {
  ::malloc_trim(0);  // freed memory is no growth
  Footprint f;
  long touched = 0;
  for (const World& w : worlds) {
    for (const auto& rank : w.ranks) {
      const auto stats = rank->arena().stats();
      touched += static_cast<long>(stats.touched_bytes >> 10);
      f.arena_kilobytes += static_cast<long>(stats.in_use_bytes >> 10);
    }
  }
  std::ifstream in("/proc/self/smaps_rollup");
  for (std::string word; in >> word;) {
    if (word == "Pss:") {
      in >> f.kilobytes;  // proportional: what ranks map twice counts once
      f.kilobytes -= touched;
      break;
    }
  }
  DIR* const folder = ::opendir("/proc/self/fd");
  while (folder != nullptr && ::readdir(folder) != nullptr) ++f.descriptors;
  if (folder != nullptr) ::closedir(folder);
  return f;
}

std::string to_text(const Footprint& f) {
  return std::to_string(f.kilobytes >> 10) + " MiB without arenas, " +
         std::to_string(f.arena_kilobytes >> 10) + " MiB in use in arenas, " +
         std::to_string(f.descriptors) + " descriptors";
}

TEST(Soak, RandomOperationsAgreeWithTheSerialOracle) {
  std::printf("seed %llu, %lld s\n", static_cast<unsigned long long>(seed),
              static_cast<long long>(duration.count()));
  const bool is_long = duration >= 60s;
  const std::size_t num_worlds = is_long ? layouts().size() : 4;
  const std::int64_t max_count = is_long ? 262147 : 20011;
  std::vector<World> worlds;
  while (worlds.size() < num_worlds) {
    worlds.push_back(make_world(layouts()[worlds.size()]));
    ASSERT_FALSE(HasFailure());
    on_each_rank(static_cast<int>(worlds.back().ranks.size()), [&](Rank r) {
      run_greatest(*worlds.back().ranks[static_cast<std::size_t>(r)], max_count);
    });
    ASSERT_FALSE(HasFailure());
  }
  const auto start = std::chrono::steady_clock::now();
  Footprint warm;
  std::uint64_t era = 0;
  auto report_at = start;
  for (auto now = start; now - start < duration || warm.descriptors == 0;
       now = std::chrono::steady_clock::now()) {
    if (warm.descriptors == 0 && now - start > duration / 2) warm = footprint(worlds);
    Rng rng(seed, "soak world", era);
    World& w = worlds[rng.below(worlds.size())];
    const int n = static_cast<int>(w.ranks.size());
    on_each_rank(n,
                 [&](Rank r) { run_era(*w.ranks[static_cast<std::size_t>(r)], era, max_count); });
    ASSERT_FALSE(HasFailure());
    ++era;
    if (is_long && now >= report_at) {
      const Footprint f = footprint(worlds);
      std::printf("%4lld s: %llu operations on %zu worlds, %s\n",
                  static_cast<long long>((now - start) / 1s),
                  static_cast<unsigned long long>(era * kOperationsPerEra), worlds.size(),
                  to_text(f).c_str());
      std::fflush(stdout);
      report_at = now + 30s;
    }
  }
  const Footprint end = footprint(worlds);
  std::printf("%llu operations\nhalf-way: %s\nend:      %s\n",
              static_cast<unsigned long long>(era * kOperationsPerEra), to_text(warm).c_str(),
              to_text(end).c_str());
  EXPECT_LE(end.descriptors, warm.descriptors);
  EXPECT_LE(end.kilobytes, warm.kilobytes + kMaxGrowthKilobytes);
  EXPECT_LE(end.arena_kilobytes,
            warm.arena_kilobytes + warm.arena_kilobytes / 4 + kMaxGrowthKilobytes);
  for (World& w : worlds) {
    on_each_rank(static_cast<int>(w.ranks.size()), [&](Rank r) {
      const Status left = w.ranks[static_cast<std::size_t>(r)]->finalize(Deadline::after(60s));
      EXPECT_TRUE(left.ok()) << left.to_string();
    });
  }
}

}  // namespace
}  // namespace stormo::soak

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string word = argv[i];
    const std::uint64_t value = std::stoull(argv[i + 1]);
    if (word == "--seconds") stormo::soak::duration = std::chrono::seconds(value);
    if (word == "--minutes") stormo::soak::duration = std::chrono::minutes(value);
    if (word == "--seed") stormo::soak::seed = value;
  }
  return RUN_ALL_TESTS();
}
