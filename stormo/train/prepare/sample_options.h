#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <torch/types.h>

#include <stormo/data/image/image_folder.h>
#include <stormo/data/table/table.h>
#include <stormo/train/prepare/preprocessing.h>
#include <stormo/train/recipe/recipe.h>

// How samples are read according to a recipe; the same in training, evaluation and prediction.
namespace stormo::train {

/// Options of an "image_folder".
data::ImageFolderOptions image_options(const Recipe& recipe);

/// Options of "csv", "tsv" and "text_classification".
data::TableOptions table_options(const Recipe& recipe);

/// The rows of a table as a tensor of `dtype`, [rows, features], with each column scaled.
torch::Tensor feature_tensor(data::Table& table, const Preprocessing& preprocessing,
                             torch::ScalarType dtype);

/// How the bytes of images of that kind become numbers before prepare_images().
data::ImageOptions image_values(const Recipe& recipe);

/// `samples` of shape `shape`, normalised and, if `training`, augmented according to the recipe;
/// unchanged if the recipe has neither.
Result<std::shared_ptr<const data::Dataset>> prepare_images(
    const Recipe& recipe, std::shared_ptr<const data::Dataset> samples,
    const std::vector<std::int64_t>& shape, bool training);

}  // namespace stormo::train
