#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

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
/// the variables. Workers differ in their rows alone. What each computes in update() is added up
/// over the workers, in their order. Not thread-safe.
class BlockProgram {
 public:
  virtual ~BlockProgram() = default;
  virtual std::int64_t blocks() const = 0;

  /// Numbers in a part of these blocks; equal for all workers. And in their new values.
  virtual std::size_t part_size(std::span<const std::int64_t> blocks) const = 0;
  virtual std::size_t value_size(std::span<const std::int64_t> blocks) const = 0;
  /// Update: the worker's part. The variables stay as they are.
  virtual void update(std::span<const std::int64_t> blocks, std::span<double> part) = 0;
  /// Aggregate: the new values from the sums of all parts, and how much each block changes.
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
