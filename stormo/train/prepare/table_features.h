#pragma once

#include <span>
#include <string>
#include <vector>

#include <torch/types.h>

#include <stormo/base/status.h>
#include <stormo/data/table/table.h>
#include <stormo/train/prepare/preprocessing.h>
#include <stormo/train/recipe/recipe.h>

// The columns of a table as the inputs of a model; the same in training, evaluation and prediction.
namespace stormo::train {

/// How the training part of a recipe of "csv" or "tsv" is read.
data::TableOptions table_options(const Recipe& recipe);
/// How other tables are read, when the training part is known.
data::TableOptions table_options(const Recipe& recipe, const Preprocessing& settled);

/// Mean and standard deviation of the numbers that are not NaN. A constant, up to the rounding of
/// its last digits, keeps its unit.
Preprocessing::Scale scale_of(std::span<const double> numbers);

/// What a training part says about the columns of all tables: names, texts, and numbers for missing
/// ones and for standardising. kInvalidArgument names a column without any number.
Status settle_columns(const Recipe& recipe, const data::Table& table, Preprocessing& settled);

/// The rows as a tensor of `dtype`, [rows, Preprocessing::features()]. kInvalidArgument names
/// `path`, line and column of a number that `dtype` cannot hold.
Result<torch::Tensor> feature_tensor(const data::Table& table, const Preprocessing& settled,
                                     torch::ScalarType dtype, const std::string& path);

/// A line for each column with texts that the training part does not have; `path`: of the table.
std::vector<std::string> unknown_texts(const data::Table& table, const Preprocessing& settled,
                                       const std::string& path);

/// Whether a number is finite in `dtype`, float32 or float64.
bool fits(double number, torch::ScalarType dtype);
/// "is beyond what float32 holds ..."
std::string beyond(torch::ScalarType dtype);

}  // namespace stormo::train
