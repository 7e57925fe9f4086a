#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <stormo/plan/step_plan.h>

namespace stormo::cli {

/// A topology by which a plan mixes.
struct MixingFacts {
  std::string topology;  ///< its name; of one that somebody has made, "edges" or "weights"
  int ranks = 0;
  std::size_t receivers = 0;  ///< to which a rank sends in the first round, at most
  std::size_t rounds = 0;
  /// See plan::contraction(); nothing where there are too many ranks for it.
  std::optional<double> second_eigenvalue = {};
};

/// Those of a verified plan, each once.
std::vector<MixingFacts> mixing_facts(const plan::StepPlan& p);
/// A line for each.
void print_mixing(const plan::StepPlan& p);

}  // namespace stormo::cli
