#include <stormo/train/predict/class_report.h>

#include <algorithm>

#include <stormo/base/check.h>

namespace stormo::train {

ClassReport::ClassReport(std::int64_t classes)
    : confusion_(static_cast<std::size_t>(classes),
                 std::vector<std::int64_t>(static_cast<std::size_t>(classes))) {}

void ClassReport::add(const torch::Tensor& output, const torch::Tensor& target) {
  const auto classes = std::ssize(confusion_);
  STORMO_CHECK(output.dim() == 2 && output.size(1) == classes, "an output for each class");
  const torch::Tensor numbers = output.to(torch::kFloat64).contiguous();
  const torch::Tensor targets = target.contiguous();
  const double* row = numbers.const_data_ptr<double>();
  const auto* is = targets.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < numbers.size(0); ++i, row += classes) {
    const auto predicted = static_cast<std::size_t>(std::max_element(row, row + classes) - row);
    ++confusion_[static_cast<std::size_t>(is[i])][predicted];
    if (classes == 2) scores_.emplace_back(row[1] - row[0], is[i] == 1);
  }
}

double ClassReport::mean_f1() const {
  double sum = 0, classes = 0;
  for (std::size_t c = 0; c < confusion_.size(); ++c) {
    std::int64_t samples = 0, predictions = 0;
    for (std::size_t other = 0; other < confusion_.size(); ++other) {
      samples += confusion_[c][other];
      predictions += confusion_[other][c];
    }
    if (samples + predictions == 0) continue;
    sum += 2 * static_cast<double>(confusion_[c][c]) / static_cast<double>(samples + predictions);
    ++classes;
  }
  return classes > 0 ? sum / classes : 0;
}

// The rank-sum of Mann and Whitney; equal scores have the mean of their ranks.
std::optional<double> ClassReport::auc() const {
  std::vector<std::pair<double, bool>> sorted = scores_;
  std::ranges::sort(sorted);
  double rank_sum = 0, ones = 0;
  for (std::size_t begin = 0, end = 0; begin < sorted.size(); begin = end) {
    double equal_ones = 0;
    for (; end < sorted.size() && sorted[end].first == sorted[begin].first; ++end) {
      equal_ones += sorted[end].second ? 1 : 0;
    }
    rank_sum += equal_ones * (static_cast<double>(begin + end) + 1) / 2;
    ones += equal_ones;
  }
  const double zeros = static_cast<double>(sorted.size()) - ones;
  if (ones == 0 || zeros == 0) return std::nullopt;
  return (rank_sum - ones * (ones + 1) / 2) / (ones * zeros);
}

}  // namespace stormo::train
