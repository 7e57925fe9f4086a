#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <cli/plan/options.h>
#include <stormo/analysis/step/step_memory.h>
#include <stormo/base/status.h>
#include <stormo/parallel/search/candidates.h>

namespace stormo::train {
struct Recipe;
}

namespace stormo::cli {

/// One way to train, and what it takes.
struct Outcome {
  parallel::Candidate candidate;
  StepInput step;
  double seconds = 0;
  double idle = 0;
  analysis::Memory peak;
};

/// What a search has found.
struct Found {
  std::vector<Outcome> fitting;        ///< the fastest first
  std::map<std::string, int> refused;  ///< by reason
  std::optional<Outcome> smallest;     ///< of those that need too much memory
  int too_large = 0;
};

/// A step of one process with all threads of this host.
struct OneProcess {
  int threads = 1;
  double seconds = 0;
};

/// The keys that make `recipe` train so, also those that only take back what it says.
std::vector<std::string> keys_of(const parallel::Candidate& c, const train::Recipe& recipe);

/// All ways that fit, as JSON.
void print_found_json(const Found& found, const train::Recipe& recipe,
                      const std::optional<OneProcess>& one_process);
/// The fastest ways as a table, with what their steps consist of, and why others are not among
/// them. `memory`: the bytes that a rank may use.
Status print_found(const PlanOptions& o, const Found& found, const train::Recipe& recipe,
                   std::int64_t memory, const std::optional<OneProcess>& one_process);

}  // namespace stormo::cli
