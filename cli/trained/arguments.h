#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace stormo::cli {

/// Which checkpoint a user means, and what is changed in its recipe.
struct ModelChoice {
  std::string path;  ///< a checkpoint, or a folder of them
  bool best = false;
  bool json = false;  ///< records on standard output, one of an error too
  std::vector<std::string> overrides{};
};

struct PredictArguments {
  ModelChoice model;
  std::vector<std::string> files;
  int top = 1;
};

struct SampleArguments {
  ModelChoice model;
  std::string prompt;
  std::optional<std::int64_t> length;
  std::optional<double> temperature;
  std::optional<std::int64_t> top_k;
  std::optional<std::uint64_t> seed;
};

/// The commands; return the exit code. They need libtorch.
int evaluate(const ModelChoice& choice);
int predict(const PredictArguments& a);
int sample(const SampleArguments& a);

}  // namespace stormo::cli
