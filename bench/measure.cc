#include <bench/measure.h>

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include <bench/payload.h>
#include <bench/statistics.h>

namespace stormo::bench {
namespace {

constexpr std::size_t kMostIterations = 1'000'000;

/// The operands of one size on this rank, with what is written into them.
class Subject {
 public:
  Subject(Engine& engine, const OperationFacts& facts, const MeasureOptions& options,
          std::uint64_t bytes)
      : engine_(engine),
        facts_(facts),
        pause_(options.pause),
        shape_(shape_of(facts, bytes / size_of(options.dtype), engine.size(), engine.rank())),
        payload_(options.dtype, engine.size(), shape_.whole, facts.reduces) {
    const std::size_t in = (facts.in_place ? shape_.whole : shape_.in) * size_of(options.dtype);
    operands_ = {engine.allocate(std::max<std::size_t>(in, 1)), nullptr, shape_, options.dtype};
    operands_.out =
        facts.in_place
            ? operands_.in
            : engine.allocate(std::max<std::size_t>(shape_.out * size_of(options.dtype), 1));
  }
  ~Subject() {
    if (!facts_.in_place) engine_.deallocate(operands_.out);
    engine_.deallocate(operands_.in);
  }
  Subject(const Subject&) = delete;

  bool valid() const { return operands_.in != nullptr && operands_.out != nullptr; }
  std::uint64_t whole_bytes() const { return shape_.whole * size_of(operands_.dtype); }

  /// The input is fresh, the ranks start together and leave together.
  Result<Interval> iterate(int index) {
    payload_.rewrite(operands_.in, shape_.in, engine_.rank(), index);
    if (pause_ > 0) std::this_thread::sleep_for(std::chrono::duration<double>(pause_));
    STORMO_RETURN_IF_ERROR(engine_.barrier());
    const double begin = now();
    STORMO_RETURN_IF_ERROR(engine_.run(facts_.operation, operands_));
    const double end = now();
    STORMO_RETURN_IF_ERROR(engine_.barrier());  // nobody rewrites while others still work
    return Interval{begin, end};
  }

  Result<bool> verify(int index) {
    Payload::spoil(operands_.out, shape_.out * size_of(operands_.dtype));
    STORMO_ASSIGN_OR_RETURN(const Interval mine, iterate(index));
    const auto expected = expected_output(facts_, shape_, engine_.size(), engine_.rank());
    // a barrier: nobody left before the last one came
    std::array<double, 3> worst = {payload_.holds(operands_.out, expected, index) ? 0.0 : 1.0,
                                   mine.begin, -mine.end};
    STORMO_RETURN_IF_ERROR(engine_.largest(worst));
    const bool apart =
        facts_.operation == Operation::kBarrier && engine_.one_host() && worst[1] > -worst[2];
    return worst[0] == 0 && !apart;
  }

 private:
  Engine& engine_;
  const OperationFacts& facts_;
  const double pause_;
  Shape shape_;
  Payload payload_;
  Operands operands_;
};

/// Processor seconds and context switches of this process.
std::array<double, 2> usage() {
  struct rusage u {};
  ::getrusage(RUSAGE_SELF, &u);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return {seconds(u.ru_utime) + seconds(u.ru_stime), static_cast<double>(u.ru_nvcsw + u.ru_nivcsw)};
}

/// How many iterations come next; equal on all ranks because `elapsed` is.
std::size_t next_block(std::size_t done, std::size_t at_least, double elapsed, double seconds) {
  if (done == 0) return std::min<std::size_t>(at_least, 10);
  if (done >= at_least && (elapsed >= 0.9 * seconds || done >= kMostIterations)) return 0;
  const double rate = static_cast<double>(done) / std::max(elapsed, 1e-9);
  const double wanted =
      std::clamp((seconds - elapsed) * rate, 1.0, static_cast<double>(kMostIterations));
  const std::size_t missing = at_least > done ? at_least - done : 1;
  // growing at most tenfold: the first iterations of all are a bad estimate
  return std::max(missing, std::min(static_cast<std::size_t>(wanted), 10 * done));
}

}  // namespace

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Result<std::vector<double>> sample(Engine& engine, const Iteration& iteration, Count count,
                                   int at_least, double seconds) {
  std::vector<double> begins;
  std::vector<double> ends;
  double elapsed = 0;
  const auto wanted = static_cast<std::size_t>(at_least);
  while (const std::size_t block = next_block(ends.size(), wanted, elapsed, seconds)) {
    const double start = now();
    for (std::size_t i = 0; i < block; ++i) {
      STORMO_ASSIGN_OR_RETURN(const Interval t, iteration(static_cast<int>(ends.size() % 1024)));
      begins.push_back(-t.begin);
      ends.push_back(t.end);
    }
    double took = now() - start;
    STORMO_RETURN_IF_ERROR(engine.largest({&took, 1}));
    elapsed += took;
  }
  const bool slowest = count == Count::kSlowestRank;
  if (!slowest) STORMO_RETURN_IF_ERROR(engine.largest(begins));
  if (!slowest) STORMO_RETURN_IF_ERROR(engine.largest(ends));
  for (std::size_t i = 0; i < ends.size(); ++i) ends[i] += begins[i];
  if (slowest) STORMO_RETURN_IF_ERROR(engine.largest(ends));
  return ends;
}

Result<Measurement> measure(Engine& engine, Operation operation, std::uint64_t bytes,
                            const MeasureOptions& options) {
  const OperationFacts& facts = facts_of(operation);
  Subject subject(engine, facts, options, bytes);
  double lacks = subject.valid() ? 0 : 1;
  STORMO_RETURN_IF_ERROR(engine.largest({&lacks, 1}));
  if (lacks != 0) return Status(Code::kExhausted, "no room for the buffers; measure fewer bytes");

  Measurement m{.operation = std::string(facts.name), .ranks = engine.size(), .bytes = bytes};
  m.dtype = to_string(options.dtype);
  STORMO_ASSIGN_OR_RETURN(const bool right, subject.verify(1));
  const auto iterate = [&](int index) { return subject.iterate(index); };
  for (int i = 0; i < 3; ++i) STORMO_RETURN_IF_ERROR(iterate(i).status());

  const std::array<double, 2> before = usage();
  const bool waits = facts.meets || !engine.one_host();
  STORMO_ASSIGN_OR_RETURN(const std::vector<double> times,
                          sample(engine, iterate, waits ? Count::kSlowestRank : Count::kFirstToLast,
                                 least_iterations(bytes), options.seconds));
  std::array<double, 2> used = usage();
  for (std::size_t i = 0; i < used.size(); ++i)
    used[i] = (used[i] - before[i]) / static_cast<double>(times.size());
  STORMO_RETURN_IF_ERROR(engine.total(used));
  STORMO_ASSIGN_OR_RETURN(const bool still_right, subject.verify(2));

  m.verified = right && still_right;
  m.iterations = static_cast<int>(times.size());
  m.p50_s = percentile(times, 0.5);
  m.p90_s = percentile(times, 0.9);
  m.p99_s = percentile(times, 0.99);
  m.algbw = static_cast<double>(subject.whole_bytes()) / std::max(m.p50_s, 1e-9);
  m.busbw = m.algbw * bus_factor(operation, engine.size());
  m.cpu_s = used[0];
  m.switches = used[1];
  return m;
}

}  // namespace stormo::bench
