#include <cli/bench/probe.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include <bench/statistics.h>
#include <stormo/transport/memory/memory_file.h>

// Instances for the machine at hand are chosen when the program is loaded, which sanitizers do not
// survive.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define STORMO_FOR_EACH_CPU [[gnu::target_clones("avx512f", "avx2", "default")]]
#else
#define STORMO_FOR_EACH_CPU
#endif

namespace stormo::cli {

/// destinations = sum of sources, from line `begin` to `end`; 64 bytes each.
STORMO_FOR_EACH_CPU void sum_lines(std::span<std::byte* const> sources,
                                   std::span<std::byte* const> destinations, std::size_t begin,
                                   std::size_t end) {
  using Line [[gnu::vector_size(64), gnu::may_alias]] = float;
  const auto line = [](std::byte* buffer, std::size_t i) {
    return reinterpret_cast<Line*>(buffer) + i;
  };
  for (std::size_t i = begin; i < end; ++i) {
    Line sum = *line(sources[0], i);
    for (std::size_t s = 1; s < sources.size(); ++s) sum += *line(sources[s], i);
    for (std::byte* destination : destinations) *line(destination, i) = sum;
  }
}

namespace {

using transport::MemoryFile;

constexpr std::size_t kLine = 64;
/// So little costs less to read from everybody than a second barrier does.
constexpr std::uint64_t alone_bytes(std::size_t ranks) { return ranks <= 2 ? 4096 : 1024; }

/// Everybody's buffer, mapped by everybody.
class SharedBuffers {
 public:
  static Result<SharedBuffers> create(comm::Communicator& world, std::uint64_t bytes) {
    SharedBuffers buffers;
    auto mine = MemoryFile::create("stormo-probe", bytes);
    if (mine.ok()) mine->back_with_huge_pages(0, bytes);  // as the Arena does
    std::array<std::int64_t, 2> place = {::getpid(), mine.ok() ? mine->fd() : -1};
    std::vector<std::int64_t> places(2 * static_cast<std::size_t>(world.size()));
    STORMO_RETURN_IF_ERROR(world.all_gather(place, places));
    Status failed = mine.status();
    for (std::size_t r = 0; r < places.size() / 2 && failed.ok(); ++r) {
      auto file = r == static_cast<std::size_t>(world.rank())
                      ? std::move(mine)
                      : map_other(places[2 * r], places[2 * r + 1], bytes);
      failed = file.status();
      if (!failed.ok()) break;
      buffers.data_.push_back(file->data());
      buffers.files_.push_back(std::move(*file));
    }
    // nobody closes before all have opened, or goes on when one could not
    double any = failed.ok() ? 0 : 1;
    STORMO_RETURN_IF_ERROR(world.all_reduce(std::span(&any, 1), comm::ReduceOp::kMax));
    if (any == 0) return buffers;
    return failed.ok() ? Status(Code::kExhausted, "another rank cannot map the probe's memory")
                       : failed;
  }
  const std::vector<std::byte*>& data() const { return data_; }

 private:
  static Result<MemoryFile> map_other(std::int64_t pid, std::int64_t fd, std::uint64_t bytes) {
    const std::string path = fmt::format("/proc/{}/fd/{}", pid, fd);
    Descriptor other(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!other.valid()) return errno_error("open " + path);
    return MemoryFile::map(std::move(other), bytes);
  }

  std::vector<MemoryFile> files_;
  std::vector<std::byte*> data_;
};

/// A barrier and nothing else: a flag for each, which the others look at.
class BareBarrier {
 public:
  /// `flags`: a line of every rank's, zero at first.
  BareBarrier(std::vector<std::byte*> flags, std::size_t me) : flags_(std::move(flags)), me_(me) {}
  void wait() {
    flag(me_).store(++phase_, std::memory_order_release);
    for (std::size_t r = 0; r < flags_.size(); ++r) {
      for (int looks = 0; flag(r).load(std::memory_order_acquire) < phase_; ++looks) {
        if (looks > 200) ::sched_yield();
      }
    }
  }

