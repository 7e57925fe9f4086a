// strategy.compression or strategy.period = "auto".
#include <cli/train/choice/traffic.h>

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

#include <cli/plan/ways.h>
#include <stormo/checkpoint/folder.h>
#include <stormo/checkpoint/format/manifest.h>
#include <stormo/comm/agreement/agreement.h>
#include <stormo/train/planner/traffic.h>
#include <stormo/train/recipe/recipe_changes.h>
#include <stormo/train/recipe/recipe_keys.h>

namespace stormo::cli {
namespace {

using train::OpenKeys;
using train::Recipe;

/// Of what is open in the recipe, the values in the newest checkpoint; all ranks get those that
/// rank 0 finds. A collective.
Status take_saved(const TrainRun& run, comm::Communicator& group, Recipe& recipe) {
  // -1: still open
  std::array<std::int64_t, 2> saved{-1, -1};
  if (group.rank() == 0) {
    Recipe kept = recipe;
    const auto path = checkpoint::newest_checkpoint(recipe.train.checkpoint.directory);
    const auto manifest = path.ok() ? checkpoint::check_checkpoint(*path, false)
                                    : Result<checkpoint::Manifest>(path.status());
    if (manifest.ok()) {  // else the Trainer says why
      train::keep_choices(kept, manifest->recipe_json, run.words.accept_changes);
      if (!kept.open.compression) saved[0] = kept.train.gradients.codec.kind;
      if (!kept.open.period) saved[1] = kept.train.strategy.period;
    }
  }
  STORMO_RETURN_IF_ERROR(group.all_reduce(saved, comm::ReduceOp::kMax));
  if (recipe.open.compression && saved[0] >= 0) {
    recipe.train.gradients.codec.kind = static_cast<Codec::Kind>(saved[0]);
    recipe.open.compression = false;
  }
  if (recipe.open.period && saved[1] >= 0) {
    recipe.train.strategy.period = static_cast<int>(saved[1]);
    recipe.open.period = false;
  }
  return {};
}

std::string open_key(const OpenKeys& open) {
  return open.compression ? "strategy.compression" : "strategy.period";
}

std::string chosen_value(const train::TrainerOptions& options, const OpenKeys& open) {
  return open.compression ? to_string(options.gradients.codec)
                          : fmt::to_string(options.strategy.period);
}

nlohmann::ordered_json event_of(const train::TrainerOptions& options, const OpenKeys& open) {
  nlohmann::ordered_json out = {{"event", "choice"}, {"key", open_key(open)}};
  if (open.compression) {
    out["value"] = to_string(options.gradients.codec.kind);
  } else {
    out["value"] = options.strategy.period;
  }
  return out;
}

}  // namespace

Result<std::optional<ChosenTraffic>> settle_traffic(const TrainRun& run, comm::Communicator& group,
                                                    const train::Task& task,
                                                    const data::Dataset& data,
                                                    train::TrainerOptions& options) {
  const OpenKeys open = run.parsed.recipe.open;
  if (!open.any()) return std::optional<ChosenTraffic>();
  Recipe recipe = run.parsed.recipe;
  if (recipe.train.resume) STORMO_RETURN_IF_ERROR(take_saved(run, group, recipe));
  std::string why = chosen_value(recipe.train, open) + ", as in the checkpoint";
  nlohmann::ordered_json event = event_of(recipe.train, open);
  event["kept"] = true;
  if (recipe.open.any()) {
    const Result<train::TrafficChoice> choice =
        train::choose_traffic(group, task, data, recipe.train, recipe.open);
    STORMO_RETURN_IF_ERROR(comm::check_agreement(
        group, {},
        choice.ok() ? Status() : choice.status().within(run.parsed.at(open_key(open)) + "auto")));
    recipe.train = with(std::move(recipe.train), choice->way());
    recipe.open = {};
    why = train::why(*choice, open);
    event = event_of(recipe.train, open);
    event["kept"] = false;
    event["why"] = why;
    event["ways"] = nlohmann::ordered_json::parse(ways_json(choice->ways));
  }
  leave_out_unused(recipe);
  options.gradients.codec = recipe.train.gradients.codec;
  options.strategy.period = recipe.train.strategy.period;
  options.recipe_json = train::to_json(recipe);
  return std::optional(
      ChosenTraffic{.line = fmt::format("{}=auto: {}", open_key(open), why), .json = event.dump()});
}

}  // namespace stormo::cli
