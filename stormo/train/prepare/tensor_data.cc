// Arrays, as a recipe names them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <utility>

#include <torch/types.h>

#include <stormo/data/npy.h>
#include <stormo/model/registry.h>
#include <stormo/train/prepare/loading.h>
#include <stormo/train/prepare/sample_options.h>
#include <stormo/train/prepare/target_hint.h>
#include <stormo/train/state/safetensors.h>

namespace stormo::train {
namespace {

using TensorDatasetPtr = std::shared_ptr<const data::TensorDataset>;

bool is_vertical(const Recipe& recipe) {
  return recipe.train.strategy.kind == Strategy::Kind::kVertical;
}

/// Images of which the channels come first, unless the shape says that they come last.
Status check_layout(const Recipe& recipe, const data::TensorDataset& tensors) {
  constexpr std::int64_t kMostChannels = 4;  // red, green, blue and transparency
  const DataOptions& d = recipe.data;
  const std::vector<std::int64_t>& shape = tensors.sample_shape();
  const bool has_images = model::takes_images(recipe.model.kind) || !d.mean.empty() ||
                          !d.stddev.empty() || d.flip || d.crop > 0;
  if (d.layout != "auto" || !has_images || shape.size() != 3) return {};
  const bool last =
      shape[2] <= kMostChannels && shape[0] > kMostChannels && shape[1] > kMostChannels;
  if (!last) return {};
  return invalid_argument(fmt::format(
      "images of shape [{}] would have {} channels of {} x {}: if it is height, width, channels, "
      "write data.layout = \"channels_last\", else \"channels_first\"",
      fmt::join(shape, ", "), shape[0], shape[1], shape[2]));
}

/// The inputs in a folder of vertical sharding, as rows of numbers: those of this rank.
Result<data::NpyArray> open_columns(const Loading& loading, const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / "images.npy").string();
  STORMO_ASSIGN_OR_RETURN(const data::NpyArray all, data::NpyArray::open(path));
  const std::int64_t numbers = all.sample_elements();
  if (numbers == 0) {
    return invalid_argument(fmt::format("{} has shape [{}]; give rows of numbers, [samples, ...]",
                                        path, fmt::join(all.shape(), ", ")));
  }
  plan::Share mine{0, numbers};
  if (loading.rank && loading.recipe.data.parts.empty()) {
    auto share = share_of(loading.recipe, *loading.rank, numbers);
    if (!share.ok()) return share.status().within(path);
    mine = *share;
  }
  return all.columns(mine.begin, mine.size());
}

/// The labels in a folder; zeros where another rank has them.
Result<torch::Tensor> load_labels(const std::string& folder, std::int64_t samples, bool labelled,
                                  bool one_of_several) {
  const std::filesystem::path path = std::filesystem::path(folder) / "labels.npy";
  if (labelled) {
    STORMO_ASSIGN_OR_RETURN(const data::NpyArray labels, data::NpyArray::open(path.string()));
    return labels.load();
  }
  std::error_code ignored;
  if (!one_of_several || !std::filesystem::exists(path, ignored)) {
    return torch::zeros({samples}, torch::kInt64);
  }
  return invalid_argument(fmt::format(
      "{}: another part has labels too; remove them from one of them, or name the part that has "
      "them by strategy.labels",
      path.string()));
}

/// All columns of several folders, in memory, as the numbers that ranks would make of them.
Result<TensorDatasetPtr> join_parts(const Loading& loading, const std::string& name) {
  const Recipe& recipe = loading.recipe;
  std::vector<torch::Tensor> columns;
  torch::Tensor targets;
  for (const std::size_t i : parts_to_read(loading)) {
    const std::string folder = path_of(recipe, name, i);
    const bool labelled = static_cast<int>(i) == recipe.train.strategy.labels;
    STORMO_ASSIGN_OR_RETURN(data::NpyArray array, open_columns(loading, folder));
    const std::int64_t rows = array.shape().front();
    STORMO_ASSIGN_OR_RETURN(const torch::Tensor labels, load_labels(folder, rows, labelled, true));
    if (labelled) targets = labels;
    auto part = data::TensorDataset::create(std::move(array), labels, scalar_type(recipe),
                                            target_kind(recipe));
    if (!part.ok()) return part.status().within(folder);
    if (!columns.empty() && rows != columns.front().size(0)) {
      return invalid_argument(
          fmt::format("{} has {} rows, the first part {}; all parts must have the same samples",
                      folder, rows, columns.front().size(0)));
    }
    std::vector<std::int64_t> all(static_cast<std::size_t>(rows));
    std::iota(all.begin(), all.end(), std::int64_t{0});
    columns.push_back((*part)->get(all, 0).input);
  }
  return data::TensorDataset::create(torch::cat(columns, 1), targets, scalar_type(recipe),
                                     target_kind(recipe));
}

/// What a rank reads of a folder with images.npy and labels.npy, or all of it.
Result<TensorDatasetPtr> open_npy(const Loading& loading, const std::string& name) {
  const Recipe& recipe = loading.recipe;
  const bool several = !recipe.data.parts.empty();
  if (several && !loading.rank) return join_parts(loading, name);
  const std::string folder = path_of(recipe, name, several ? parts_to_read(loading).front() : 0);
  auto images = is_vertical(recipe)
                    ? open_columns(loading, folder)
                    : data::NpyArray::open((std::filesystem::path(folder) / "images.npy").string());
  STORMO_RETURN_IF_ERROR(images.status());
  const std::int64_t samples = images->shape().empty() ? 0 : images->shape().front();
  STORMO_ASSIGN_OR_RETURN(const torch::Tensor targets,
                          load_labels(folder, samples, is_labelled(loading), several));
  auto dataset =
      data::TensorDataset::create(std::move(images).value(), targets, scalar_type(recipe),
                                  target_kind(recipe), recipe.data.bins, has_channels_last(recipe));
  return dataset.ok() ? std::move(dataset) : dataset.status().within(folder);
}

/// A folder of arrays, or inputs and targets of a safetensors file.
Result<TensorDatasetPtr> open_tensors(const Loading& loading, const std::string& name) {
  const Recipe& recipe = loading.recipe;
  if (recipe.data.kind == "npy") return open_npy(loading, name);
  const std::string path = path_of(recipe, name);
  STORMO_ASSIGN_OR_RETURN(const TensorMap tensors, read_safetensors(path));
  for (const char* tensor : {"inputs", "targets"}) {
    if (tensors.contains(tensor)) continue;
    return invalid_argument(
        fmt::format("{} has no tensor \"{}\"; save inputs and targets", path, tensor));
  }
  auto dataset =
      data::TensorDataset::create(tensors.at("inputs"), tensors.at("targets"), scalar_type(recipe),
                                  target_kind(recipe), recipe.data.bins, has_channels_last(recipe));
  return dataset.ok() ? std::move(dataset) : dataset.status().within(path);
}

}  // namespace

