#include <stormo/train/segment_range.h>

#include <string>

namespace stormo::train {

bool covers_all(const plan::ModelShape& model, const plan::Action& action) {
  return action.first == 0 && action.last + 1 == static_cast<int>(model.segments.size());
}

Result<ParameterRange> parameters_of(const plan::ModelShape& model, const plan::Action& action,
                                     const std::vector<NamedParameter>& parameters) {
  if (covers_all(model, action)) return ParameterRange{0, parameters.size()};
  std::int64_t begin = 0, end = 0;
  for (int s = 0; s <= action.last; ++s) {
    const std::int64_t size = model.segments[static_cast<std::size_t>(s)].num_parameters;
    if (s < action.first) begin += size;
    end += size;
  }
  ParameterRange range;
  std::int64_t passed = 0;
  for (std::size_t i = 0; i <= parameters.size(); ++i) {
    if (passed <= begin) range.first = i;
    if (passed <= end) range.last = i;
    if (passed == end && end > begin) return range;
    if (i < parameters.size()) passed += parameters[i].tensor.numel();
  }
  return Status(Code::kBadPlan,
                std::string(to_string(action.kind)) + " of segments " +
                    std::to_string(action.first) + ".." + std::to_string(action.last) +
                    ": no parameters of the module begin and end where these segments do");
}

}  // namespace stormo::train
