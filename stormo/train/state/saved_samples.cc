#include <stormo/train/state/saved_samples.h>

#include <nlohmann/json.hpp>

#include <stormo/checkpoint/file/checked_file.h>

namespace stormo::train {

std::string describe_samples(const data::Dataset& samples) {
  const std::uint64_t fingerprint = samples.fingerprint();
  const std::string count = std::to_string(samples.size()) + " samples";
  return fingerprint == 0 ? count : count + " with fingerprint " + checkpoint::to_hex(fingerprint);
}

std::string saved_samples(std::string_view state_json) {
  const auto state = nlohmann::json::parse(state_json, nullptr, /*allow_exceptions=*/false);
  const bool known =
      state.is_object() && state.contains(kSavedSamples) && state[kSavedSamples].is_string();
  return known ? state[kSavedSamples].get<std::string>() : "";
}

}  // namespace stormo::train
