// Tables of numbers, as a recipe names them.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include <torch/types.h>

#include <stormo/data/classes.h>
#include <stormo/data/table/table.h>
#include <stormo/train/prepare/loading.h>
#include <stormo/train/prepare/table_features.h>
#include <stormo/train/prepare/target_hint.h>

namespace stormo::train {
namespace {

/// The labels as numbers in the unit that the loss compares them in; zeros where another rank has
/// them.
Result<torch::Tensor> number_targets(const data::Table& table, const Preprocessing& settled,
                                     torch::ScalarType dtype) {
  STORMO_ASSIGN_OR_RETURN(std::vector<double> numbers, data::label_numbers(table));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = settled.target.apply(numbers[i]);
    if (fits(numbers[i], dtype)) continue;
    return invalid_argument(
        fmt::format("line {}: label {} {}", table.lines[i], table.labels[i], beyond(dtype)));
  }
  return torch::tensor(numbers, torch::kFloat64);
}

/// The labels as what the recipe's loss compares outputs with; zeros where another rank has them.
Result<torch::Tensor> table_targets(const Recipe& recipe, const data::Table& table,
                                    const Preprocessing& settled) {
  if (table.labels.empty()) return torch::zeros({std::ssize(table.lines)}, torch::kInt64);
  if (recipe.loss == "mse") return number_targets(table, settled, scalar_type(recipe));
  std::vector<std::int64_t> targets;
  for (const std::string& label : table.labels) {
    STORMO_ASSIGN_OR_RETURN(const std::int64_t target, settled.classes.find(label));
    targets.push_back(target);
  }
  return torch::tensor(targets, torch::kInt64);
}

/// `path`: of the table, for messages.
Result<DatasetPtr> make_table(Loading& loading, const data::Table& table, const std::string& path) {
  const Recipe& recipe = loading.recipe;
  const Preprocessing& settled = loading.data.preprocessing;
  const auto targets = table_targets(recipe, table, settled);
  if (!targets.ok()) return targets.status().within(path);
  const torch::ScalarType dtype = scalar_type(recipe);
  STORMO_ASSIGN_OR_RETURN(torch::Tensor features, feature_tensor(table, settled, dtype, path));
  STORMO_ASSIGN_OR_RETURN(auto dataset,
                          data::TensorDataset::create(std::move(features), *targets, dtype,
                                                      target_kind(recipe), recipe.data.bins));
  const std::vector<std::string> unknown = unknown_texts(table, settled, path);
  loading.data.hints.insert(loading.data.hints.end(), unknown.begin(), unknown.end());
  return as_loaded(loading, std::move(dataset), table.ids);
}

/// What a training part says about all tables.
Status settle_table(Loading& loading, const data::Table& table) {
  const Recipe& recipe = loading.recipe;
  Preprocessing& settled = loading.data.preprocessing;
  STORMO_RETURN_IF_ERROR(settle_columns(recipe, table, settled));
  if (table.labels.empty()) return {};
  const std::string hint = target_hint(table, recipe.loss);
  if (!hint.empty()) loading.data.hints.push_back(hint);
  if (recipe.loss != "mse") {
    settled.classes = data::Classes::of(table.labels);
  } else if (recipe.data.standardise) {
    STORMO_ASSIGN_OR_RETURN(const std::vector<double> targets, data::label_numbers(table));
    settled.target = scale_of(targets);
  }
  return {};
}

/// Of columns that lie in several tables, those that this process reads. It has all `wanted` ones,
/// unless other ranks may have them.
Result<data::Table> read_parts(const Loading& loading, const std::string& name,
                               data::TableOptions options, bool has_all) {
  std::vector<data::Table> tables;
  options.one_of_several = true;
  for (const std::size_t i : parts_to_read(loading)) {
    options.labelled = static_cast<int>(i) == loading.recipe.train.strategy.labels;
    STORMO_ASSIGN_OR_RETURN(tables.emplace_back(),
                            data::read_table(path_of(loading.recipe, name, i), options));
  }
  Result<data::Table> table = data::join_tables(std::move(tables));
  if (!table.ok()) return table.status().within(shown_path(loading, name));
  for (const std::string& column : options.columns) {
    if (!has_all || std::ranges::count(table->columns, column) > 0) continue;
    return invalid_argument(
        fmt::format("{}: no part has a column \"{}\"", shown_path(loading, name), column));
  }
  return table;
}

/// A table with the columns of the training part, if they are settled.
Result<data::Table> read(const Loading& loading, const std::string& name) {
  const Recipe& recipe = loading.recipe;
  const Preprocessing& settled = loading.data.preprocessing;
  const bool settles = settled.columns.empty();
  data::TableOptions options = settles ? table_options(recipe) : table_options(recipe, settled);
  if (!recipe.data.parts.empty()) {
    return read_parts(loading, name, std::move(options), !loading.rank || !settles);
  }
  options.keeps_labels = is_labelled(loading);
  if (loading.rank && settles) {
    options.share = [&](std::size_t features) -> Result<std::pair<std::size_t, std::size_t>> {
      STORMO_ASSIGN_OR_RETURN(const plan::Share mine,
                              share_of(recipe, *loading.rank, static_cast<std::int64_t>(features)));
      return std::pair(static_cast<std::size_t>(mine.begin), static_cast<std::size_t>(mine.size()));
    };
  }
  return data::read_table(path_of(recipe, name), options);
}

}  // namespace

Status load_table(Loading& loading) {
  const Recipe& recipe = loading.recipe;
  if (loading.with_training || holds_out(recipe)) {
    const std::string path = shown_path(loading, recipe.data.train);
    STORMO_ASSIGN_OR_RETURN(const data::Table all, read(loading, recipe.data.train));
    const MakePart part = [&](const auto* rows, bool training) -> Result<DatasetPtr> {
      std::optional<data::Table> some;
      if (rows != nullptr) some = data::select_rows(all, *rows);
      const data::Table& table = some ? *some : all;
      if (training) STORMO_RETURN_IF_ERROR(settle_table(loading, table).within(path));
      return make_table(loading, table, path);
    };
    STORMO_RETURN_IF_ERROR(add_parts(loading, std::ssize(all.lines), part));
  }
  return load_splits(loading, [&](const std::string& name) -> Result<DatasetPtr> {
    STORMO_ASSIGN_OR_RETURN(const data::Table table, read(loading, name));
    return make_table(loading, table, shown_path(loading, name));
  });
}

}  // namespace stormo::train
