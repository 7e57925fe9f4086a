#pragma once

#include <memory>
#include <optional>
#include <string>

#include <cli/train/arguments.h>
#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/launch/process/outlive.h>
#include <stormo/server/worker/worker_session.h>
#include <stormo/train/elastic/elastic_session.h>
#include <stormo/train/prepare/recipe_task.h>
#include <stormo/train/recipe/recipe.h>
#include <stormo/train/worker/rank_session.h>
#include <stormo/transport/store/rendezvous.h>

namespace stormo::cli {

/// What every rank of a `stormo train` job must know.
struct TrainRun {
  const TrainArguments& words;              ///< borrowed
  train::ParsedRecipe parsed;               ///< with what the words change of it
  bool is_checked = false;                  ///< nothing is wrong with either
  std::optional<train::RecipeData> data{};  ///< where this process has read it already
  int threads = 0;             ///< of this process; 0: as the recipe or the environment says
  bool checks_memory = false;  ///< whether its ranks share the memory of their host
  bool launched = false;       ///< by this program, which reports how the job ended
  Rank rank = 0;               ///< of this process, as far as its launcher has said
  /// The ranks of its worker, where the job has server processes: by default only this one.
  transport::Rendezvous worker_ranks = {};
  /// Of this worker then; of several ranks the one that they have together.
  std::shared_ptr<server::WorkerSession> session = {};
  std::shared_ptr<train::RankSession> rank_session = {};  ///< the same, with several of them
  /// In an elastic job, once it is known, and the world of all of its epochs.
  std::optional<train::ElasticPlace> elastic = {};
  comm::EpochWorld* epochs = nullptr;
  std::shared_ptr<launch::Outliving> outliving = {};  ///< of a rank that does without its launcher
  std::string earlier{};  ///< newest checkpoint of an earlier run, which --overwrite removes
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
