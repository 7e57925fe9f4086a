#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <numeric>
#include <span>
#include <thread>
#include <utility>

#include <stormo/data/classes.h>
#include <stormo/data/image_dataset.h>
#include <stormo/data/image_folder.h>
#include <stormo/data/npy.h>
#include <stormo/data/table.h>
#include <stormo/data/tensor_dataset.h>
#include <stormo/data/text.h>
#include <stormo/data/text_classification.h>
#include <stormo/data/text_windows.h>
#include <stormo/train/recipe_task.h>
#include <stormo/train/safetensors.h>

namespace stormo::train {
namespace {

using DatasetPtr = std::shared_ptr<const data::Dataset>;

/// Path of one part of the data.
std::string part(const Recipe& recipe, const std::string& name) {
  return name.empty() ? recipe.data.path
                      : (std::filesystem::path(recipe.data.path) / name).string();
}

/// Opens the parts that are held out, as far as the recipe names any.
Status load_splits(const Recipe& recipe,
                   const std::function<Result<DatasetPtr>(const std::string&)>& open,
                   RecipeData& data) {
  for (const auto& [split, name] :
       {std::pair("validation", recipe.data.validation), std::pair("test", recipe.data.test)}) {
    if (name.empty()) continue;
    STORMO_ASSIGN_OR_RETURN(DatasetPtr dataset, open(part(recipe, name)));
    data.splits.push_back({.name = split, .dataset = std::move(dataset)});
  }
  return {};
}

Result<RecipeData> load_mnist(const Recipe& recipe) {
  const data::ImageOptions options{.dtype = scalar_type(recipe)};
  const std::string& path = recipe.data.path;
  STORMO_ASSIGN_OR_RETURN(auto train, data::load_mnist(path, data::MnistSplit::kTrain, options));
  STORMO_ASSIGN_OR_RETURN(auto test, data::load_mnist(path, data::MnistSplit::kTest, options));
  RecipeData images;
  images.train = std::move(train);
  images.splits = {{.name = "test", .dataset = std::move(test)}};
  images.input = {1, 28, 28};
  images.classes = 10;
  return images;
}

Result<RecipeData> load_text(const Recipe& recipe) {
  STORMO_ASSIGN_OR_RETURN(const std::string text, data::read_texts(std::span(&recipe.data.path, 1),
                                                                   recipe.data.extensions));
  RecipeData texts;
  texts.vocabulary = data::Vocabulary::bytes();
  if (recipe.data.tokens == "characters") {
    STORMO_ASSIGN_OR_RETURN(texts.vocabulary, data::Vocabulary::characters(text));
  }
  STORMO_ASSIGN_OR_RETURN(const data::Tokens tokens, texts.vocabulary->encode(text));
  auto [train_tokens, held_out] = data::split_tokens(tokens);
  const std::int64_t context = recipe.model.context;
  const std::uint64_t seed = recipe.train.seed;
  using Windows = data::TextWindows;
  STORMO_ASSIGN_OR_RETURN(texts.train, Windows::create(std::move(train_tokens), context,
                                                       Windows::Shift::kPerEpoch, seed));
  STORMO_ASSIGN_OR_RETURN(
      auto validation, Windows::create(std::move(held_out), context, Windows::Shift::kNone, seed));
  texts.splits = {{.name = "validation", .dataset = std::move(validation), .batch = 64}};
  return texts;
}

Result<RecipeData> load_image_folder(const Recipe& recipe) {
  using data::ImageFolder;
  const std::vector<std::int64_t>& image = recipe.data.image;
  data::ImageFolderOptions options{.channels = image[0], .height = image[1], .width = image[2]};
  options.values.dtype = scalar_type(recipe);
  if (recipe.data.on_error == "skip") {
    options.on_error = data::ImageFolderOptions::OnError::kSkip;
  }
  options.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  RecipeData images;
  const auto note = [&images](const ImageFolder& folder) {
    for (const std::string& skipped : folder.skipped()) {
      images.warnings.push_back("left out: " + skipped);
    }
  };
  STORMO_ASSIGN_OR_RETURN(const auto train,
                          ImageFolder::create(part(recipe, recipe.data.train), options));
  note(*train);
  const auto open = [&](const std::string& path) -> Result<DatasetPtr> {
    STORMO_ASSIGN_OR_RETURN(auto folder, ImageFolder::create(path, options, train->classes()));
    note(*folder);
    return DatasetPtr(std::move(folder));
  };
  STORMO_RETURN_IF_ERROR(load_splits(recipe, open, images));
  images.train = train;
  images.input = image;
  images.classes = std::ssize(train->classes());
  return images;
}

data::DelimitedOptions delimited_options(const Recipe& recipe) {
  return {.separator = recipe.data.kind == "csv" ? ',' : '\t',
          .header = recipe.data.header,
          .label = recipe.data.label};
}

Result<DatasetPtr> make_table(data::Table table, const data::Classes& classes,
                              torch::ScalarType dtype) {
  const auto rows = std::ssize(table.labels);
  std::vector<std::int64_t> targets;
  for (const std::string& label : table.labels) {
    STORMO_ASSIGN_OR_RETURN(const std::int64_t target, classes.find(label));
    targets.push_back(target);
  }
  const torch::Tensor inputs =
      torch::from_blob(table.features.data(), {rows, table.num_features}, torch::kFloat64)
          .to(dtype, /*non_blocking=*/false, /*copy=*/true);
  STORMO_ASSIGN_OR_RETURN(
      auto dataset, data::TensorDataset::create(
                        inputs, torch::from_blob(targets.data(), {rows}, torch::kInt64), dtype));
  return DatasetPtr(std::move(dataset));
}

Result<RecipeData> load_table(const Recipe& recipe) {
  const data::DelimitedOptions options = delimited_options(recipe);
  STORMO_ASSIGN_OR_RETURN(data::Table table,
                          data::read_table(part(recipe, recipe.data.train), options));
  const data::Classes classes = data::Classes::of(table.labels);
  RecipeData result;
  result.input = {table.num_features};
  result.classes = classes.size();
  STORMO_ASSIGN_OR_RETURN(result.train, make_table(std::move(table), classes, scalar_type(recipe)));
  const auto open = [&](const std::string& path) -> Result<DatasetPtr> {
    STORMO_ASSIGN_OR_RETURN(data::Table held_out, data::read_table(path, options));
    if (held_out.num_features != result.input[0]) {
      return invalid_argument(fmt::format("{}: {} features, the training part has {}", path,
                                          held_out.num_features, result.input[0]));
    }
    auto dataset = make_table(std::move(held_out), classes, scalar_type(recipe));
    return dataset.ok() ? std::move(dataset) : dataset.status().within(path);
  };
  STORMO_RETURN_IF_ERROR(load_splits(recipe, open, result));
  return result;
}

Result<RecipeData> load_text_classification(const Recipe& recipe) {
  const data::DelimitedOptions options = delimited_options(recipe);
  const std::string path = part(recipe, recipe.data.train);
  STORMO_ASSIGN_OR_RETURN(const data::LabelledTexts texts,
                          data::read_labelled_texts(path, options));
  const auto vocabulary =
      data::WordVocabulary::of(texts.texts, recipe.data.vocabulary, recipe.data.pairs);
  const data::Classes classes = data::Classes::of(texts.labels);
  const auto make = [&](const data::LabelledTexts& from) {
    return data::TextClassification::create(from, vocabulary, classes, recipe.model.context);
  };
  RecipeData result;
  STORMO_ASSIGN_OR_RETURN(result.train, make(texts));
  const auto open = [&](const std::string& held_out) -> Result<DatasetPtr> {
    STORMO_ASSIGN_OR_RETURN(const auto read, data::read_labelled_texts(held_out, options));
    auto dataset = make(read);
    if (!dataset.ok()) return dataset.status().within(held_out);
    return DatasetPtr(std::move(dataset).value());
  };
  STORMO_RETURN_IF_ERROR(load_splits(recipe, open, result));
  result.words = vocabulary.size();
  result.classes = classes.size();
  return result;
}

/// images.npy and labels.npy of a folder, or inputs and targets of a safetensors file.
Result<std::shared_ptr<const data::TensorDataset>> open_tensors(const Recipe& recipe,
                                                                const std::string& path) {
  if (recipe.data.kind == "npy") {
    const std::filesystem::path folder(path);
    STORMO_ASSIGN_OR_RETURN(auto images, data::load_npy((folder / "images.npy").string()));
    STORMO_ASSIGN_OR_RETURN(const auto labels, data::load_npy((folder / "labels.npy").string()));
    return data::TensorDataset::create(std::move(images), labels, scalar_type(recipe));
  }
  STORMO_ASSIGN_OR_RETURN(const TensorMap tensors, read_safetensors(path));
  for (const char* name : {"inputs", "targets"}) {
    if (tensors.contains(name)) continue;
    return invalid_argument(
        fmt::format("{} has no tensor \"{}\"; save inputs and targets", path, name));
  }
  return data::TensorDataset::create(tensors.at("inputs"), tensors.at("targets"),
                                     scalar_type(recipe));
}

Result<RecipeData> load_tensors(const Recipe& recipe) {
  RecipeData result;
  const auto open = [&](const std::string& path) -> Result<DatasetPtr> {
    auto opened = open_tensors(recipe, path);
    if (!opened.ok()) return opened.status().within(path);
    const data::TensorDataset& tensors = **opened;
    if (result.input.empty()) {
      result.input = tensors.sample_shape();
    } else if (tensors.sample_shape() != result.input) {
      return invalid_argument(fmt::format("{}: samples of shape [{}], the training part has [{}]",
                                          path, fmt::join(tensors.sample_shape(), ", "),
                                          fmt::join(result.input, ", ")));
    }
    result.classes = std::max(result.classes, tensors.classes());
    return DatasetPtr(std::move(opened).value());
  };
  STORMO_ASSIGN_OR_RETURN(result.train, open(part(recipe, recipe.data.train)));
  STORMO_RETURN_IF_ERROR(load_splits(recipe, open, result));
  return result;
}

Result<RecipeData> load(const Recipe& recipe) {
  const std::string& kind = recipe.data.kind;
  if (kind == "text") return load_text(recipe);
  if (kind == "image_folder") return load_image_folder(recipe);
  if (kind == "csv" || kind == "tsv") return load_table(recipe);
  if (kind == "text_classification") return load_text_classification(recipe);
  if (kind == "npy" || kind == "safetensors") return load_tensors(recipe);
  return load_mnist(recipe);
}

/// Whether the model takes samples of this form, and has an output for each class.
Status check_fit(const Recipe& recipe, const RecipeData& data) {
  const model::ModelOptions& m = recipe.model;
  if (m.kind == "mlp") {
    const std::int64_t numbers =
        std::accumulate(data.input.begin(), data.input.end(), std::int64_t{1}, std::multiplies<>());
    if (m.sizes.size() >= 2 && m.sizes.front() == numbers && m.sizes.back() >= data.classes) {
      return {};
    }
    return invalid_argument(fmt::format(
        "model.sizes is [{}]; it must begin with {} (numbers of a sample) and end with {} or more "
        "(classes) for this data",
        fmt::join(m.sizes, ", "), numbers, data.classes));
  }
  if (m.kind == "gpt") return {};
  if (m.classes < data.classes) {
    return invalid_argument(
        fmt::format("model.classes is {}; the data have {} classes", m.classes, data.classes));
  }
  if (m.kind == "cnn" && data.input != std::vector<std::int64_t>{1, 28, 28}) {
    return invalid_argument(fmt::format(
        "model \"cnn\" takes grey images of 28 x 28, a sample of the data is [{}]; choose "
        "model.kind=resnet20 or mlp, or data.image=1,28,28 for an image folder",
        fmt::join(data.input, ", ")));
  }
  if (m.kind == "resnet20" && data.input.size() != 3) {
    return invalid_argument(fmt::format(
        "model \"resnet20\" takes images [channels, height, width], a sample of the data is [{}]; "
        "choose model.kind=mlp",
        fmt::join(data.input, ", ")));
  }
  return {};
}

}  // namespace

torch::ScalarType scalar_type(const Recipe& recipe) {
  return recipe.precision == "float64" ? torch::kFloat64 : torch::kFloat32;
}

Result<RecipeData> load_data(const Recipe& recipe) {
  Result<RecipeData> data = load(recipe);
  if (!data.ok()) return data.status().within("data");
  STORMO_RETURN_IF_ERROR(check_fit(recipe, *data));
  return data;
}

}  // namespace stormo::train
