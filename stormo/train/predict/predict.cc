#include <stormo/train/predict/predict.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include <stormo/data/image/image_folder.h>
#include <stormo/data/npy.h>
#include <stormo/data/table/text_classification.h>
#include <stormo/data/tensor_dataset.h>
#include <stormo/data/text/text.h>
#include <stormo/train/failure.h>
#include <stormo/train/prepare/recipe_task.h>
#include <stormo/train/prepare/sample_options.h>
#include <stormo/train/prepare/table_features.h>
#include <stormo/train/state/safetensors.h>

namespace stormo::train {
namespace {

constexpr std::int64_t kBatch = 64;

/// The samples of a file, with targets that mean nothing.
struct Samples {
  std::shared_ptr<const data::Dataset> dataset;
  std::vector<std::int64_t> lines{};  ///< empty: samples have none
  std::vector<std::string> warnings{};
};

/// `inputs` is a Tensor or an NpyArray of so many samples.
template <class Inputs>
Result<std::shared_ptr<const data::TensorDataset>> unlabelled(Inputs inputs, std::int64_t samples,
                                                              const Recipe& recipe) {
  return data::TensorDataset::create(std::move(inputs), torch::zeros({samples}, torch::kInt64),
                                     scalar_type(recipe), data::TensorDataset::Targets::kClasses,
                                     recipe.data.bins, has_channels_last(recipe));
}

/// Images normalised as in training, all others as they are.
Result<Samples> prepared(const TrainedModel& model, std::shared_ptr<const data::Dataset> samples,
                         std::vector<std::int64_t> lines) {
  STORMO_ASSIGN_OR_RETURN(
      auto dataset, prepare_images(model.recipe, std::move(samples), model.preprocessing.input,
                                   /*training=*/false));
  return Samples{.dataset = std::move(dataset), .lines = std::move(lines)};
}

/// MNIST's own pixels are 28 x 28 grey ones, normalised in a way of their own.
Result<Samples> open_image(const TrainedModel& model, const std::string& file) {
  data::ImageFolderOptions options = image_options(model.recipe);
  options.on_error = data::OnError::kFail;
  if (model.recipe.data.kind == "mnist") {
    options.channels = 1;
    options.height = options.width = 28;
  }
  STORMO_ASSIGN_OR_RETURN(auto image, data::ImageFolder::of_file(file, options));
  return prepared(model, std::move(image), {});
}

Result<Samples> open_texts(const TrainedModel& model, const std::string& file) {
  STORMO_ASSIGN_OR_RETURN(const std::string text, data::read_text(file));
  Samples samples;
  data::LabelledTexts lines;
  std::int64_t number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty()) continue;
    lines.texts.push_back(std::move(line));
    lines.labels.push_back("0");
    samples.lines.push_back(number);
  }
  if (lines.texts.empty()) return invalid_argument(file + ": no line with a text");
  STORMO_ASSIGN_OR_RETURN(
      samples.dataset,
      data::TextClassification::create(lines, *model.preprocessing.words, data::Classes::numbers(1),
                                       model.recipe.model.context));
  return samples;
}

Result<Samples> open_table(const TrainedModel& model, const std::string& file) {
  const Preprocessing& settled = model.preprocessing;
  data::TableOptions options = table_options(model.recipe, settled);
  options.labelled = false;
  options.id.clear();  // rows stay in the order of the file
  STORMO_ASSIGN_OR_RETURN(data::Table table, data::read_table(file, options));
  STORMO_ASSIGN_OR_RETURN(torch::Tensor features,
                          feature_tensor(table, settled, scalar_type(model.recipe), file));
  STORMO_ASSIGN_OR_RETURN(auto dataset,
                          unlabelled(std::move(features), std::ssize(table.lines), model.recipe));
  std::vector<std::string> warnings = unknown_texts(table, settled, file);
  return Samples{.dataset = std::move(dataset),
                 .lines = std::move(table.lines),
                 .warnings = std::move(warnings)};
}

