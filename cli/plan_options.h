#pragma once

#include <string>
#include <variant>

#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/plan/schedule.h>
#include <stormo/plan/step_plan.h>

namespace stormo::cli {

/// The flags of all subcommands of `stormo plan`.
struct PlanOptions {
  std::string plan;  ///< a builder, a strategy or a file
  std::string ranks = "4";
  int hosts = 1;
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
};

using Plan = std::variant<plan::Schedule, plan::StepPlan>;

/// The subcommands. A plan that fails is kBadPlan; other failures are the user's arguments.
Status list_plans(const PlanOptions& o);
Status show_plan(const PlanOptions& o);
Status choose_plan(const PlanOptions& o);
Status verify_plan(const PlanOptions& o);
Status plan_cost(const PlanOptions& o);
Status simulate_plan(const PlanOptions& o);
Status plan_cost_table(const PlanOptions& o);

}  // namespace stormo::cli
