#include <stormo/train/predict.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include <stormo/data/image_folder.h>
#include <stormo/data/npy.h>
#include <stormo/data/tensor_dataset.h>
#include <stormo/data/text.h>
#include <stormo/data/text_classification.h>
#include <stormo/train/safetensors.h>
#include <stormo/train/sample_options.h>

namespace stormo::train {
namespace {

constexpr std::int64_t kBatch = 64;

/// The samples of a file, with targets that mean nothing.
struct Samples {
  std::shared_ptr<const data::Dataset> dataset;
  std::vector<std::int64_t> lines;  ///< empty: samples have none
};

Result<std::shared_ptr<const data::Dataset>> unlabelled(torch::Tensor inputs,
                                                        torch::ScalarType dtype) {
  const torch::Tensor targets =
      torch::zeros({inputs.dim() > 0 ? inputs.size(0) : 0}, torch::kInt64);
  STORMO_ASSIGN_OR_RETURN(auto dataset,
                          data::TensorDataset::create(std::move(inputs), targets, dtype));
  return std::shared_ptr<const data::Dataset>(std::move(dataset));
}

/// MNIST's own pixels are 28 x 28 grey ones, normalised in a way of their own.
Result<Samples> open_image(const TrainedModel& model, const std::string& file) {
  data::ImageFolderOptions options = image_options(model.recipe);
  options.on_error = data::ImageFolderOptions::OnError::kFail;
  if (model.recipe.data.kind == "mnist") {
    options.channels = 1;
    options.height = options.width = 28;
    options.values = {.dtype = scalar_type(model.recipe)};
  }
  STORMO_ASSIGN_OR_RETURN(auto image, data::ImageFolder::of_file(file, options));
  return Samples{std::move(image), {}};
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
  data::TableOptions options = table_options(model.recipe);
  options.columns = model.preprocessing.columns;
  options.labelled = false;
  STORMO_ASSIGN_OR_RETURN(data::Table table, data::read_table(file, options));
  const torch::ScalarType dtype = scalar_type(model.recipe);
  STORMO_ASSIGN_OR_RETURN(auto dataset, unlabelled(feature_tensor(table, dtype), dtype));
  return Samples{std::move(dataset), std::move(table.lines)};
}

Result<torch::Tensor> read_inputs(const TrainedModel& model, const std::string& file) {
  if (model.recipe.data.kind == "npy") return data::load_npy(file);
  STORMO_ASSIGN_OR_RETURN(const TensorMap tensors, read_safetensors(file));
  if (tensors.contains("inputs")) return tensors.at("inputs");
  return invalid_argument(file + " has no tensor \"inputs\"");
}

Result<Samples> open_array(const TrainedModel& model, const std::string& file) {
  STORMO_ASSIGN_OR_RETURN(torch::Tensor inputs, read_inputs(model, file));
  auto dataset = unlabelled(std::move(inputs), scalar_type(model.recipe));
  if (!dataset.ok()) return dataset.status().within(file);
  const auto& tensors = static_cast<const data::TensorDataset&>(**dataset);
  if (tensors.sample_shape() != model.preprocessing.input) {
    return invalid_argument(fmt::format("{}: samples of shape [{}], the model was trained on [{}]",
                                        file, fmt::join(tensors.sample_shape(), ", "),
                                        fmt::join(model.preprocessing.input, ", ")));
  }
  std::vector<std::int64_t> rows(static_cast<std::size_t>(tensors.size()));
  std::iota(rows.begin(), rows.end(), std::int64_t{1});
  return Samples{std::move(dataset).value(), std::move(rows)};
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

Status predict(const TrainedModel& model, const std::string& file, int top,
               const std::function<void(const Prediction&)>& take) {
  STORMO_ASSIGN_OR_RETURN(const Samples samples, open_samples(model, file));
  const torch::NoGradGuard no_grad;
  const std::int64_t size = samples.dataset->size();
  for (std::int64_t first = 0; first < size; first += kBatch) {
    std::vector<std::int64_t> indices(static_cast<std::size_t>(std::min(kBatch, size - first)));
    std::iota(indices.begin(), indices.end(), first);
    const torch::Tensor output = model.task.forward(samples.dataset->get(indices, 0).input);
    const torch::Tensor chances = at::softmax(output.to(torch::kFloat64), 1);
    for (std::int64_t row = 0; row < std::ssize(indices); ++row) {
      const auto sample = static_cast<std::size_t>(first + row);
      take({.file = file,
            .line = samples.lines.empty() ? 0 : samples.lines[sample],
            .likeliest = likeliest(chances[row], model.preprocessing.classes, top)});
    }
  }
  return {};
}

}  // namespace

Status predict_file(const TrainedModel& model, const std::string& file, int top,
                    const std::function<void(const Prediction&)>& take) {
  try {
    return predict(model, file, top, take);
  } catch (const Error& e) {
    return e.status();
  } catch (const std::exception& e) {  // libtorch's allocator throws
    return Status(Code::kExhausted, e.what()).within(file);
  }
}

}  // namespace stormo::train
