#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <new>
#include <numeric>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include <stormo/data/classes.h>
#include <stormo/data/image/image_dataset.h>
#include <stormo/data/image/image_folder.h>
#include <stormo/data/table/text_classification.h>
#include <stormo/data/text/text.h>
#include <stormo/data/text/text_windows.h>
#include <stormo/model/registry.h>
#include <stormo/train/prepare/column_data.h>
#include <stormo/train/prepare/initial_weights.h>
#include <stormo/train/prepare/loading.h>
#include <stormo/train/prepare/recipe_task.h>
#include <stormo/train/prepare/sample_options.h>
#include <stormo/train/prepare/table_features.h>

namespace stormo::train {

namespace {

constexpr const char* kTraining = "training";

/// The parts that the recipe names files of, with these names.
std::vector<std::pair<std::string, std::string>> named_splits(const Recipe& recipe) {
  std::vector<std::pair<std::string, std::string>> splits = {{"validation", recipe.data.validation},
                                                             {"test", recipe.data.test}};
  std::erase_if(splits, [](const auto& split) { return split.second.empty(); });
  return splits;
}

}  // namespace

std::string path_of(const Recipe& recipe, const std::string& name, std::size_t columns) {
  std::filesystem::path path = recipe.data.path;
  if (!recipe.data.parts.empty()) path /= recipe.data.parts[columns];
  return (name.empty() ? path : path / name).string();
}

Status load_splits(Loading& loading,
                   const std::function<Result<DatasetPtr>(const std::string& name)>& open) {
  for (const auto& [split, name] : named_splits(loading.recipe)) {
    STORMO_ASSIGN_OR_RETURN(DatasetPtr dataset, open(name));
    add_part(loading, split, std::move(dataset));
  }
  return {};
}

bool holds_out(const Recipe& recipe) {
  return recipe.data.validation_fraction > 0 || recipe.data.test_fraction > 0;
}

Status add_parts(Loading& loading, std::int64_t samples, const MakePart& make,
                 const data::FileCount* files) {
  const Recipe& recipe = loading.recipe;
  std::optional<data::HeldOut> parts;
  if (holds_out(recipe)) {
    STORMO_ASSIGN_OR_RETURN(parts, data::hold_out(samples, recipe.data.validation_fraction,
                                                  recipe.data.test_fraction, recipe.train.seed));
  }
  if (loading.with_training) {
    STORMO_ASSIGN_OR_RETURN(DatasetPtr dataset, make(parts ? &parts->training : nullptr, true));
    add_part(loading, kTraining, std::move(dataset), files);
  }
  if (!parts) return {};
  for (const auto& [split, held_out] :
       {std::pair("validation", &parts->validation), std::pair("test", &parts->test)}) {
    if (held_out->empty()) continue;
    STORMO_ASSIGN_OR_RETURN(DatasetPtr dataset, make(held_out, false));
    add_part(loading, split, std::move(dataset));
  }
  return {};
}

Status add_samples(
    Loading& loading, const DatasetPtr& all,
    const std::function<Result<DatasetPtr>(DatasetPtr part, bool training)>& prepared,
    const data::FileCount* files) {
  const MakePart part = [&](const auto* samples, bool training) {
    return prepared(samples ? std::make_shared<data::Subset>(all, *samples) : all, training);
  };
  return add_parts(loading, all->size(), part, files);
}

void add_part(Loading& loading, const std::string& split, DatasetPtr dataset,
              const data::FileCount* files) {
  observe::DataRecord record{.split = split, .samples = dataset->size()};
  if (loading.recipe.loss != "mse") {
    const data::SampleLabels labels = dataset->strata();
    const std::set<std::int32_t> classes(labels.all().begin(), labels.all().end());
    if (!classes.empty()) record.classes = std::ssize(classes);
  }
  if (files != nullptr) {
    record.files = files->taken();
    for (const data::LeftOut& l : files->left_out()) {
      record.left_out.push_back({.why = l.why, .count = l.count, .first = l.first});
    }
    for (const std::string& skipped : files->skipped()) {
      loading.data.warnings.push_back("left out: " + skipped);
    }
  }
  loading.data.records.push_back(std::move(record));
  if (split == kTraining) {
    loading.data.train = std::move(dataset);
  } else {
    loading.data.splits.push_back({.name = split, .dataset = std::move(dataset)});
  }
}

Result<DatasetPtr> prepare(const Loading& loading, DatasetPtr samples, bool training) {
  return prepare_images(loading.recipe, std::move(samples), loading.data.preprocessing.input,
                        training);
}

data::TensorDataset::Targets target_kind(const Recipe& recipe) {
  using Targets = data::TensorDataset::Targets;
  return recipe.loss == "mse" ? Targets::kNumbers : Targets::kClasses;
}

namespace {

/// Of the samples of text that are evaluated at once.
constexpr std::int64_t kEvaluatedPositions = 4096;

Status load_mnist(Loading& loading) {
  const data::ImageOptions options = image_values(loading.recipe);
  const std::string& path = loading.recipe.data.path;
  RecipeData& images = loading.data;
  if (loading.with_training) {
    images.preprocessing.input = {1, 28, 28};
    images.preprocessing.classes = data::Classes::numbers(10);
    STORMO_ASSIGN_OR_RETURN(auto train, data::load_mnist(path, data::MnistSplit::kTrain, options));
    STORMO_ASSIGN_OR_RETURN(DatasetPtr prepared, prepare(loading, std::move(train), true));
    add_part(loading, kTraining, std::move(prepared));
  }
  STORMO_ASSIGN_OR_RETURN(auto test, data::load_mnist(path, data::MnistSplit::kTest, options));
  STORMO_ASSIGN_OR_RETURN(DatasetPtr prepared, prepare(loading, std::move(test), false));
  add_part(loading, "test", std::move(prepared));
  return {};
}

Status load_text(Loading& loading) {
  const Recipe& recipe = loading.recipe;
  STORMO_ASSIGN_OR_RETURN(
      const data::Texts texts,
      data::read_texts(recipe.data.path, recipe.data.extensions, on_error(recipe)));
  std::optional<data::Vocabulary>& vocabulary = loading.data.preprocessing.vocabulary;
  if (loading.with_training) {
    const bool is_known = vocabulary.has_value();
    if (!is_known) vocabulary = data::Vocabulary::bytes();
    if (!is_known && recipe.data.tokens == "characters") {
      STORMO_ASSIGN_OR_RETURN(vocabulary, data::Vocabulary::characters(texts.text));
    }
  }
  STORMO_ASSIGN_OR_RETURN(const data::Tokens tokens, vocabulary->encode(texts.text));
  auto [train_tokens, held_out] = data::split_tokens(tokens);
  const std::int64_t context = recipe.model.context;
  const std::uint64_t seed = recipe.train.seed;
  using Windows = data::TextWindows;
  if (loading.with_training) {
    STORMO_ASSIGN_OR_RETURN(auto train, Windows::create(std::move(train_tokens), context,
                                                        Windows::Shift::kPerEpoch, seed));
    add_part(loading, kTraining, std::move(train), &texts.files);
  }
  STORMO_ASSIGN_OR_RETURN(
      auto validation, Windows::create(std::move(held_out), context, Windows::Shift::kNone, seed));
  add_part(loading, "validation", std::move(validation),
           loading.with_training ? nullptr : &texts.files);
  loading.data.splits.back().batch = std::max<std::int64_t>(1, kEvaluatedPositions / context);
  return {};
}

Status load_image_folder(Loading& loading) {
  using data::ImageFolder;
  const Recipe& recipe = loading.recipe;
  const data::ImageFolderOptions options = image_options(recipe);
  Preprocessing& settled = loading.data.preprocessing;
  const auto prepared = [&](DatasetPtr part, bool training) {
    return prepare(loading, std::move(part), training);
  };
  if (loading.with_training || holds_out(recipe)) {
    STORMO_ASSIGN_OR_RETURN(
        const auto train,
        ImageFolder::create(path_of(recipe, recipe.data.train), options, settled.classes.names()));
    settled.input = recipe.data.image;
    settled.classes = data::Classes::named(train->classes());
    STORMO_RETURN_IF_ERROR(add_samples(loading, train, prepared, &train->files()));
  }
  for (const auto& [split, name] : named_splits(recipe)) {
    STORMO_ASSIGN_OR_RETURN(const auto folder, ImageFolder::create(path_of(recipe, name), options,
                                                                   settled.classes.names()));
    STORMO_ASSIGN_OR_RETURN(DatasetPtr images, prepared(folder, false));
    add_part(loading, split, std::move(images), &folder->files());
  }
  return {};
}

Status load_text_classification(Loading& loading) {
  const Recipe& recipe = loading.recipe;
  Preprocessing& settled = loading.data.preprocessing;
  const auto make = [&](const data::LabelledTexts& from,
                        const std::string& path) -> Result<DatasetPtr> {
    auto dataset = data::TextClassification::create(from, *settled.words, settled.classes,
                                                    recipe.model.context);
    if (!dataset.ok()) return dataset.status().within(path);
    return DatasetPtr(std::move(dataset).value());
  };
  const auto read = [&](const std::string& path) {
    const data::TableOptions options = table_options(recipe);
    return data::read_labelled_texts(path, options.form, options.label);
  };
  if (loading.with_training || holds_out(recipe)) {
    const std::string path = path_of(recipe, recipe.data.train);
    STORMO_ASSIGN_OR_RETURN(const data::LabelledTexts all, read(path));
    const MakePart part = [&](const auto* samples, bool training) {
      std::optional<data::LabelledTexts> some;
      if (samples != nullptr) some = data::select_rows(all, *samples);
      const data::LabelledTexts& texts = some ? *some : all;
      if (training) {
        if (!settled.words) {
          settled.words =
              data::WordVocabulary::of(texts.texts, recipe.data.vocabulary, recipe.data.pairs);
        }
        settled.classes = data::Classes::of(texts.labels);
      }
      return make(texts, path);
    };
    STORMO_RETURN_IF_ERROR(add_parts(loading, std::ssize(all.texts), part));
  }
  return load_splits(loading, [&](const std::string& name) -> Result<DatasetPtr> {
    const std::string path = path_of(recipe, name);
    STORMO_ASSIGN_OR_RETURN(const data::LabelledTexts texts, read(path));
    return make(texts, path);
  });
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

}  // namespace

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
  if (model::takes_images(m.kind) && data.input.size() != 3) {
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

namespace {

Result<RecipeData> loaded(Loading loading) {
  try {
    STORMO_RETURN_IF_ERROR(load(loading).within("data"));
  } catch (const std::bad_alloc&) {
    return Status(Code::kExhausted, "data: not enough memory for " + loading.recipe.data.path);
  }
  return std::move(loading.data);
}

Result<RecipeData> load_checked(Loading loading) {
  const Recipe& recipe = loading.recipe;
  STORMO_ASSIGN_OR_RETURN(RecipeData data, loaded(std::move(loading)));
  const Status fit = check_fit(recipe, data.preprocessing);
  if (fit.ok()) return data;
  std::string message = fit.message();
  for (const std::string& hint : data.hints) message += "\n" + hint;
  return Status(fit.code(), message);
}

}  // namespace

torch::ScalarType scalar_type(const Recipe& recipe) {
  return recipe.precision == "float64" ? torch::kFloat64 : torch::kFloat32;
}

Result<RecipeData> load_data(const Recipe& recipe) {
  Loading loading{.recipe = recipe, .with_training = true, .data = {}};
  STORMO_ASSIGN_OR_RETURN(loading.data.preprocessing, initial_vocabulary(recipe));
  return load_checked(std::move(loading));
}

Result<RecipeData> load_columns(const Recipe& recipe, const plan::Part& rank) {
  return loaded({.recipe = recipe, .with_training = true, .data = {}, .rank = rank});
}

Result<RecipeData> load_held_out(const Recipe& recipe, const Preprocessing& preprocessing) {
  Loading loading{.recipe = recipe, .with_training = false, .data = {}};
  loading.data.preprocessing = preprocessing;
  return load_checked(std::move(loading));
}

}  // namespace stormo::train
