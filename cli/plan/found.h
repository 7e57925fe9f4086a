#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/comm/selection/step_model.h>
#include <stormo/train/planner/search.h>
#include <stormo/train/planner/traffic.h>
#include <stormo/train/recipe/recipe.h>

namespace stormo::cli {

/// A step of one process with all threads of this host.
struct OneProcess {
  int threads = 1;
  double seconds = 0;
};

/// A way in which gradients travel, with each codec.
struct CodedWay {
  const train::Outcome& way;  ///< borrowed
  std::vector<train::TrafficWay> codecs;
};

/// All ways that fit, as JSON.
void print_found_json(const train::Found& found, const train::Recipe& recipe,
                      const std::optional<OneProcess>& one_process,
                      const std::optional<CodedWay>& coded);
/// The fastest ways as a table, with what their steps consist of, and why others are not among
/// them. `memory`: the bytes that a rank may use.
Status print_found(const comm::StepModel& model, const train::Found& found,
                   const train::Recipe& recipe, std::int64_t memory,
                   const std::optional<OneProcess>& one_process,
                   const std::optional<CodedWay>& coded);

}  // namespace stormo::cli
