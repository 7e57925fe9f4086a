#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <torch/types.h>

namespace stormo::train {

/// How well a classifier tells its classes apart, from its outputs for samples of known classes.
class ClassReport {
 public:
  /// `classes` >= 2: outputs of the model.
  explicit ClassReport(std::int64_t classes);

  /// Outputs [B, classes] and classes [B], int64.
  void add(const torch::Tensor& output, const torch::Tensor& target);

  /// Samples by class and predicted class (the first of the largest outputs).
  const std::vector<std::vector<std::int64_t>>& confusion() const { return confusion_; }
  /// The mean, over the classes that occur among the samples or predictions, of 2 right / (samples
  /// + predictions) of the class.
  double mean_f1() const;
  /// Of two classes that both occur: the probability that a sample of class 1 has a larger
  /// difference of outputs than one of class 0; equal ones count half.
  std::optional<double> auc() const;

 private:
  std::vector<std::vector<std::int64_t>> confusion_;
  std::vector<std::pair<double, bool>>
      scores_;  // of two classes: the difference, and whether it is 1
};

}  // namespace stormo::train
