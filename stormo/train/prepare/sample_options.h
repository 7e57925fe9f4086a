#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <torch/types.h>

#include <stormo/data/image/image_folder.h>
#include <stormo/data/table/table.h>
#include <stormo/train/prepare/preprocessing.h>
#include <stormo/train/recipe/recipe.h>

// How a recipe wants its samples read; the same for training and for what comes after it.
namespace stormo::train {

/// Of an "image_folder".
data::ImageFolderOptions image_options(const Recipe& recipe);

/// Of "csv", "tsv" and "text_classification".
data::TableOptions table_options(const Recipe& recipe);

/// The rows of a table as numbers of `dtype` [rows, features], each column in its scale.
torch::Tensor feature_tensor(data::Table& table, const Preprocessing& preprocessing,
                             torch::ScalarType dtype);

/// How the bytes of images of that kind become numbers before prepare_images().
data::ImageOptions image_values(const Recipe& recipe);

/// `samples` of shape `shape`, normalised as the recipe says and, when they are for `training`,
/// augmented; as they are where it says nothing.
Result<std::shared_ptr<const data::Dataset>> prepare_images(
    const Recipe& recipe, std::shared_ptr<const data::Dataset> samples,
    const std::vector<std::int64_t>& shape, bool training);

}  // namespace stormo::train
