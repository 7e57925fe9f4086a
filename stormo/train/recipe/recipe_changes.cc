#include <stormo/train/recipe/recipe_changes.h>

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include <stormo/base/check.h>
#include <stormo/base/json_depth.h>
#include <stormo/parallel/pipeline/pipeline_schedule.h>
#include <stormo/parallel/strategy/strategy_table.h>
#include <stormo/train/recipe/recipe_keys.h>
#include <stormo/train/recipe/recipe_schema.h>

namespace stormo::train {
namespace {

using Json = nlohmann::json;

struct Rule {
  std::string_view key;  ///< or the beginning of keys, up to a dot
  OnResume rule;
};

/// The first row that fits counts. Whoever adds a key to the schema decides here.
constexpr Rule kRules[] = {
    {"schema_version", OnResume::kFree},
    {"name", OnResume::kRefused},
    {"precision", OnResume::kRefused},
    {"threads", OnResume::kFree},
    {"model.", OnResume::kRefused},
    // the content that is found there is compared by itself
    {"data.path", OnResume::kFree},
    {"data.train", OnResume::kFree},
    {"data.validation", OnResume::kFree},
    {"data.test", OnResume::kFree},
    {"data.parts", OnResume::kFree},
    {"data.on_error", OnResume::kFree},
    {"data.threads", OnResume::kFree},
    {"data.balance_by_speed", OnResume::kFree},
    {"data.", OnResume::kNamed},
    {"sample.", OnResume::kFree},
    {"train.steps", OnResume::kFree},
    {"train.epochs", OnResume::kFree},
    {"train.log_every", OnResume::kFree},
    {"train.eval_every", OnResume::kFree},
    {"train.verify_every", OnResume::kFree},
    {"train.verify_state", OnResume::kFree},
    {"train.patience", OnResume::kFree},
    {"train.micro_batches", OnResume::kFree},
    {"train.recompute", OnResume::kFree},
    {"train.init_", OnResume::kFree},
    {"train.", OnResume::kNamed},
    {"elastic.", OnResume::kFree},
    {"optimizer.", OnResume::kNamed},
    {"learning_rate.", OnResume::kNamed},
    {"strategy.kind", OnResume::kNamed},
    {"strategy.schedule", OnResume::kNamed},
    {"strategy.compression", OnResume::kNamed},
    {"strategy.density", OnResume::kNamed},
    {"strategy.momentum_correction", OnResume::kNamed},
    {"strategy.matrix_rank", OnResume::kNamed},
    {"strategy.policy", OnResume::kNamed},
    {"strategy.bound", OnResume::kNamed},
    {"strategy.n", OnResume::kNamed},
    {"strategy.backups", OnResume::kNamed},
    {"strategy.compensation", OnResume::kNamed},
    {"strategy.lambda", OnResume::kNamed},
    {"strategy.lambda_decay", OnResume::kNamed},
    {"strategy.updates", OnResume::kNamed},
    {"strategy.fetch_every", OnResume::kNamed},
    {"strategy.push_every", OnResume::kNamed},
    {"strategy.period", OnResume::kNamed},
    {"strategy.local_period", OnResume::kNamed},
    {"strategy.weight_stashing", OnResume::kNamed},
    {"strategy.max_distance", OnResume::kNamed},
    {"strategy.period_seconds", OnResume::kNamed},
    {"strategy.outer", OnResume::kNamed},
    {"strategy.outer_lr", OnResume::kNamed},
    {"strategy.outer_momentum", OnResume::kNamed},
    {"strategy.average_state", OnResume::kNamed},
    {"strategy.state_periods", OnResume::kNamed},
    {"strategy.fragments", OnResume::kNamed},
    {"strategy.delay", OnResume::kNamed},
    {"strategy.mixing", OnResume::kNamed},
    {"strategy.topology", OnResume::kNamed},
    {"strategy.gradient_tracking", OnResume::kNamed},
    {"strategy.distillation", OnResume::kNamed},
    {"strategy.temperature", OnResume::kNamed},
    {"strategy.burn_in", OnResume::kNamed},
    {"strategy.moving_rate", OnResume::kNamed},
    {"strategy.", OnResume::kFree},
    {"checkpoint.", OnResume::kFree},
};

/// Whether each step gives the numbers of one process.
bool trains_as_one(std::string_view key, const std::string& choice) {
  if (key == "strategy.schedule") {
    const Result<parallel::PipelineSchedule> schedule = parallel::pipeline_schedule(choice);
    return schedule.ok() && !schedule->overlap;
  }
  const auto rows = parallel::strategy_rows();
  const auto row = std::ranges::find(rows, choice, &parallel::StrategyRow::name);
  return key == "strategy.kind" && row != rows.end() && row->trains_as_one;
}

/// Choices of one key that train the same.
bool trains_alike(std::string_view key, const Json& before, const Json& now) {
  return before.is_string() && now.is_string() &&
         trains_as_one(key, before.get_ref<const std::string&>()) &&
         trains_as_one(key, now.get_ref<const std::string&>());
}

Json parse(std::string_view text) {
  Json json = json_nests_within(text) ? Json::parse(text, nullptr, false) : Json();
  return json.is_object() ? json : Json::object();
}

/// Null where there is none.
Json value_of(const Json& recipe, std::string_view key) {
  const std::size_t dot = key.find('.');
  const Json* at = &recipe;
  if (dot != std::string_view::npos) {
    const auto section = recipe.find(std::string(key.substr(0, dot)));
    if (section == recipe.end() || !section->is_object()) return nullptr;
    at = &*section;
    key.remove_prefix(dot + 1);
  }
  const auto value = at->find(std::string(key));
  return value == at->end() ? Json(nullptr) : *value;
}

/// Of the key that this one was before; null where there is none.
Json former_value(const Json& recipe, std::string_view key) {
  const auto former = std::ranges::find(former_keys(), key, &FormerKey::now);
  if (former == former_keys().end()) return nullptr;
  Json value = value_of(recipe, former->key);
  return value == former->nothing ? Json(former->nothing_now) : value;
}

bool is_accepted(std::string_view key, std::span<const std::string> accepted) {
  return std::ranges::any_of(accepted, [key](const std::string& name) {
    return name == key || key.starts_with(name + ".");
  });
}

bool is_named(const RecipeChange& change, const ParsedRecipe* parsed,
              std::span<const std::string> accepted) {
  if (parsed != nullptr) {
    const auto origin = parsed->origins.find(change.key);
    if (origin != parsed->origins.end() && origin->second == "command line") return true;
  }
  return is_accepted(change.key, accepted);
}

}  // namespace

OnResume on_resume(std::string_view key) {
  const auto* row = std::ranges::find_if(kRules, [key](const Rule& r) {
    return r.key == key ||
           ((r.key.ends_with('.') || r.key.ends_with('_')) && key.starts_with(r.key));
  });
  STORMO_CHECK(row != std::end(kRules), "a key of the schema without a rule");
  return row->rule;
}

std::vector<RecipeChange> recipe_changes(std::string_view before, std::string_view now) {
  static const Json defaults = parse(to_json(Recipe()));
  const Json old = parse(before), own = parse(now);
  std::vector<RecipeChange> changes;
  if (old.empty() || own.empty()) return changes;  // of programs and imports
  const Json kind_before = value_of(old, "strategy.kind"),
             kind_now = value_of(own, "strategy.kind");
  for (const RecipeField& field : recipe_fields()) {
    Json a = value_of(old, field.key);
    if (a.is_null()) a = former_value(old, field.key);
    if (a.is_null()) a = value_of(defaults, field.key);
    const Json b = value_of(own, field.key);
    if (a == b) continue;
    OnResume rule = on_resume(field.key);
    // what belongs to another kind goes with it
    const bool other_kind = field.key.starts_with("strategy.") && kind_before != kind_now;
    if (trains_alike(field.key, a, b) || (other_kind && field.key != "strategy.kind")) {
      rule = OnResume::kFree;
    }
    changes.push_back({std::string(field.key), a.dump(), b.dump(), rule});
  }
  return changes;
}

void keep_choices(Recipe& recipe, std::string_view saved, std::span<const std::string> accepted) {
  if (!recipe.open.any()) return;
  const Json values = parse(saved);
  const ParsedRecipe before = restore_recipe(saved, {});
  const parallel::Strategy& strategy = before.recipe.train.strategy;
  for (const RecipeField& field : recipe_fields()) {
    if (!is_open(field, recipe) || is_accepted(field.key, accepted)) continue;
    const bool was_used = parallel::uses_key(strategy, field.key.substr(field.key.find('.') + 1));
    const bool is_known = !value_of(values, field.key).is_null() && before.errors.empty();
    if (!was_used || !is_known) continue;
    copy_value(field, before.recipe, recipe);
  }
  leave_out_unused(recipe);
  recipe.train.recipe_json = to_json(recipe);
}

Status check_changes(std::span<const RecipeChange> changes, const ParsedRecipe* parsed,
                     std::span<const std::string> accepted) {
  std::string wrong;
  const auto add = [&wrong](const std::string& line) {
    wrong += (wrong.empty() ? "" : "\n") + line;
  };
  const bool program = parsed == nullptr;
  const std::string_view ours = program ? "program" : "recipe";
  std::string unnamed;
  for (const RecipeChange& c : changes) {
    if (c.rule == OnResume::kRefused) {
      add(fmt::format("it has {} {}, this {} {}; {}", c.key, c.before, ours, c.now,
                      program ? "choose another checkpoint.directory"
                              : "choose the run's own folder with --checkpoint DIR, or begin a new "
                                "run with its weights: --init-from CHECKPOINT"));
    } else if (c.rule == OnResume::kNamed && !is_named(c, parsed, accepted)) {
      unnamed += (unnamed.empty() ? "" : ",") + c.key;
      add(fmt::format("{} was {}, the {} now says {}", c.key, c.before, ours, c.now));
    }
  }
  if (!unnamed.empty()) {
    add(fmt::format(
        "the run would go on as another one; give it the old values, or name the keys that "
        "may change, {} {}",
        program ? "by Trainer::accept_changes():" : "on the command line or by --accept-changes",
        unnamed));
  }
  return wrong.empty() ? ok_status() : invalid_argument(wrong);
}

}  // namespace stormo::train
