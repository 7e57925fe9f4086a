#include <stormo/train/prepare/sample_options.h>

#include <algorithm>
#include <thread>
#include <utility>

#include <stormo/data/image/image_transform.h>
#include <stormo/train/prepare/recipe_task.h>

namespace stormo::train {
namespace {

bool normalises(const DataOptions& options) {
  return !options.mean.empty() || !options.stddev.empty();
}

}  // namespace

data::ImageOptions image_values(const Recipe& recipe) {
  data::ImageOptions values{.dtype = scalar_type(recipe)};
  if (recipe.data.kind == "image_folder") values.mean = values.stddev = 0.5;
  if (!normalises(recipe.data)) return values;
  values.mean = 0;  // prepare_images() does it, by channel
  values.stddev = 1;
  return values;
}

data::ImageFolderOptions image_options(const Recipe& recipe) {
  const std::vector<std::int64_t>& image = recipe.data.image;
  data::ImageFolderOptions options{.channels = image[0], .height = image[1], .width = image[2]};
  options.values = image_values(recipe);
  if (recipe.data.on_error == "skip") {
    options.on_error = data::ImageFolderOptions::OnError::kSkip;
  }
  options.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return options;
}

Result<std::shared_ptr<const data::Dataset>> prepare_images(
    const Recipe& recipe, std::shared_ptr<const data::Dataset> samples,
    const std::vector<std::int64_t>& shape, bool training) {
  const DataOptions& o = recipe.data;
  const bool augments = training && (o.flip || o.crop > 0);
  if (!augments && !normalises(o)) return samples;
  data::ImageTransformOptions options{.mean = o.mean, .stddev = o.stddev};
  if (augments) {
    options.flip = o.flip;
    options.crop = o.crop;
    options.seed = recipe.train.seed;
  }
  const bool bytes = o.kind == "mnist" || o.kind == "image_folder";
  const data::ImageOptions values = image_values(recipe);
  if (bytes) options.border = (0 - values.mean) / values.stddev;  // black
  STORMO_ASSIGN_OR_RETURN(auto prepared, data::TransformedImages::create(std::move(samples), shape,
                                                                         std::move(options)));
  return std::shared_ptr<const data::Dataset>(std::move(prepared));
}

data::TableOptions table_options(const Recipe& recipe) {
  return {
      .form = {.separator = recipe.data.kind == "csv" ? ',' : '\t', .header = recipe.data.header},
      .label = recipe.data.label,
      .columns = recipe.data.columns,
      .id = recipe.data.id};
}

torch::Tensor feature_tensor(data::Table& table, const Preprocessing& preprocessing,
                             torch::ScalarType dtype) {
  const std::size_t columns = table.columns.size();
  const std::vector<Preprocessing::Scale>& scales = preprocessing.scales;
  for (std::size_t i = 0; !scales.empty() && i < table.features.size(); ++i) {
    table.features[i] = scales[i % columns].apply(table.features[i]);
  }
  return torch::from_blob(table.features.data(),
                          {std::ssize(table.lines), static_cast<std::int64_t>(columns)},
                          torch::kFloat64)
      .to(dtype, /*non_blocking=*/false, /*copy=*/true);
}

}  // namespace stormo::train
