#include <cli/bench_probe.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <span>
#include <vector>

#include <bench/statistics.h>
#include <stormo/transport/memory_file.h>

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

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Everybody's buffer, mapped by everybody.
class SharedBuffers {
 public:
  static Result<SharedBuffers> create(comm::Communicator& world, std::uint64_t bytes) {
    SharedBuffers buffers;
    auto mine = MemoryFile::create("stormo-probe", bytes);
    if (mine.ok()) mine->back_with_huge_pages(0, bytes);  // as the Arena does
    std::array<std::int64_t, 2> place = {::getpid(), mine.ok() ? mine->fd() : -1};
    std::vector<std::int64_t> places(2 * static_cast<std::size_t>(world.size()));
    STORMO_RETURN_IF_ERROR(
        world.all_gather(comm::buffer_of(std::span(place)), comm::buffer_of(std::span(places))));
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
    STORMO_RETURN_IF_ERROR(
        world.all_reduce(comm::buffer_of(std::span(&any, 1)), comm::ReduceOp::kMax));
    if (any == 0) return buffers;
    return failed.ok() ? Status(Code::kExhausted, "another rank cannot map the probe's memory")
                       : failed;
  }
  const std::vector<std::byte*>& data() const { return data_; }

 private:
  static Result<MemoryFile> map_other(std::int64_t pid, std::int64_t fd, std::uint64_t bytes) {
    const std::string path = fmt::format("/proc/{}/fd/{}", pid, fd);
    const int other = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (other < 0) return errno_error("open " + path);
    return MemoryFile::map(other, bytes);
  }

  std::vector<MemoryFile> files_;
  std::vector<std::byte*> data_;
};

/// The least that one rank has to do.
class Task {
 public:
  Task(const bench::OperationFacts& facts, const std::vector<std::byte*>& shared, std::size_t lines,
       std::size_t me)
      : shared_(shared), me_(me), lines_(lines), destinations_(shared) {
    using bench::Operation;
    const Operation op = facts.operation;
    sums_ = facts.reduces;
    if (op == Operation::kReduce) destinations_ = {shared[0]};
    if (op == Operation::kReduceScatter) destinations_ = {shared[me]};
    const bench::Share out = me == 0 ? facts.root_out : facts.out;
    const bool has_it = op == Operation::kBroadcast && me == 0;
    const std::size_t bytes = out == bench::Share::kWhole  ? lines * kLine
                              : out == bench::Share::kPart ? lines * kLine / shared.size()
                                                           : 0;
    if (!sums_ && !has_it) copy_.resize(bytes);
  }
  void run() {
    const std::size_t n = shared_.size();
    if (sums_)
      sum_lines(shared_, destinations_, lines_ * me_ / n, lines_ * (me_ + 1) / n);
    else if (!copy_.empty())
      std::memcpy(copy_.data(), shared_[(me_ + 1) % n], copy_.size());
  }

 private:
  const std::vector<std::byte*>& shared_;
  std::size_t me_;
  std::size_t lines_;
  std::vector<std::byte*> destinations_;
  bool sums_ = false;
  std::vector<std::byte> copy_;
};

}  // namespace

Result<double> probe_memory(comm::Communicator& world, bench::Engine& engine,
                            const bench::OperationFacts& facts, std::uint64_t bytes,
                            double seconds) {
  const std::size_t lines = (bytes + kLine - 1) / kLine;
  STORMO_ASSIGN_OR_RETURN(const SharedBuffers shared, SharedBuffers::create(world, lines * kLine));
  const auto me = static_cast<std::size_t>(world.rank());
  Task task(facts, shared.data(), lines, me);
  const auto iterate = [&](int index) -> Result<bench::Interval> {
    std::memset(shared.data()[me], index & 1, lines * kLine);
    STORMO_RETURN_IF_ERROR(engine.barrier());
    const double begin = now();
    task.run();
    const double end = now();
    STORMO_RETURN_IF_ERROR(engine.barrier());  // nobody rewrites what others still read
    return bench::Interval{begin, end};
  };
  for (int i = 0; i < 2; ++i) STORMO_RETURN_IF_ERROR(iterate(i).status());
  STORMO_ASSIGN_OR_RETURN(std::vector<double> times,
                          bench::sample(engine, iterate, bench::Count::kFirstToLast, 10, seconds));
  return bench::percentile(std::move(times), 0.5);
}

}  // namespace stormo::cli
