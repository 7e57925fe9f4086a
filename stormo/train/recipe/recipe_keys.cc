#include <stormo/train/recipe/recipe_keys.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <variant>

#include <stormo/base/text.h>
#include <stormo/parallel/strategy/strategy_table.h>

namespace stormo::train {
namespace {

constexpr std::string_view kStrategy = "strategy.", kKind = "strategy.kind";

/// The choices of one key that use another one. Which strategies do is in their rows.
struct Use {
  std::string_view key, choice_of, users;
};
constexpr Use kUses[] = {
    {"strategy.density", "strategy.compression", "top_k threshold random_k auto"},
    {"strategy.momentum_correction", "strategy.compression", "top_k threshold random_k"},
    {"strategy.matrix_rank", "strategy.compression", "powersgd auto"},
    {"strategy.bound", "strategy.policy", "ssp"},
    {"strategy.n", "strategy.policy", "n_softsync"},
    {"strategy.portions", "strategy.policy", "portions"},
    {"strategy.backups", "strategy.policy", "backup_workers"},
    {"strategy.warm_start", "strategy.policy", "async"},
    {"strategy.period", "strategy.policy", "average"},
    {"strategy.lambda", "strategy.compensation", "delay_compensated adaptive_delay_compensated"},
    {"strategy.lambda_decay", "strategy.compensation", "adaptive_delay_compensated"},
};

/// Of a key with choices.
std::string choice(std::string_view key, const Recipe& recipe) {
  const RecipeField* field = find_field(key);
  STORMO_CHECK(field != nullptr, "a key that the schema lacks");
  const std::string quoted = format_value(*field, recipe);
  return quoted.substr(1, quoted.size() - 2);
}

bool uses(const Recipe& recipe, std::string_view key) {
  return parallel::uses_key(recipe.train.strategy, key.substr(kStrategy.size()));
}

}  // namespace

std::vector<UnusedKey> unused_keys(const Recipe& recipe) {
  static const Recipe defaults;
  std::vector<UnusedKey> out;
  for (const RecipeField& field : recipe_fields()) {
    if (!field.key.starts_with(kStrategy)) continue;
    if (format_value(field, recipe) == format_value(field, defaults)) continue;
    const auto kinds = parallel::strategies_with(field.key.substr(kStrategy.size()));
    const auto* use = std::ranges::find(kUses, field.key, &Use::key);
    if (!kinds.empty() && !uses(recipe, field.key)) {
      out.push_back({&field, kKind, kinds});
    } else if (use != std::end(kUses) && uses(recipe, use->choice_of)) {
      // a strategy without the choice uses the key in another way
      const std::vector<std::string_view> users = split(use->users, ' ');
      if (std::ranges::count(users, choice(use->choice_of, recipe)) > 0) continue;
      out.push_back({&field, use->choice_of, users});
    }
  }
  return out;
}

void leave_out(const RecipeField& field, Recipe& recipe) { copy_value(field, Recipe(), recipe); }

void leave_out_unused(Recipe& recipe) {
  for (const UnusedKey& key : unused_keys(recipe)) leave_out(*key.field, recipe);
}

std::string to_string(const UnusedKey& key) {
  return fmt::format("{} (of {}={})", key.field->key, key.choice_of, fmt::join(key.users, ", "));
}

Status check_keys(const Recipe& recipe) {
  std::vector<std::string> keys;
  for (const UnusedKey& key : unused_keys(recipe)) keys.push_back(to_string(key));
  if (keys.empty()) return {};
  const std::string_view them = keys.size() == 1 ? "it" : "them";
  return refuse(recipe.train.strategy,
                fmt::format("does not use {}; leave {} out, or choose what uses {}",
                            fmt::join(keys, ", "), them, them));
}

Status check_keys(const TrainerOptions& options) {
  Recipe recipe;
  recipe.train = options;
  for (const UnusedKey& key : unused_keys(recipe)) {
    if (key.choice_of != kKind) leave_out(*key.field, recipe);
  }
  return check_keys(recipe);
}

}  // namespace stormo::train
