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

data::OnError on_error(const Recipe& recipe) {
  return recipe.data.on_error == "skip" ? data::OnError::kSkip : data::OnError::kFail;
}

bool has_channels_last(const Recipe& recipe) { return recipe.data.layout == "channels_last"; }

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
  options.on_error = on_error(recipe);
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

}  // namespace stormo::train
