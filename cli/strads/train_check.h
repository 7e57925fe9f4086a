#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <cli/strads/options.h>
#include <stormo/base/status.h>
#include <stormo/train/blocks/block_checkpoint.h>
#include <stormo/train/prepare/recipe_task.h>
#include <stormo/train/recipe/recipe.h>

namespace stormo::cli {

/// The recipe with what the command line changes of it.
train::ParsedRecipe recipe_of(const StradsTrainArguments& a);

/// A run of which everything is right that can be found out before it starts.
struct SoundTraining {
  train::Recipe recipe;
  train::RecipeData data;
  train::Task task;
  std::int64_t rounds = 0;  ///< of the whole run
  std::int64_t every = 1;   ///< rounds between judgements
};

/// kInvalidArgument lists everything that is wrong, one line each. `ranks`: of the job; nothing:
/// those that the flags ask for. `look_at_checkpoints`: also at the folder of the checkpoints,
/// which this leaves as it was.
Result<SoundTraining> check_training(const train::ParsedRecipe& parsed,
                                     const StradsTrainArguments& a, std::optional<int> ranks,
                                     bool look_at_checkpoints);

train::BlockCheckpointOptions checkpoint_options(const StradsTrainArguments& a,
                                                 const SoundTraining& run);

/// How blocks are cut and chosen, as flags: what a run that goes on must have in common with the
/// one that it goes on from.
std::string schedule_text(const StradsTrainArguments& a, std::int64_t every);

}  // namespace stormo::cli
