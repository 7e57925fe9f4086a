#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/train/prepare/recipe_task.h>
#include <stormo/train/recipe/recipe.h>
#include <stormo/train/worker/rank_session.h>
#include <stormo/transport/store/rendezvous.h>

namespace stormo::cli {

/// What every rank of a `stormo train` job must know.
struct TrainRun {
  train::Recipe recipe;
  std::vector<std::string> left_out{};        ///< of the recipe, see ParsedRecipe
  std::string strategy_key{};                 ///< where the recipe names it: "FILE:7:3: KEY: "
  std::vector<std::string> accept_changes{};  ///< with --resume: what may differ
  std::optional<train::RecipeData> data{};    ///< where this process has read it already
  std::string engine = "stormo";              ///< see join_world
  bool json = false;
  std::string trace;           ///< file to write; empty: none
  std::string log_csv{};       ///< the same
  int threads = 0;             ///< of this process; 0: as the recipe or the environment says
  bool checks_memory = false;  ///< whether its ranks share the memory of their host
  bool launched = false;       ///< by this program, which reports how the job ended
  Rank rank = 0;               ///< of this process, as far as its launcher has said
  /// The ranks of its worker, where the job has server processes: by default only this one.
  transport::Rendezvous worker_ranks = {};
  /// With several of them the session that they have together, as in `recipe`.
  std::shared_ptr<train::RankSession> rank_session = {};
  std::string earlier{};  ///< newest checkpoint of an earlier run, which --overwrite removes
  /// What is wrong with recipe and flags of this process, of `ranks`: then no rank trains.
  std::function<std::vector<std::string>(Rank rank, int ranks)> find_problems = [](Rank, int) {
    return std::vector<std::string>();
  };
};

/// The newest checkpoint of this run that this process can see; empty: there is none. Only when the
/// run has begun.
std::string newest_checkpoint_of(const TrainRun& run);

/// Whether a process of a run with server processes fails because the first worker has, which has
/// said why where the launcher shows it.
bool was_told(const TrainRun& run, const Status& failure);

/// Trains as one rank of the job that the environment describes, or alone; returns the exit code.
int run_rank(const TrainRun& run);

}  // namespace stormo::cli
