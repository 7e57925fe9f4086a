#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <stormo/data/image/image_folder.h>
#include <stormo/train/prepare/preprocessing.h>
#include <stormo/train/recipe/recipe.h>

// How samples are read according to a recipe; the same in training, evaluation and prediction.
namespace stormo::train {

/// Options of an "image_folder".
data::ImageFolderOptions image_options(const Recipe& recipe);

data::OnError on_error(const Recipe& recipe);

/// Of arrays: samples are height, width, channels.
bool has_channels_last(const Recipe& recipe);

/// How the bytes of images of that kind become numbers before prepare_images().
data::ImageOptions image_values(const Recipe& recipe);

/// `samples` of shape `shape`, normalised and, if `training`, augmented according to the recipe;
/// unchanged if the recipe has neither.
Result<std::shared_ptr<const data::Dataset>> prepare_images(
    const Recipe& recipe, std::shared_ptr<const data::Dataset> samples,
    const std::vector<std::int64_t>& shape, bool training);

}  // namespace stormo::train
