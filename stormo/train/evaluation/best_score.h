#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <stormo/train/evaluation/evaluate.h>

namespace stormo::train {

/// The best evaluation of a run so far, by one metric.
class BestScore {
 public:
  /// `metric`: "loss" (smaller is better), "accuracy" (larger is better), or "none" (no evaluation
  /// is best).
  explicit BestScore(std::string metric) : metric_(std::move(metric)) {}

  /// Adds the evaluation after `step`; true if it is better than all before it. A metric that is
  /// not finite is never better.
  bool take(const Evaluation& result, std::int64_t step);

  const std::string& metric() const { return metric_; }
  /// Step of the best evaluation; 0 before there is one.
  std::int64_t step() const { return step_; }
  double value() const { return value_; }
  /// Evaluations that came after the best one.
  std::int64_t since() const { return since_; }

  /// As one JSON object, for checkpoints.
  std::string to_json() const;
  /// Restores the result of to_json() with the same metric; does nothing for any other text.
  void restore(std::string_view json);

 private:
  std::string metric_;
  std::int64_t step_ = 0;
  std::int64_t since_ = 0;
  double value_ = 0;
};

}  // namespace stormo::train
