// One round of bench/compare_checkpoint: saves and loads a state of so many bytes on ranks that are
// threads, beside the same bytes written and read plainly. Prints one line of JSON with seconds.
//   checkpoint_bench FOLDER MIB RANKS STEP_MS
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include <stormo/base/check.h>
#include <stormo/checkpoint/async.h>
#include <stormo/checkpoint/reader.h>
#include <stormo/checkpoint/writer.h>

namespace {

namespace fs = std::filesystem;
using namespace stormo;
using checkpoint::Piece;
using Values = std::vector<float>;
using Communicators = std::vector<std::unique_ptr<comm::Communicator>>;

constexpr std::size_t kBlock = 1u << 20;
constexpr std::int64_t kColumns = 1024;
constexpr int kSteps = 4;  // of training per asynchronous save

struct Setup {
  fs::path folder;
  std::int64_t rows = 0;  ///< of each of three tensors: a weight and two moments
  int ranks = 1;
  std::chrono::duration<double> step{};
  std::vector<Values> state;

  std::vector<Piece> pieces(int rank) const {
    std::vector<Piece> all;
    const std::vector<std::int64_t> shape = {rows, kColumns};
    for (std::size_t i = 0; i < state.size(); ++i) {
      all.push_back({"tensor" + std::to_string(i), "F32", shape, 0, rows * kColumns,
                     state[i].data(), nullptr});
    }
    return checkpoint::share_of(all, rank, ranks);
  }
};

double seconds_of(const std::function<void()>& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void on_ranks(int ranks, const std::function<void(int)>& f) {
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) threads.emplace_back(f, r);
  for (std::thread& t : threads) t.join();
}

void drop_from_cache(const fs::path& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const int fd = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
}

fs::path plain_file(const fs::path& folder, int rank) { return folder / std::to_string(rank); }

void write_plainly(const Setup& s, const fs::path& folder, int rank) {
  const fs::path path = plain_file(folder, rank);
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  for (const Piece& p : s.pieces(rank)) {
    for (std::size_t at = 0; at < bytes_of(p); at += kBlock) {
      const std::size_t n = std::min(kBlock, bytes_of(p) - at);
      STORMO_CHECK(::write(fd, static_cast<const char*>(p.data) + at, n) == static_cast<ssize_t>(n),
                   "plain write");
    }
  }
  STORMO_CHECK(::fsync(fd) == 0, "plain sync");
  ::close(fd);
}

void read_plainly(const fs::path& folder, int rank, std::vector<char>& into) {
  const fs::path path = plain_file(folder, rank);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  for (std::size_t at = 0; at < into.size(); at += kBlock) {
    const std::size_t n = std::min(kBlock, into.size() - at);
    STORMO_CHECK(::read(fd, into.data() + at, n) == static_cast<ssize_t>(n), "plain read");
  }
  ::close(fd);
}

void load(const Setup& s, const std::string& path, int rank, std::vector<char>& into) {
  auto reader = checkpoint::CheckpointReader::open(path).take_or_throw();
  char* next = into.data();
  for (const Piece& p : s.pieces(rank)) {
    throw_if_error(reader.read(p.name, p.begin, p.end, next));
    STORMO_CHECK(std::memcmp(next, p.data, std::min<std::size_t>(bytes_of(p), 64)) == 0, "loaded");
    next += bytes_of(p);
  }
}

/// Steps that compute for `step` and then update; what a save in the background added to them.
double stall_of(const Setup& s, comm::Communicator& world) {
  auto checkpoints =
      checkpoint::AsyncCheckpoint::create(world, s.folder / "async", 1).take_or_throw();
  double stall = 0;
  for (int i = 0; i < 2 * kSteps; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const bool counts = i >= kSteps;  // the first save allocates the memory of the copy
    if (i % kSteps == 0) {
      const double s1 = seconds_of([&] {
        throw_if_error(
            checkpoints->begin(checkpoint::Snapshot{.pieces = s.pieces(world.rank()), .step = i}));
      });
      if (counts) stall += s1;
    }
    while (std::chrono::steady_clock::now() - begin < s.step) {
    }
    const double s2 = seconds_of([&] { checkpoints->before_update(); });
    if (counts) stall += s2;
    throw_if_error(world.barrier());
    if (i == kSteps - 1) checkpoints->finish().take_or_throw();  // each save is measured alone
  }
  checkpoints->finish().take_or_throw();
  return stall;
}

/// Mean seconds of both, each of which runs twice, in an order that gives neither the better turns
/// of the disk. A disk that has rested takes the first few hundred MiB faster than the rest: those
/// of a turn of each do not count.
std::pair<double, double> in_turns(const std::function<double()>& plainly,
                                   const std::function<double()>& ours) {
  std::pair<double, double> mean;
  plainly();
  ours();
  for (const bool plain : {true, false, false, true}) {
    (plain ? mean.first : mean.second) += 0.5 * (plain ? plainly() : ours());
  }
  return mean;
}

void run(const Setup& s) {
  const auto ranks = static_cast<std::size_t>(s.ranks);
  const Communicators world = comm::make_inproc_group(s.ranks).take_or_throw();
  std::vector<std::vector<char>> room(ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    std::size_t bytes = 0;
    for (const Piece& p : s.pieces(static_cast<int>(r))) bytes += bytes_of(p);
    room[r].assign(bytes, 1);
  }
  const auto of = [&](const auto& f) {
    return seconds_of(
        [&] { on_ranks(s.ranks, [&](int r) { f(r, static_cast<std::size_t>(r)); }); });
  };
  // Both write new files into a new folder each time: a file system spreads folders over the disk,
  // and some disks write blocks that nothing has been on several times slower.
  int folders = 0;
  const auto new_folder = [&] {
    fs::path made = s.folder / std::to_string(folders++);
    fs::create_directory(made);
    return made;
  };
  fs::path plain;
  std::string saved;
  const auto [raw_write, save] = in_turns(
      [&] {
        plain = new_folder();
        return of([&](int r, std::size_t) { write_plainly(s, plain, r); });
      },
      [&] {
        const fs::path folder = new_folder();
        return of([&](int r, std::size_t i) {
          const checkpoint::Snapshot snapshot{.pieces = s.pieces(r)};
          std::string step =
              checkpoint::save_checkpoint(*world[i], folder, snapshot, 1).take_or_throw();
          if (r == 0) saved = std::move(step);
        });
      });
  const auto [raw_read, loaded] = in_turns(
      [&] {
        drop_from_cache(s.folder);
        return of([&](int r, std::size_t i) { read_plainly(plain, r, room[i]); });
      },
      [&] {
        drop_from_cache(s.folder);
        return of([&](int r, std::size_t i) { load(s, saved, r, room[i]); });
      });
  std::vector<double> stalls(ranks);
  on_ranks(s.ranks, [&](int r) {
    const auto i = static_cast<std::size_t>(r);
    stalls[i] = stall_of(s, *world[i]);
  });
  fmt::print(
      "{{\"bytes\":{},\"ranks\":{},\"raw_write\":{},\"save\":{},\"raw_read\":{},\"load\":{},"
      "\"stall\":{}}}\n",
      3 * s.rows * kColumns * 4, s.ranks, raw_write, save, raw_read, loaded,
      *std::max_element(stalls.begin(), stalls.end()));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    fmt::print(stderr, "usage: checkpoint_bench FOLDER MIB RANKS STEP_MS\n");
    return 2;
  }
  Setup s{.folder = argv[1],
          .rows = std::atoll(argv[2]) * (1 << 20) / (3 * 4 * kColumns),
          .ranks = std::atoi(argv[3]),
          .step = std::chrono::milliseconds(std::atoll(argv[4]))};
  for (int i = 0; i < 3; ++i) {
    s.state.emplace_back(static_cast<std::size_t>(s.rows * kColumns));
    for (std::size_t k = 0; k < s.state.back().size(); ++k)
      s.state.back()[k] = static_cast<float>(k);
  }
  try {
    run(s);
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
}
