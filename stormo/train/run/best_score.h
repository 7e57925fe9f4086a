#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <stormo/train/run/evaluate.h>

namespace stormo::train {

/// The best evaluation of a run so far, judged by one number.
class BestScore {
 public:
  /// `metric`: "loss" (the least is best), "accuracy" (the largest is), or "none": nothing is.
  explicit BestScore(std::string metric) : metric_(std::move(metric)) {}

  /// Whether that evaluation after `step` is better than all before it. What is no finite number
  /// never is.
  bool take(const Evaluation& result, std::int64_t step);

  const std::string& metric() const { return metric_; }
  /// Of the best evaluation, 0 before there is one.
  std::int64_t step() const { return step_; }
  double value() const { return value_; }
  /// Evaluations that came after the best one.
  std::int64_t since() const { return since_; }

  /// As one JSON object, for checkpoints.
  std::string to_json() const;
  /// Takes over what to_json() wrote under the same metric; anything else changes nothing.
  void restore(std::string_view json);

 private:
  std::string metric_;
  std::int64_t step_ = 0;
  std::int64_t since_ = 0;
  double value_ = 0;
};

}  // namespace stormo::train
