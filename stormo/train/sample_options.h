#pragma once

#include <torch/types.h>

#include <stormo/data/image_folder.h>
#include <stormo/data/table.h>
#include <stormo/train/recipe.h>

// How a recipe wants its samples read; the same for training and for what comes after it.
namespace stormo::train {

/// Of an "image_folder".
data::ImageFolderOptions image_options(const Recipe& recipe);

/// Of "csv", "tsv" and "text_classification".
data::TableOptions table_options(const Recipe& recipe);

/// The rows of a table as numbers of `dtype` [rows, features].
torch::Tensor feature_tensor(data::Table& table, torch::ScalarType dtype);

}  // namespace stormo::train