 private:
  std::atomic_ref<std::uint64_t> flag(std::size_t r) const {
    return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(flags_[r]));
  }
  std::vector<std::byte*> flags_;
  std::size_t me_;
  std::uint64_t phase_ = 0;
};

/// The least that one rank has to do.
class Task {
 public:
  /// `alone`: every rank makes its own output from what the others have.
  Task(const bench::OperationFacts& facts, const std::vector<std::byte*>& shared, std::size_t lines,
       std::size_t me, bool alone)
      : shared_(shared), sums_(facts.reduces), destinations_(shared) {
    using bench::Operation;
    const std::size_t n = shared.size();
    const Operation op = facts.operation;
    const bench::Share out = me == 0 ? facts.root_out : facts.out;
    const std::size_t begin = out == bench::Share::kPart ? lines * me / n : 0;
    const std::size_t end = out == bench::Share::kWhole  ? lines
                            : out == bench::Share::kPart ? lines * (me + 1) / n
                                                         : begin;
    const bool has_it = op == Operation::kBroadcast && me == 0;
    own_.resize(has_it || (sums_ && !alone) ? 0 : lines);
    from_ = shared[(me + 1) % n];
    range_ = {has_it ? end : begin, end};
    if (!sums_) return;
    if (alone) {
      destinations_ = {own_.data()->bytes.data()};
      return;
    }
    range_ = {lines * me / n, lines * (me + 1) / n};
    if (op == Operation::kReduce) destinations_ = {shared[0]};
    if (op == Operation::kReduceScatter) destinations_ = {shared[me]};
  }
  void run() {
    const auto [begin, end] = range_;
    if (begin == end) return;
    if (sums_) {
      sum_lines(shared_, destinations_, begin, end);
    } else {
      std::memcpy(own_[begin].bytes.data(), from_ + begin * kLine, (end - begin) * kLine);
    }
  }

 private:
  struct alignas(kLine) Line {
    std::array<std::byte, kLine> bytes;
  };
  const std::vector<std::byte*>& shared_;
  const bool sums_;
  std::vector<std::byte*> destinations_;
  const std::byte* from_ = nullptr;
  std::vector<Line> own_;
  std::pair<std::size_t, std::size_t> range_;  // lines
};

}  // namespace

Result<double> probe_memory(comm::Communicator& world, bench::Engine& engine,
                            const bench::OperationFacts& facts, std::uint64_t bytes,
                            double seconds) {
  const std::size_t lines = (bytes + kLine - 1) / kLine;
  STORMO_ASSIGN_OR_RETURN(const SharedBuffers shared,
                          SharedBuffers::create(world, (lines + 1) * kLine));
  const auto me = static_cast<std::size_t>(world.rank());
  std::vector<std::byte*> flags;
  for (std::byte* buffer : shared.data()) flags.push_back(buffer + lines * kLine);
  BareBarrier barrier(std::move(flags), me);
  const bool alone = bytes <= alone_bytes(shared.data().size());
  Task task(facts, shared.data(), lines, me, alone);
  const auto iterate = [&](int index) -> Result<bench::Interval> {
    std::memset(shared.data()[me], index & 1, lines * kLine);
    STORMO_RETURN_IF_ERROR(engine.barrier());
    const double begin = bench::now();
    barrier.wait();  // everybody's input is there
    task.run();
    if (!alone) barrier.wait();  // nobody needs mine any more
    const double end = bench::now();
    STORMO_RETURN_IF_ERROR(engine.barrier());  // nobody rewrites what others still read
    return bench::Interval{begin, end};
  };
  for (int i = 0; i < 2; ++i) STORMO_RETURN_IF_ERROR(iterate(i).status());
  STORMO_ASSIGN_OR_RETURN(std::vector<double> times,
                          bench::sample(engine, iterate, bench::Count::kSlowestRank,
                                        bench::least_iterations(bytes), seconds));
  return bench::percentile(std::move(times), 0.5);
}

}  // namespace stormo::cli
