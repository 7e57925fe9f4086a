#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <bench/operations.h>
#include <bench/record.h>
#include <stormo/base/dtype.h>
#include <stormo/base/status.h>

namespace stormo::bench {

/// The buffers of one call on one rank; in place: `in` is `out`.
struct Operands {
  std::byte* in = nullptr;
  std::byte* out = nullptr;
  Shape shape;
  DType dtype = DType::kFloat32;
};

/// A system under measurement, on one rank.
class Engine {
 public:
  virtual ~Engine() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual bool one_host() const = 0;  ///< and so one clock
  /// Memory for operands; null when there is no room.
  virtual std::byte* allocate(std::size_t bytes) = 0;
  virtual void deallocate(std::byte* memory) = 0;
  virtual Status run(Operation operation, const Operands& operands) = 0;
  virtual Status barrier() = 0;
  /// Element by element over all ranks, for all ranks.
  virtual Status largest(std::span<double> values) = 0;
  virtual Status total(std::span<double> values) = 0;
};

/// Seconds of this host's clock.
double now();

/// When one iteration began and ended on this rank.
struct Interval {
  double begin = 0;
  double end = 0;
};
using Iteration = std::function<Result<Interval>(int index)>;

/// What counts as the time of an iteration: the slowest rank's own, or from the first rank's begin
/// to the last one's end. The latter needs one clock, and is for work in which some ranks do not
/// wait for others: on a busy core a rank that comes late would find everything done, and count
/// none of it.
enum class Count { kSlowestRank, kFirstToLast };

/// How many iterations at least a figure is made of, for operations on so many bytes.
constexpr int least_iterations(std::uint64_t bytes) { return bytes <= (64 << 10) ? 200 : 10; }

/// Repeats `iteration` until at least `seconds` have passed and `at_least` are done, equally often
/// on all ranks. Collective.
Result<std::vector<double>> sample(Engine& engine, const Iteration& iteration, Count count,
                                   int at_least, double seconds);

struct MeasureOptions {
  DType dtype = DType::kFloat32;
  double seconds = 0.3;  ///< per size; at least 200 iterations up to 64 KiB, else 10, all the same
  double pause =
      0;  ///< seconds of idleness before every iteration: a shaped link regains its burst
};

/// One operation of one size. Every iteration rewrites the whole input on its owner before the
/// clock starts (otherwise a rank finds its own part in its cache), all ranks start together and
/// wait for each other afterwards (otherwise one that shares its core finds its end only after the
/// others' next rewriting), and results are verified bit by bit before and after. An operation in
/// which all ranks meet counts as its slowest rank; others, on one host, from the first begin to
/// the last end. Collective: equal arguments on all ranks.
Result<Measurement> measure(Engine& engine, Operation operation, std::uint64_t bytes,
                            const MeasureOptions& options);

}  // namespace stormo::bench
