#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <stormo/plan/model/model_shape.h>

namespace stormo::strads {

/// How good the values are now.
struct Judgement {
  double objective = 0;  ///< what is minimised
  /// The objective is at most so far above its minimum; nothing when that is not known.
  std::optional<double> gap = {};
};

/// Values of variables.
struct BlockValues {
  std::vector<double> rows;    ///< that a worker has for its own rows; in the order of workers
  std::vector<double> common;  ///< that every worker has
};

/// One worker's part of a program whose variables are updated in blocks: its rows of the data, and
/// the variables. Workers differ in their rows alone. A round computes forward, loss and backward
/// of a batch, each for its blocks; what backward() gives is added up over the workers, in their
/// order. Not thread-safe.
class BlockProgram {
 public:
  virtual ~BlockProgram() = default;
  /// The variables that every worker has, as parameters of a plan.
  virtual plan::ModelShape variables() const = 0;
  virtual std::int64_t blocks() const = 0;

  /// Numbers in a part of these blocks; equal for all workers. And in their new values.
  virtual std::size_t part_size(std::span<const std::int64_t> blocks) const = 0;
  virtual std::size_t value_size(std::span<const std::int64_t> blocks) const = 0;
  /// A program that has all of its rows in each round, and keeps how far its values are from them,
  /// has nothing to do in the first three.
  virtual void load() {}
  virtual void forward(std::span<const std::int64_t> /*blocks*/) {}
  virtual void loss() {}
  /// The worker's part. The variables stay as they are.
  virtual void backward(std::span<const std::int64_t> blocks, std::span<double> part) = 0;
  /// The new values from the sums of all parts, and how much each block changes.
  virtual void aggregate(std::span<const std::int64_t> blocks, std::span<const double> sums,
                         std::span<double> values, std::span<double> changes) const = 0;
  /// Sets the new values.
  virtual void set(std::span<const std::int64_t> blocks, std::span<const double> values) = 0;

  /// Judging: the worker's part, and what the sums of all parts say. No round is in flight.
  virtual std::size_t judged_size() const = 0;
  virtual void judged_part(std::span<double> part) const = 0;
  virtual Judgement judge(std::span<const double> sums) const = 0;
  /// All variables of this worker, where they are numbers for a file.
  virtual BlockValues values() const { return {}; }
};

}  // namespace stormo::strads
