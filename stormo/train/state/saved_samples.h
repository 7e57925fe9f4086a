#pragma once

#include <string>
#include <string_view>

#include <stormo/data/dataset.h>

// Which samples a checkpoint was trained on, in the `state` of its manifest.
namespace stormo::train {

/// "2000 samples with fingerprint 00c0ffee00c0ffee"; equal texts mean equal samples, as far as
/// Dataset::fingerprint() tells. Its cost is that of fingerprint().
std::string describe_samples(const data::Dataset& samples);

/// The member of `state` that has the text.
inline constexpr const char* kSavedSamples = "training_data";

/// The text in a manifest's state; empty where it has none.
std::string saved_samples(std::string_view state_json);

}  // namespace stormo::train
