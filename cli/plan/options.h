#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/comm/selection/step_model.h>
#include <stormo/plan/schedule.h>

namespace stormo::cli {

/// The flags of all subcommands of `stormo plan`.
struct PlanOptions {
  std::string plan;                         ///< a builder, a strategy, a file or a recipe
  std::vector<std::string> overrides = {};  ///< key=value, of a recipe
  std::string ranks = "4";
  int hosts = 1;
  std::optional<Rank> rank = {};  ///< of whose part of a step plan is shown
  Rank root = 0;
  int pieces = 1;
  std::string bytes = "1MiB";
  std::string topology;   ///< a file
  std::string selection;  ///< a file
  int cores = 0;          ///< of one host; 0: one for each rank
  bool json = false;
  bool text = false;
  bool dot = false;
  bool svg = false;
  bool all = false;
  bool markdown = false;
  bool measured = false;        ///< times of computations come from this machine
  std::string trace;            ///< a file, from which they come
  double gflops = 0;            ///< of a rank, where they come from neither; 0: not given
  std::string memory;           ///< that a rank may use; empty: what is available here
  std::string write;            ///< a file, for the recipe that was found
  std::vector<Rank> lost = {};  ///< without which a step is simulated
  std::int64_t samples = 0;     ///< of one micro-batch of a rank; 0: as the recipe says, else 32
};

using comm::StepInput;
using Plan = std::variant<plan::Schedule, StepInput>;

/// The subcommands. A plan that fails is kBadPlan; other failures are the user's arguments.
Status list_plans(const PlanOptions& o);
Status show_plan(const PlanOptions& o);
Status choose_plan(const PlanOptions& o);
Status verify_plan(const PlanOptions& o);
Status plan_cost(const PlanOptions& o);
Status simulate_plan(const PlanOptions& o);
Status plan_cost_table(const PlanOptions& o);

}  // namespace stormo::cli