Result<std::shared_ptr<const data::TensorDataset>> open_rows(const TrainedModel& model,
                                                             const std::string& file) {
  const Recipe& recipe = model.recipe;
  if (recipe.data.kind == "npy") {
    STORMO_ASSIGN_OR_RETURN(data::NpyArray array, data::NpyArray::open(file));
    const bool of_columns = recipe.train.strategy.kind == Strategy::Kind::kVertical;
    if (of_columns && array.sample_elements() > 0) {
      array = array.columns(0, array.sample_elements());
    }
    const std::int64_t rows = array.shape().empty() ? 0 : array.shape().front();
    return unlabelled(std::move(array), rows, recipe);
  }
  STORMO_ASSIGN_OR_RETURN(const TensorMap tensors, read_safetensors(file));
  if (!tensors.contains("inputs")) return invalid_argument("has no tensor \"inputs\"");
  const torch::Tensor& inputs = tensors.at("inputs");
  return unlabelled(inputs, inputs.dim() > 0 ? inputs.size(0) : 0, recipe);
}

Result<Samples> open_array(const TrainedModel& model, const std::string& file) {
  const auto opened = open_rows(model, file);
  if (!opened.ok()) return opened.status().within(file);
  const data::TensorDataset& rows = **opened;
  if (rows.sample_shape() != model.preprocessing.input) {
    return invalid_argument(fmt::format("{}: samples of shape [{}], the model was trained on [{}]",
                                        file, fmt::join(rows.sample_shape(), ", "),
                                        fmt::join(model.preprocessing.input, ", ")));
  }
  std::vector<std::int64_t> lines(static_cast<std::size_t>(rows.size()));
  std::iota(lines.begin(), lines.end(), std::int64_t{1});
  return prepared(model, *opened, std::move(lines));
}

Result<Samples> open_samples(const TrainedModel& model, const std::string& file) {
  const std::string& kind = model.recipe.data.kind;
  if (kind == "mnist" || kind == "image_folder") return open_image(model, file);
  if (kind == "text_classification") return open_texts(model, file);
  if (kind == "csv" || kind == "tsv") return open_table(model, file);
  if (kind == "npy" || kind == "safetensors") return open_array(model, file);
  return invalid_argument(
      "this model continues texts, it says nothing about samples; use `stormo sample`");
}

std::vector<ClassChance> likeliest(const torch::Tensor& chances, const data::Classes& classes,
                                   int top) {
  const std::int64_t count = std::min<std::int64_t>(top, chances.numel());
  const auto [values, places] = chances.topk(count);
  std::vector<ClassChance> result;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto index = places[i].item<std::int64_t>();
    result.push_back({index, classes.name(index), values[i].item<double>()});
  }
  return result;
}

/// What cannot be told from the output of a model.
Status check_finite(const torch::Tensor& output, const std::string& place) {
  if (output.isfinite().all().item<bool>()) return {};
  return {Code::kCorrupt, place +
                              ": the model's output is no finite number; the inputs are far "
                              "from those of the training, or the model's weights are broken"};
}

Status predict(const TrainedModel& model, const std::string& file, int top,
               const PredictionSink& take) {
  STORMO_ASSIGN_OR_RETURN(const Samples samples, open_samples(model, file));
  for (const std::string& warning : samples.warnings) take.warn(warning);
  const torch::NoGradGuard no_grad;
  const std::int64_t size = samples.dataset->size();
  const bool numbers = model.recipe.loss == "mse";
  for (std::int64_t first = 0; first < size; first += kBatch) {
    std::vector<std::int64_t> indices(static_cast<std::size_t>(std::min(kBatch, size - first)));
    std::iota(indices.begin(), indices.end(), first);
    const torch::Tensor output = model.task.forward(samples.dataset->get(indices, 0).input);
    const torch::Tensor chances = numbers ? output : at::softmax(output.to(torch::kFloat64), 1);
    for (std::int64_t row = 0; row < std::ssize(indices); ++row) {
      const auto sample = static_cast<std::size_t>(first + row);
      const std::string place =
          samples.lines.empty() ? file : fmt::format("{}:{}", file, samples.lines[sample]);
      STORMO_RETURN_IF_ERROR(check_finite(output[row], place));
      Prediction prediction{.file = file,
                            .line = samples.lines.empty() ? 0 : samples.lines[sample]};
      if (numbers) {
        prediction.value = model.preprocessing.target.undo(output[row].item<double>());
      } else {
        prediction.likeliest = likeliest(chances[row], model.preprocessing.classes, top);
      }
      take.prediction(prediction);
    }
  }
  return {};
}

}  // namespace

Status predict_file(const TrainedModel& model, const std::string& file, int top,
                    const PredictionSink& take) {
  try {
    return predict(model, file, top, take);
  } catch (const Error& e) {
    return e.status();
  } catch (...) {  // libtorch's allocator throws
    return failure_of_current_exception().within(file);
  }
}

}  // namespace stormo::train
