// Tables of numbers, as a recipe names them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include <torch/types.h>

#include <stormo/data/classes.h>
#include <stormo/data/table/table.h>
#include <stormo/train/prepare/loading.h>
#include <stormo/train/prepare/sample_options.h>

namespace stormo::train {
namespace {

/// The labels as what the recipe's loss compares outputs with; zeros where another rank has them.
Result<torch::Tensor> table_targets(const Recipe& recipe, const data::Table& table,
                                    const Preprocessing& settled) {
  if (table.labels.empty()) return torch::zeros({std::ssize(table.lines)}, torch::kInt64);
  if (recipe.loss == "mse") {
    STORMO_ASSIGN_OR_RETURN(std::vector<double> numbers, data::label_numbers(table));
    for (double& number : numbers) number = settled.target.apply(number);
    return torch::tensor(numbers, torch::kFloat64);
  }
  std::vector<std::int64_t> targets;
  for (const std::string& label : table.labels) {
    STORMO_ASSIGN_OR_RETURN(const std::int64_t target, settled.classes.find(label));
    targets.push_back(target);
  }
  return torch::tensor(targets, torch::kInt64);
}

Result<DatasetPtr> make_table(const Loading& loading, data::Table table) {
  const Recipe& recipe = loading.recipe;
  const Preprocessing& settled = loading.data.preprocessing;
  STORMO_ASSIGN_OR_RETURN(const torch::Tensor targets, table_targets(recipe, table, settled));
  const torch::ScalarType dtype = scalar_type(recipe);
  STORMO_ASSIGN_OR_RETURN(
      auto dataset, data::TensorDataset::create(feature_tensor(table, settled, dtype), targets,
                                                dtype, target_kind(recipe), recipe.data.bins));
  return as_loaded(loading, std::move(dataset), table.ids);
}

/// Mean and standard deviation of every `stride`-th number; a constant keeps its unit.
Preprocessing::Scale scale_of(std::span<const double> numbers, std::size_t stride) {
  double sum = 0, squares = 0;
  const auto count = static_cast<double>((numbers.size() + stride - 1) / stride);
  for (std::size_t i = 0; i < numbers.size(); i += stride) sum += numbers[i];
  const double mean = sum / count;
  for (std::size_t i = 0; i < numbers.size(); i += stride) {
    squares += (numbers[i] - mean) * (numbers[i] - mean);
  }
  const double stddev = std::sqrt(squares / count);
  return {.mean = mean, .stddev = stddev > 0 && std::isfinite(stddev) ? stddev : 1};
}

/// What a training part says about all tables.
Status settle_table(const Recipe& recipe, const data::Table& table, Preprocessing& settled) {
  settled.columns = table.columns;
  settled.input = {std::ssize(table.columns)};
  const bool labelled = !table.labels.empty();
  const bool numbers = recipe.loss == "mse";
  if (labelled && !numbers) settled.classes = data::Classes::of(table.labels);
  if (!recipe.data.standardise) return {};
  for (std::size_t c = 0; c < table.columns.size(); ++c) {
    settled.scales.push_back(scale_of(std::span(table.features).subspan(c), table.columns.size()));
  }
  if (!labelled || !numbers) return {};
  STORMO_ASSIGN_OR_RETURN(const std::vector<double> targets, data::label_numbers(table));
  settled.target = scale_of(targets, 1);
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

/// A table with those of its columns that are `known`; none are before training has settled them.
Result<data::Table> read(const Loading& loading, const std::string& name,
                         const std::vector<std::string>& known) {
  const Recipe& recipe = loading.recipe;
  data::TableOptions options = table_options(recipe);
  const bool settles = known.empty();
  if (!settles) options.columns = known;
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
  Preprocessing& settled = loading.data.preprocessing;
  if (loading.with_training) {
    STORMO_ASSIGN_OR_RETURN(data::Table table, read(loading, recipe.data.train, {}));
    STORMO_RETURN_IF_ERROR(
        settle_table(recipe, table, settled).within(shown_path(loading, recipe.data.train)));
    STORMO_ASSIGN_OR_RETURN(loading.data.train, make_table(loading, std::move(table)));
  }
  const auto open = [&](const std::string& name) -> Result<DatasetPtr> {
    STORMO_ASSIGN_OR_RETURN(data::Table held_out, read(loading, name, settled.columns));
    auto dataset = make_table(loading, std::move(held_out));
    return dataset.ok() ? std::move(dataset) : dataset.status().within(shown_path(loading, name));
  };
  return load_splits(loading, open);
}

}  // namespace stormo::train