Status load_tensors(Loading& loading) {
  const Recipe& recipe = loading.recipe;
  Preprocessing& settled = loading.data.preprocessing;
  std::int64_t classes = settled.classes.size();
  const auto open = [&](const std::string& name) -> Result<TensorDatasetPtr> {
    STORMO_ASSIGN_OR_RETURN(TensorDatasetPtr tensors, open_tensors(loading, name));
    if (settled.input.empty()) {
      settled.input = tensors->sample_shape();
    } else if (tensors->sample_shape() != settled.input) {
      return invalid_argument(fmt::format(
          "{}: samples of shape [{}], the training part has [{}]", shown_path(loading, name),
          fmt::join(tensors->sample_shape(), ", "), fmt::join(settled.input, ", ")));
    }
    STORMO_RETURN_IF_ERROR(check_layout(recipe, *tensors).within(shown_path(loading, name)));
    if (is_labelled(loading)) classes = std::max(classes, tensors->classes());
    return tensors;
  };
  const auto prepared = [&](DatasetPtr part, bool training) -> Result<DatasetPtr> {
    STORMO_ASSIGN_OR_RETURN(DatasetPtr samples, prepare(loading, std::move(part), training));
    return as_loaded(loading, std::move(samples));
  };
  if (loading.with_training || holds_out(recipe)) {
    STORMO_ASSIGN_OR_RETURN(const TensorDatasetPtr all, open(recipe.data.train));
    const std::string hint =
        is_labelled(loading) ? target_hint(all->target_numbers(), recipe.loss) : "";
    if (!hint.empty()) loading.data.hints.push_back(hint);
    STORMO_RETURN_IF_ERROR(add_samples(loading, all, prepared));
  }
  STORMO_RETURN_IF_ERROR(load_splits(loading, [&](const std::string& name) -> Result<DatasetPtr> {
    STORMO_ASSIGN_OR_RETURN(TensorDatasetPtr tensors, open(name));
    return prepared(std::move(tensors), false);
  }));
  settled.classes = data::Classes::numbers(classes);
  return {};
}

}  // namespace stormo::train
