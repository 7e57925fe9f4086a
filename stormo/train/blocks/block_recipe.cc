#include <stormo/train/blocks/block_recipe.h>

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include <stormo/train/recipe/recipe_schema.h>

namespace stormo::train {
namespace {

/// Keys and beginnings of keys that mean what they mean for synchronous training.
constexpr std::string_view kSupported[] = {"schema_version",
                                           "name",
                                           "precision",
                                           "threads",
                                           "model.",
                                           "data.",
                                           "train.steps",
                                           "train.epochs",
                                           "train.loss",
                                           "train.seed",
                                           "train.global_batch",
                                           "optimizer.lr",
                                           "checkpoint.access",
                                           "checkpoint.directory",
                                           "checkpoint.every",
                                           "checkpoint.keep"};
/// Of these, the ones that mean nothing here.
constexpr std::string_view kUnsupported[] = {"model.sparse",          "data.parts",
                                             "data.sharding",         "data.bins",
                                             "data.balance_by_speed", "data.threads"};

bool is_supported(std::string_view key) {
  const auto begins = [key](std::string_view part) { return key.starts_with(part); };
  return std::ranges::any_of(kSupported, begins) && std::ranges::none_of(kUnsupported, begins);
}

}  // namespace

std::vector<std::string> check_block_recipe(const ParsedRecipe& parsed) {
  const Recipe defaults;
  std::vector<std::string> wrong;
  for (const RecipeField& field : recipe_fields()) {
    if (!parsed.origins.contains(field.key) || is_supported(field.key)) continue;
    const std::string value = format_value(field, parsed.recipe);
    const std::string is_default = format_value(field, defaults);
    if (value == is_default) continue;
    wrong.push_back(fmt::format("{}training by blocks has no {}; leave it out, or write {}={}",
                                parsed.at(field.key), value, field.key, is_default));
  }
  if (parsed.recipe.precision != "float32" && parsed.recipe.precision != "float64") {
    wrong.push_back(parsed.at("precision") + "training by blocks has float32 and float64 only");
  }
  return wrong;
}

double bytes_of_conflicts(const torch::nn::Module& module, std::int64_t units) {
  constexpr double kBytes = 24;  // of a pair: found, of either block
  double pairs = 0;              // of blocks of the same parameter
  for (const torch::Tensor& p : module.parameters()) {
    if (p.dim() < 2) continue;
    const auto blocks = static_cast<double>((p.size(0) + units - 1) / units);
    pairs += blocks * (blocks - 1) / 2;
  }
  return kBytes * pairs;
}

}  // namespace stormo::train
