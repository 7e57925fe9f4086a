#include <stormo/data/tensor_dataset.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include <ATen/Dispatch.h>

#include <stormo/base/check.h>

namespace stormo::data {
namespace {

Status check_forms(at::IntArrayRef inputs, torch::ScalarType type, const torch::Tensor& targets) {
  if (inputs.size() < 2 || c10::isComplexType(type) || type == torch::kBool) {
    return invalid_argument(
        fmt::format("inputs are {} of shape [{}]; give contiguous real numbers [samples, ...]",
                    c10::toString(type), fmt::join(inputs, ", ")));
  }
  if (targets.dim() != 1 || !c10::isIntegralType(targets.scalar_type(), /*includeBool=*/false)) {
    return invalid_argument(
        fmt::format("targets are {} of shape [{}]; give whole numbers [samples]",
                    c10::toString(targets.scalar_type()), fmt::join(targets.sizes(), ", ")));
  }
  if (inputs[0] != targets.size(0) || c10::multiply_integers(inputs) == 0) {
    return invalid_argument(fmt::format(
        "{} inputs of shape [{}] and {} targets; there must be as many, at least one, and none "
        "may be empty",
        inputs[0], fmt::join(inputs, ", "), targets.size(0)));
  }
  return {};
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
                                                                   torch::ScalarType dtype) {
  if (!inputs.is_contiguous() || !inputs.device().is_cpu()) {
    return invalid_argument("inputs are not contiguous, or not in the memory of the host");
  }
  std::shared_ptr<TensorDataset> data(new TensorDataset());
  data->input_type_ = inputs.scalar_type();
  STORMO_RETURN_IF_ERROR(data->take(inputs.sizes(), targets, dtype));
  data->inputs_ = std::move(inputs);
  return std::shared_ptr<const TensorDataset>(std::move(data));
}

Result<std::shared_ptr<const TensorDataset>> TensorDataset::create(NpyArray inputs,
                                                                   const torch::Tensor& targets,
                                                                   torch::ScalarType dtype) {
  std::shared_ptr<TensorDataset> data(new TensorDataset());
  data->input_type_ = inputs.dtype();
  STORMO_RETURN_IF_ERROR(data->take(inputs.shape(), targets, dtype));
  data->file_ = std::move(inputs);
  return std::shared_ptr<const TensorDataset>(std::move(data));
}

Status TensorDataset::take(at::IntArrayRef input_sizes, const torch::Tensor& targets,
                           torch::ScalarType dtype) {
  STORMO_CHECK(dtype == torch::kFloat32 || dtype == torch::kFloat64, "float32 or float64");
  STORMO_RETURN_IF_ERROR(check_forms(input_sizes, input_type_, targets));
  const torch::Tensor classes = targets.to(torch::kInt64).contiguous();
  const auto* first = classes.const_data_ptr<std::int64_t>();
  targets_.assign(first, first + classes.numel());
  const auto [least, most] = std::ranges::minmax_element(targets_);
  if (*least < 0) {
    return invalid_argument(fmt::format("the target of sample {} is {}; classes count from 0",
                                        least - targets_.begin(), *least));
  }
  classes_ = *most + 1;
  sample_shape_ = input_sizes.slice(1).vec();
  row_elements_ = c10::multiply_integers(sample_shape_);
  if (input_sizes.size() == 3) sample_shape_.insert(sample_shape_.begin(), 1);
  dtype_ = dtype;
  return {};
}

const void* TensorDataset::row(std::int64_t index, std::span<std::byte> scratch) const {
  if (!file_) {
    return static_cast<const std::byte*>(inputs_.const_data_ptr()) + index * std::ssize(scratch);
  }
  throw_if_error(file_->read(index * row_elements_, scratch));
  return scratch.data();
}

// Plain loops: see Dataset about threads.
Batch TensorDataset::get(std::span<const std::int64_t> indices, std::int64_t /*epoch*/) const {
  std::vector<std::int64_t> shape{std::ssize(indices)};
  shape.insert(shape.end(), sample_shape_.begin(), sample_shape_.end());
  Batch batch{torch::empty(shape, dtype_), torch::empty({std::ssize(indices)}, torch::kInt64)};
  auto* target = batch.target.mutable_data_ptr<std::int64_t>();
  std::vector<std::byte> scratch(static_cast<std::size_t>(row_elements_) *
                                 c10::elementSize(input_type_));
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::int64_t index = indices[i];
    STORMO_CHECK(index >= 0 && index < size(), "sample index out of range");
    const void* from = row(index, scratch);
    const std::int64_t at = static_cast<std::int64_t>(i) * row_elements_;
    if (dtype_ == torch::kFloat64) {
      convert(from, input_type_, row_elements_, batch.input.mutable_data_ptr<double>() + at);
    } else {
      convert(from, input_type_, row_elements_, batch.input.mutable_data_ptr<float>() + at);
    }
    target[i] = targets_[static_cast<std::size_t>(index)];
  }
  return batch;
}

}  // namespace stormo::data
