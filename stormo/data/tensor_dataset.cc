#include <stormo/data/tensor_dataset.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>
#include <utility>

#include <ATen/Dispatch.h>

#include <stormo/base/check.h>
#include <stormo/data/fingerprint.h>
#include <stormo/data/sharding.h>

namespace stormo::data {
namespace {

/// A larger file is checked when its rows are read.
constexpr std::size_t kCheckedAtOnce = std::size_t{64} << 20;

constexpr std::array kRead = {torch::kUInt8,    torch::kInt8,    torch::kInt16,
                              torch::kInt32,    torch::kInt64,   torch::kHalf,
                              torch::kBFloat16, torch::kFloat32, torch::kFloat64};

bool is_read(torch::ScalarType type) { return std::ranges::find(kRead, type) != kRead.end(); }

Status check_forms(at::IntArrayRef inputs, torch::ScalarType type, const torch::Tensor& targets,
                   bool classes) {
  if (inputs.size() < 2 || !is_read(type)) {
    return invalid_argument(fmt::format(
        "inputs are {} of shape [{}]; give contiguous numbers [samples, ...] of type uint8, int8, "
        "int16, int32, int64, float16, bfloat16, float32 or float64",
        c10::toString(type), fmt::join(inputs, ", ")));
  }
  const auto target = targets.scalar_type();
  const bool fits =
      is_read(target) && (!classes || c10::isIntegralType(target, /*includeBool=*/false));
  if (targets.dim() != 1 || !fits) {
    return invalid_argument(fmt::format(
        "targets are {} of shape [{}]; give {} [samples]{}", c10::toString(target),
        fmt::join(targets.sizes(), ", "), classes ? "whole numbers" : "numbers",
        classes && c10::isFloatingType(target) ? ", or write train.loss = \"mse\" for regression"
                                               : ""));
  }
  if (inputs[0] != targets.size(0) || c10::multiply_integers(inputs) == 0) {
    return invalid_argument(fmt::format(
        "{} inputs of shape [{}] and {} targets; there must be as many, at least one, and none "
        "may be empty",
        inputs[0], fmt::join(inputs, ", "), targets.size(0)));
  }
  return {};
}

/// The largest of `targets` (int64) + 1.
Result<std::int64_t> count_classes(const torch::Tensor& targets) {
  const auto* first = targets.const_data_ptr<std::int64_t>();
  const auto [least, most] = std::minmax_element(first, first + targets.numel());
  if (*least >= 0) return *most + 1;
  return invalid_argument(
      fmt::format("the target of sample {} is {}; classes count from 0", least - first, *least));
}

/// `elements` of that type as numbers of type T.
template <class T>
void convert(const void* from, torch::ScalarType type, std::int64_t elements, T* out) {
  AT_DISPATCH_ALL_TYPES_AND2(torch::kHalf, torch::kBFloat16, type, "convert", ([&] {
                               const auto* in = static_cast<const scalar_t*>(from);
                               for (std::int64_t i = 0; i < elements; ++i) {
                                 if constexpr (std::is_same_v<scalar_t, std::uint8_t>) {
                                   out[i] = static_cast<T>(in[i]) / static_cast<T>(255);
                                 } else {
                                   out[i] = static_cast<T>(in[i]);
                                 }
                               }
                             }));
}

}  // namespace

Result<std::shared_ptr<const TensorDataset>> TensorDataset::create(torch::Tensor inputs,
                                                                   const torch::Tensor& targets,
                                                                   torch::ScalarType dtype,
                                                                   Targets kind, std::int64_t bins,
                                                                   bool channels_last) {
  if (!inputs.is_contiguous() || !inputs.device().is_cpu()) {
    return invalid_argument("inputs are not contiguous, or not in the memory of the host");
  }
  std::shared_ptr<TensorDataset> data(new TensorDataset());
  data->input_type_ = inputs.scalar_type();
  STORMO_RETURN_IF_ERROR(data->take(inputs.sizes(), targets, {dtype, kind, bins, channels_last}));
  data->inputs_ = std::move(inputs);
  STORMO_RETURN_IF_ERROR(data->check_numbers());
  return std::shared_ptr<const TensorDataset>(std::move(data));
}

Result<std::shared_ptr<const TensorDataset>> TensorDataset::create(NpyArray inputs,
                                                                   const torch::Tensor& targets,
                                                                   torch::ScalarType dtype,
                                                                   Targets kind, std::int64_t bins,
                                                                   bool channels_last) {
  std::shared_ptr<TensorDataset> data(new TensorDataset());
  data->input_type_ = inputs.dtype();
  STORMO_RETURN_IF_ERROR(data->take(inputs.shape(), targets, {dtype, kind, bins, channels_last}));
  data->file_ = std::move(inputs);
  const std::size_t bytes = static_cast<std::size_t>(data->size() * data->row_elements_) *
                            c10::elementSize(data->input_type_);
  if (bytes <= kCheckedAtOnce) STORMO_RETURN_IF_ERROR(data->check_numbers());
  return std::shared_ptr<const TensorDataset>(std::move(data));
}

Status TensorDataset::take(at::IntArrayRef input_sizes, const torch::Tensor& targets,
                           const Options& options) {
  const torch::ScalarType dtype = options.dtype;
  STORMO_CHECK(dtype == torch::kFloat32 || dtype == torch::kFloat64, "float32 or float64");
  STORMO_CHECK(options.bins >= 1, "at least one bin");
  const bool classes = options.targets == Targets::kClasses;
  STORMO_RETURN_IF_ERROR(check_forms(input_sizes, input_type_, targets, classes));
  targets_ = targets.to(classes ? torch::kInt64 : dtype, /*non_blocking=*/false, /*copy=*/true)
                 .contiguous();
  if (classes) {
    STORMO_ASSIGN_OR_RETURN(classes_, count_classes(targets_));
  } else if (!targets_.isfinite().all().item<bool>()) {
    const auto at = targets_.isfinite().logical_not().nonzero()[0][0].item<std::int64_t>();
    return invalid_argument(fmt::format("the target of sample {} is {}, no finite number as {}", at,
                                        targets[at].item<double>(),
                                        dtype == torch::kFloat64 ? "float64" : "float32"));
  }
  options_ = options;
  options_.channels_last = options.channels_last && input_sizes.size() == 4;
  sample_shape_ = input_sizes.slice(1).vec();
  row_elements_ = c10::multiply_integers(sample_shape_);
  if (input_sizes.size() == 3) sample_shape_.insert(sample_shape_.begin(), 1);
  if (options_.channels_last) std::ranges::rotate(sample_shape_, sample_shape_.end() - 1);
  return {};
}

Status TensorDataset::check_numbers() const {
  if (!c10::isFloatingType(input_type_)) return {};
  const auto all = [&]<class T>(T /*type*/) -> Status {
    const auto elements = static_cast<std::size_t>(row_elements_);
    std::vector<std::byte> scratch(elements * c10::elementSize(input_type_));
    std::vector<T> numbers(elements), out(elements);
    for (std::int64_t i = 0; i < size(); ++i) {
      STORMO_RETURN_IF_ERROR(copy_row<T>(i, scratch, numbers, out.data()));
    }
    return {};
  };
  return options_.dtype == torch::kFloat64 ? all(double()) : all(float());
}

const void* TensorDataset::row(std::int64_t index, std::span<std::byte> scratch) const {
  if (!file_) {
    return static_cast<const std::byte*>(inputs_.const_data_ptr()) + index * std::ssize(scratch);
  }
  throw_if_error(file_->read(index * row_elements_, scratch));
  return scratch.data();
}

/// The numbers of a row, in the order of sample_shape(); `numbers` is scratch.
template <class T>
Status TensorDataset::copy_row(std::int64_t index, std::span<std::byte> scratch,
                               std::span<T> numbers, T* out) const {
  T* const to = options_.channels_last ? numbers.data() : out;
  convert(row(index, scratch), input_type_, row_elements_, to);
  const auto wrong = std::find_if_not(to, to + row_elements_, [](T n) { return std::isfinite(n); });
  if (wrong != to + row_elements_) {
    return invalid_argument(fmt::format(
        "{}sample {} has a number that is not finite as {}; remove it, scale the inputs, or set "
        "precision = \"float64\"",
        file_ ? file_->path() + ": " : "", index,
        options_.dtype == torch::kFloat64 ? "float64" : "float32"));
  }
  if (!options_.channels_last) return {};
  const std::int64_t channels = sample_shape_[0], pixels = row_elements_ / channels;
  for (std::int64_t c = 0; c < channels; ++c) {
    for (std::int64_t p = 0; p < pixels; ++p) *out++ = to[p * channels + c];
  }
  return {};
}

std::uint64_t TensorDataset::fingerprint() const {
  Fingerprint content;
  content.add(std::string_view(c10::toString(input_type_)));
  content.add(std::as_bytes(std::span(sample_shape_)));
  content.add(static_cast<std::int64_t>(options_.channels_last));
  const std::size_t width = c10::elementSize(input_type_);
  if (file_) {
    content.add(static_cast<std::size_t>(size() * row_elements_) * width,
                [&](std::size_t offset, std::span<std::byte> out) {
                  throw_if_error(file_->read(static_cast<std::int64_t>(offset / width), out));
                });
  } else {
    content.add({static_cast<const std::byte*>(inputs_.const_data_ptr()), inputs_.nbytes()});
  }
  content.add({static_cast<const std::byte*>(targets_.const_data_ptr()), targets_.nbytes()});
  return content.value();
}

std::vector<double> TensorDataset::target_numbers() const {
  const torch::Tensor numbers = targets_.to(torch::kFloat64);
  const auto* first = numbers.const_data_ptr<double>();
  return {first, first + size()};
}

SampleLabels TensorDataset::strata() const {
  if (classes_ == 0) return quantile_bins(target_numbers(), options_.bins);
  const auto* first = targets_.const_data_ptr<std::int64_t>();
  return std::vector<std::int32_t>(first, first + size());
}

// Plain loops: see Dataset about threads.
Batch TensorDataset::get(std::span<const std::int64_t> indices, std::int64_t /*epoch*/) const {
  std::vector<std::int64_t> shape{std::ssize(indices)};
  shape.insert(shape.end(), sample_shape_.begin(), sample_shape_.end());
  Batch batch{torch::empty(shape, options_.dtype),
              torch::empty({std::ssize(indices)}, targets_.scalar_type())};
  auto* target = static_cast<std::byte*>(batch.target.mutable_data_ptr());
  const auto width = static_cast<std::int64_t>(targets_.element_size());
  std::vector<std::byte> scratch(static_cast<std::size_t>(row_elements_) *
                                 c10::elementSize(input_type_));
  const auto elements = static_cast<std::size_t>(options_.channels_last ? row_elements_ : 0);
  const auto copy = [&]<class T>(std::int64_t index, std::vector<T>& numbers, T* out) {
    throw_if_error(copy_row<T>(index, scratch, numbers, out));
  };
  std::vector<double> doubles(options_.dtype == torch::kFloat64 ? elements : 0);
  std::vector<float> floats(options_.dtype == torch::kFloat64 ? 0 : elements);
  for (std::int64_t i = 0; i < std::ssize(indices); ++i) {
    const std::int64_t index = indices[static_cast<std::size_t>(i)];
    STORMO_CHECK(index >= 0 && index < size(), "sample index out of range");
    if (options_.dtype == torch::kFloat64) {
      copy(index, doubles, batch.input.mutable_data_ptr<double>() + i * row_elements_);
    } else {
      copy(index, floats, batch.input.mutable_data_ptr<float>() + i * row_elements_);
    }
    const auto* targets = static_cast<const std::byte*>(targets_.const_data_ptr());
    std::copy_n(targets + index * width, width, target + i * width);
  }
  return batch;
}

}  // namespace stormo::data
