#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <new>
#include <numeric>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include <stormo/data/classes.h>
#include <stormo/data/image/image_dataset.h>
#include <stormo/data/image/image_folder.h>
#include <stormo/data/npy.h>
#include <stormo/data/table/table.h>
#include <stormo/data/table/text_classification.h>
#include <stormo/data/tensor_dataset.h>
#include <stormo/data/text/text.h>
#include <stormo/data/text/text_windows.h>
#include <stormo/model/registry.h>
#include <stormo/train/prepare/recipe_task.h>
#include <stormo/train/prepare/sample_options.h>
#include <stormo/train/state/safetensors.h>

namespace stormo::train {
namespace {

/// Of the samples of text that are evaluated at once.
constexpr std::int64_t kEvaluatedPositions = 4096;

using DatasetPtr = std::shared_ptr<const data::Dataset>;

/// What is being loaded: the training part settles the preprocessing, unless it is known.
struct Loading {
  const Recipe& recipe;
  bool with_training;
  RecipeData data;
};

/// Path of one part of the data.
std::string part(const Recipe& recipe, const std::string& name) {
  return name.empty() ? recipe.data.path
                      : (std::filesystem::path(recipe.data.path) / name).string();
}

std::string training_part(const Loading& loading) {
  return part(loading.recipe, loading.recipe.data.train);
}

/// Opens the parts that are held out, as far as the recipe names any.
Status load_splits(Loading& loading,
                   const std::function<Result<DatasetPtr>(const std::string&)>& open) {
  const DataOptions& options = loading.recipe.data;
  for (const auto& [split, name] :
       {std::pair("validation", options.validation), std::pair("test", options.test)}) {
    if (name.empty()) continue;
    STORMO_ASSIGN_OR_RETURN(DatasetPtr dataset, open(part(loading.recipe, name)));
    loading.data.splits.push_back({.name = split, .dataset = std::move(dataset)});
  }
  return {};
}

/// prepare_images() in the shape that training has settled.
Result<DatasetPtr> prepare(const Loading& loading, DatasetPtr samples, bool training) {
  return prepare_images(loading.recipe, std::move(samples), loading.data.preprocessing.input,
                        training);
}

Status load_mnist(Loading& loading) {
  const data::ImageOptions options = image_values(loading.recipe);
  const std::string& path = loading.recipe.data.path;
  RecipeData& images = loading.data;
  if (loading.with_training) {
    images.preprocessing.input = {1, 28, 28};
    images.preprocessing.classes = data::Classes::numbers(10);
    STORMO_ASSIGN_OR_RETURN(auto train, data::load_mnist(path, data::MnistSplit::kTrain, options));
    STORMO_ASSIGN_OR_RETURN(images.train, prepare(loading, std::move(train), true));
  }
  STORMO_ASSIGN_OR_RETURN(auto test, data::load_mnist(path, data::MnistSplit::kTest, options));
  STORMO_ASSIGN_OR_RETURN(DatasetPtr held_out, prepare(loading, std::move(test), false));
  images.splits = {{.name = "test", .dataset = std::move(held_out)}};
  return {};
}

Status load_text(Loading& loading) {
  const Recipe& recipe = loading.recipe;
  STORMO_ASSIGN_OR_RETURN(const std::string text, data::read_texts(std::span(&recipe.data.path, 1),
                                                                   recipe.data.extensions));
  std::optional<data::Vocabulary>& vocabulary = loading.data.preprocessing.vocabulary;
  if (loading.with_training) {
    vocabulary = data::Vocabulary::bytes();
    if (recipe.data.tokens == "characters") {
      STORMO_ASSIGN_OR_RETURN(vocabulary, data::Vocabulary::characters(text));
    }
  }
  STORMO_ASSIGN_OR_RETURN(const data::Tokens tokens, vocabulary->encode(text));
  auto [train_tokens, held_out] = data::split_tokens(tokens);
  const std::int64_t context = recipe.model.context;
  const std::uint64_t seed = recipe.train.seed;
  using Windows = data::TextWindows;
  if (loading.with_training) {
    STORMO_ASSIGN_OR_RETURN(loading.data.train, Windows::create(std::move(train_tokens), context,
                                                                Windows::Shift::kPerEpoch, seed));
  }
  STORMO_ASSIGN_OR_RETURN(
      auto validation, Windows::create(std::move(held_out), context, Windows::Shift::kNone, seed));
  loading.data.splits = {{.name = "validation",
                          .dataset = std::move(validation),
                          .batch = std::max<std::int64_t>(1, kEvaluatedPositions / context)}};
  return {};
}

Status load_image_folder(Loading& loading) {
  using data::ImageFolder;
  const data::ImageFolderOptions options = image_options(loading.recipe);
  RecipeData& images = loading.data;
  const auto note = [&images](const ImageFolder& folder) {
    for (const std::string& skipped : folder.skipped()) {
      images.warnings.push_back("left out: " + skipped);
    }
  };
  if (loading.with_training) {
    STORMO_ASSIGN_OR_RETURN(const auto train, ImageFolder::create(training_part(loading), options));
    note(*train);
    images.preprocessing.input = loading.recipe.data.image;
    images.preprocessing.classes = data::Classes::named(train->classes());
    STORMO_ASSIGN_OR_RETURN(images.train, prepare(loading, train, true));
  }
  const auto open = [&](const std::string& path) -> Result<DatasetPtr> {
    STORMO_ASSIGN_OR_RETURN(
        auto folder, ImageFolder::create(path, options, images.preprocessing.classes.names()));
    note(*folder);
    return prepare(loading, std::move(folder), false);
  };
  return load_splits(loading, open);
}

/// The labels as what the recipe's loss compares outputs with.
Result<torch::Tensor> table_targets(const Recipe& recipe, const data::Table& table,
                                    const Preprocessing& settled) {
  if (recipe.loss == "mse") {
    STORMO_ASSIGN_OR_RETURN(std::vector<double> numbers, data::label_numbers(table));
    for (double& number : numbers) number = settled.target.apply(number);
    return torch::tensor(numbers, torch::kFloat64);
  }
  std::vector<std::int64_t> targets;
  for (const std::string& label : table.labels) {
    STORMO_ASSIGN_OR_RETURN(const std::int64_t target, settled.classes.find(label));
    targets.push_back(target);
  }
  return torch::tensor(targets, torch::kInt64);
}

data::TensorDataset::Targets target_kind(const Recipe& recipe) {
  using Targets = data::TensorDataset::Targets;
  return recipe.loss == "mse" ? Targets::kNumbers : Targets::kClasses;
}

Result<DatasetPtr> make_table(const Recipe& recipe, data::Table table,
                              const Preprocessing& settled) {
  STORMO_ASSIGN_OR_RETURN(const torch::Tensor targets, table_targets(recipe, table, settled));
  const torch::ScalarType dtype = scalar_type(recipe);
  STORMO_ASSIGN_OR_RETURN(
      auto dataset, data::TensorDataset::create(feature_tensor(table, settled, dtype), targets,
                                                dtype, target_kind(recipe)));
  return DatasetPtr(std::move(dataset));
}

/// Mean and standard deviation of every `stride`-th number; a constant keeps its unit.
Preprocessing::Scale scale_of(std::span<const double> numbers, std::size_t stride) {
  double sum = 0, squares = 0;
  const auto count = static_cast<double>((numbers.size() + stride - 1) / stride);
  for (std::size_t i = 0; i < numbers.size(); i += stride) sum += numbers[i];
  const double mean = sum / count;
  for (std::size_t i = 0; i < numbers.size(); i += stride) {
    squares += (numbers[i] - mean) * (numbers[i] - mean);
  }
  const double stddev = std::sqrt(squares / count);
  return {.mean = mean, .stddev = stddev > 0 && std::isfinite(stddev) ? stddev : 1};
}

/// What a training part says about all tables.
Status settle_table(const Recipe& recipe, const data::Table& table, Preprocessing& settled) {
  settled.columns = table.columns;
  settled.input = {std::ssize(table.columns)};
  const bool numbers = recipe.loss == "mse";
  if (!numbers) settled.classes = data::Classes::of(table.labels);
  if (!recipe.data.standardise) return {};
  for (std::size_t c = 0; c < table.columns.size(); ++c) {
    settled.scales.push_back(scale_of(std::span(table.features).subspan(c), table.columns.size()));
  }
  if (!numbers) return {};
  STORMO_ASSIGN_OR_RETURN(const std::vector<double> targets, data::label_numbers(table));
  settled.target = scale_of(targets, 1);
  return {};
}

Status load_table(Loading& loading) {
  const Recipe& recipe = loading.recipe;
  data::TableOptions options = table_options(recipe);
  Preprocessing& settled = loading.data.preprocessing;
  if (loading.with_training) {
    const std::string path = training_part(loading);
    STORMO_ASSIGN_OR_RETURN(data::Table table, data::read_table(path, options));
    STORMO_RETURN_IF_ERROR(settle_table(recipe, table, settled).within(path));
    STORMO_ASSIGN_OR_RETURN(loading.data.train, make_table(recipe, std::move(table), settled));
  }
  options.columns = settled.columns;
  const auto open = [&](const std::string& path) -> Result<DatasetPtr> {
    STORMO_ASSIGN_OR_RETURN(data::Table held_out, data::read_table(path, options));
    auto dataset = make_table(recipe, std::move(held_out), settled);
    return dataset.ok() ? std::move(dataset) : dataset.status().within(path);
  };
  return load_splits(loading, open);
}

Status load_text_classification(Loading& loading) {
  const Recipe& recipe = loading.recipe;
  const data::TableOptions options = table_options(recipe);
  Preprocessing& settled = loading.data.preprocessing;
  const auto make = [&](const data::LabelledTexts& from) {
    return data::TextClassification::create(from, *settled.words, settled.classes,
                                            recipe.model.context);
  };
  const auto read = [&](const std::string& path) {
    return data::read_labelled_texts(path, options.form, options.label);
  };
  if (loading.with_training) {
    STORMO_ASSIGN_OR_RETURN(const data::LabelledTexts texts, read(training_part(loading)));
    settled.words =
        data::WordVocabulary::of(texts.texts, recipe.data.vocabulary, recipe.data.pairs);
    settled.classes = data::Classes::of(texts.labels);
    STORMO_ASSIGN_OR_RETURN(loading.data.train, make(texts));
  }
  const auto open = [&](const std::string& path) -> Result<DatasetPtr> {
    STORMO_ASSIGN_OR_RETURN(const data::LabelledTexts texts, read(path));
    auto dataset = make(texts);
    if (!dataset.ok()) return dataset.status().within(path);
    return DatasetPtr(std::move(dataset).value());
  };
  return load_splits(loading, open);
}

/// images.npy and labels.npy of a folder, or inputs and targets of a safetensors file.
Result<std::shared_ptr<const data::TensorDataset>> open_tensors(const Recipe& recipe,
                                                                const std::string& path) {
  if (recipe.data.kind == "npy") {
    const std::filesystem::path folder(path);
    STORMO_ASSIGN_OR_RETURN(auto images, data::NpyArray::open((folder / "images.npy").string()));
    STORMO_ASSIGN_OR_RETURN(auto labels, data::NpyArray::open((folder / "labels.npy").string()));
    STORMO_ASSIGN_OR_RETURN(const torch::Tensor targets, labels.load());
    return data::TensorDataset::create(std::move(images), targets, scalar_type(recipe),
                                       target_kind(recipe));
  }
  STORMO_ASSIGN_OR_RETURN(const TensorMap tensors, read_safetensors(path));
  for (const char* name : {"inputs", "targets"}) {
    if (tensors.contains(name)) continue;
    return invalid_argument(
        fmt::format("{} has no tensor \"{}\"; save inputs and targets", path, name));
  }
  return data::TensorDataset::create(tensors.at("inputs"), tensors.at("targets"),
                                     scalar_type(recipe), target_kind(recipe));
}

Status load_tensors(Loading& loading) {
  Preprocessing& settled = loading.data.preprocessing;
  std::int64_t classes = settled.classes.size();
  const auto open = [&](const std::string& path, bool training) -> Result<DatasetPtr> {
    auto opened = open_tensors(loading.recipe, path);
    if (!opened.ok()) return opened.status().within(path);
    const data::TensorDataset& tensors = **opened;
    if (settled.input.empty()) {
      settled.input = tensors.sample_shape();
    } else if (tensors.sample_shape() != settled.input) {
      return invalid_argument(fmt::format("{}: samples of shape [{}], the training part has [{}]",
                                          path, fmt::join(tensors.sample_shape(), ", "),
                                          fmt::join(settled.input, ", ")));
    }
    classes = std::max(classes, tensors.classes());
    return prepare(loading, std::move(opened).value(), training);
  };
  if (loading.with_training) {
    STORMO_ASSIGN_OR_RETURN(loading.data.train, open(training_part(loading), true));
  }
  STORMO_RETURN_IF_ERROR(
      load_splits(loading, [&](const std::string& path) { return open(path, false); }));
  settled.classes = data::Classes::numbers(classes);
  return {};
}

Status load(Loading& loading) {
  const std::string& kind = loading.recipe.data.kind;
  if (kind == "text") return load_text(loading);
  if (kind == "image_folder") return load_image_folder(loading);
  if (kind == "csv" || kind == "tsv") return load_table(loading);
  if (kind == "text_classification") return load_text_classification(loading);
  if (kind == "npy" || kind == "safetensors") return load_tensors(loading);
  return load_mnist(loading);
}

/// Whether the model takes samples of this form, and has an output for each class.
Status check_fit(const Recipe& recipe, const Preprocessing& data) {
  const model::ModelOptions& m = recipe.model;
  const std::int64_t classes = data.classes.size();
  const std::int64_t outputs = m.kind == "mlp" && !m.sizes.empty() ? m.sizes.back() : m.classes;
  if (recipe.loss == "mse" && outputs != 1) {
    return invalid_argument(
        fmt::format("train.loss \"mse\" needs a model of one output, it has {}; {}", outputs,
                    m.kind == "mlp" ? "end model.sizes with 1" : "set model.classes = 1"));
  }
  if (m.kind == "mlp") {
    const std::int64_t numbers =
        std::accumulate(data.input.begin(), data.input.end(), std::int64_t{1}, std::multiplies<>());
    if (m.sizes.size() >= 2 && m.sizes.front() == numbers && m.sizes.back() >= classes) {
      return {};
    }
    return invalid_argument(fmt::format(
        "model.sizes is [{}]; it must begin with {} (numbers of a sample) and end with {} or more "
        "(classes) for this data",
        fmt::join(m.sizes, ", "), numbers, classes));
  }
  if (m.kind == "gpt") return {};
  if (m.classes < classes) {
    return invalid_argument(
        fmt::format("model.classes is {}; the data have {} classes", m.classes, classes));
  }
  if ((m.kind == "cnn" || m.kind == "resnet20") && data.input.size() != 3) {
    return invalid_argument(
        fmt::format("model \"{}\" takes images [channels, height, width], a sample of the data is "
                    "[{}]; choose model.kind=mlp",
                    m.kind, fmt::join(data.input, ", ")));
  }
  model::ModelOptions options = m;
  if (data.input.size() == 3) options.image = data.input;
  const std::vector<std::string> wrong = model::validate(options);
  return wrong.empty() ? Status() : invalid_argument(fmt::format("{}", fmt::join(wrong, "\n")));
}

Result<RecipeData> load_checked(Loading loading) {
  try {
    STORMO_RETURN_IF_ERROR(load(loading).within("data"));
  } catch (const std::bad_alloc&) {
    return Status(Code::kExhausted, "data: not enough memory for " + loading.recipe.data.path);
  }
  STORMO_RETURN_IF_ERROR(check_fit(loading.recipe, loading.data.preprocessing));
  return std::move(loading.data);
}

}  // namespace

torch::ScalarType scalar_type(const Recipe& recipe) {
  return recipe.precision == "float64" ? torch::kFloat64 : torch::kFloat32;
}

Result<RecipeData> load_data(const Recipe& recipe) {
  return load_checked({.recipe = recipe, .with_training = true, .data = {}});
}

Result<RecipeData> load_held_out(const Recipe& recipe, const Preprocessing& preprocessing) {
  Loading loading{.recipe = recipe, .with_training = false, .data = {}};
  loading.data.preprocessing = preprocessing;
  return load_checked(std::move(loading));
}

}  // namespace stormo::train
