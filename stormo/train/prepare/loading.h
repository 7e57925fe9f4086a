#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <stormo/base/status.h>
#include <stormo/data/dataset.h>
#include <stormo/data/file_tree.h>
#include <stormo/data/subset.h>
#include <stormo/data/tensor_dataset.h>
#include <stormo/plan/project.h>
#include <stormo/train/prepare/recipe_task.h>
#include <stormo/train/recipe/recipe.h>

// How the loaders of the kinds of data work together; for this room alone.
namespace stormo::train {

using DatasetPtr = std::shared_ptr<const data::Dataset>;

/// What is being loaded: the training part settles the preprocessing, unless it is known.
struct Loading {
  const Recipe& recipe;
  bool with_training;
  RecipeData data;
  /// With vertical sharding, the rank whose columns are loaded; empty: all.
  std::optional<plan::Part> rank = {};
};

/// Path of one part of the data; with data.parts, of those columns of it that part number
/// `columns` has.
std::string path_of(const Recipe& recipe, const std::string& name, std::size_t columns = 0);

/// The paths of what is read of that part of the data, for messages.
std::string shown_path(const Loading& loading, const std::string& name);

/// Takes a training part, or one that is held out, and notes what is in it. `files`: those that
/// were found for it, if any were looked for.
void add_part(Loading& loading, const std::string& split, DatasetPtr dataset,
              const data::FileCount* files = nullptr);

/// Opens the parts that are held out, as far as the recipe names files of them.
Status load_splits(Loading& loading,
                   const std::function<Result<DatasetPtr>(const std::string& name)>& open);

/// Whether samples of the training part are held out.
bool holds_out(const Recipe& recipe);
/// Makes a part of the samples of the training part's files; null: all of them are of it.
using MakePart =
    std::function<Result<DatasetPtr>(const std::vector<std::int64_t>* samples, bool training)>;
/// Takes the parts that those samples are of: the training part first.
Status add_parts(Loading& loading, std::int64_t samples, const MakePart& make,
                 const data::FileCount* files = nullptr);
/// The same of a dataset; each part is `prepared` by itself.
Status add_samples(
    Loading& loading, const DatasetPtr& all,
    const std::function<Result<DatasetPtr>(DatasetPtr part, bool training)>& prepared,
    const data::FileCount* files = nullptr);

/// prepare_images() in the shape that training has settled.
Result<DatasetPtr> prepare(const Loading& loading, DatasetPtr samples, bool training);

data::TensorDataset::Targets target_kind(const Recipe& recipe);

/// Whether what is loaded has the labels.
bool is_labelled(const Loading& loading);
/// The columns that a rank has of one table of `columns`; kInvalidArgument where some rank has
/// none, or the recipe's counts are of others.
Result<plan::Share> share_of(const Recipe& recipe, const plan::Part& rank, std::int64_t columns);
/// The numbers of the entries of data.parts that are read.
std::vector<std::size_t> parts_to_read(const Loading& loading);
/// `samples` as what a rank has of them; whole ones stay. `ids`: of the rows, if they have some.
DatasetPtr as_loaded(const Loading& loading, DatasetPtr samples,
                     const std::vector<std::string>& ids = {});

Status load_table(Loading& loading);
Status load_tensors(Loading& loading);

}  // namespace stormo::train
