#include <stormo/analysis/transfer/inner.h>

#include <algorithm>
#include <vector>

namespace stormo::analysis {

int first_trained_segment(const plan::ModelShape& model) {
  const auto shapes = plan::flatten(model);
  const auto all = plan::parameters_read(model);
  const auto first = std::ranges::find_if(all, [&](const std::vector<int>& read) {
    return std::ranges::any_of(
        read, [&](int p) { return shapes[static_cast<std::size_t>(p)]->trainable; });
  });
  return static_cast<int>(first - all.begin());
}

DType parameter_type(const plan::ModelShape& model) {
  const auto first = std::ranges::find_if(
      model.segments, [](const plan::SegmentShape& s) { return !s.parameters.empty(); });
  return first->parameters.front().dtype;
}

}  // namespace stormo::analysis
