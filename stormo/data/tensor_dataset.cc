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

Status check_forms(const torch::Tensor& inputs, const torch::Tensor& targets) {
  const auto type = inputs.scalar_type();
  if (inputs.dim() < 2 || !inputs.is_contiguous() || !inputs.device().is_cpu() ||
      c10::isComplexType(type) || type == torch::kBool) {
    return invalid_argument(
        fmt::format("inputs are {} of shape [{}]; give contiguous real numbers [samples, ...]",
                    c10::toString(type), fmt::join(inputs.sizes(), ", ")));
  }
  if (targets.dim() != 1 || !c10::isIntegralType(targets.scalar_type(), /*includeBool=*/false)) {
    return invalid_argument(
        fmt::format("targets are {} of shape [{}]; give whole numbers [samples]",
                    c10::toString(targets.scalar_type()), fmt::join(targets.sizes(), ", ")));
  }
  if (inputs.size(0) != targets.size(0) || inputs.numel() == 0) {
    return invalid_argument(fmt::format(
        "{} inputs of shape [{}] and {} targets; there must be as many, at least one, and none "
        "may be empty",
        inputs.size(0), fmt::join(inputs.sizes(), ", "), targets.size(0)));
  }
  return {};
}

/// Row `index` of `inputs` as numbers of type T.
template <class T>
void convert_row(const torch::Tensor& inputs, std::int64_t index, std::int64_t elements, T* out) {
  AT_DISPATCH_ALL_TYPES_AND2(
      torch::kHalf, torch::kBFloat16, inputs.scalar_type(), "convert_row", ([&] {
        const scalar_t* in = inputs.const_data_ptr<scalar_t>() + index * elements;
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
  STORMO_CHECK(dtype == torch::kFloat32 || dtype == torch::kFloat64, "float32 or float64");
  STORMO_RETURN_IF_ERROR(check_forms(inputs, targets));
  std::shared_ptr<TensorDataset> data(new TensorDataset());
  const torch::Tensor classes = targets.to(torch::kInt64).contiguous();
  const auto* first = classes.const_data_ptr<std::int64_t>();
  data->targets_.assign(first, first + classes.numel());
  const auto [least, most] = std::ranges::minmax_element(data->targets_);
  if (*least < 0) {
    return invalid_argument(fmt::format("the target of sample {} is {}; classes count from 0",
                                        least - data->targets_.begin(), *least));
  }
  data->classes_ = *most + 1;
  data->sample_shape_ = inputs.sizes().slice(1).vec();
  if (inputs.dim() == 3) data->sample_shape_.insert(data->sample_shape_.begin(), 1);
  data->inputs_ = std::move(inputs);
  data->dtype_ = dtype;
  return std::shared_ptr<const TensorDataset>(std::move(data));
}

// Plain loops: see Dataset about threads.
Batch TensorDataset::get(std::span<const std::int64_t> indices, std::int64_t /*epoch*/) const {
  std::vector<std::int64_t> shape{std::ssize(indices)};
  shape.insert(shape.end(), sample_shape_.begin(), sample_shape_.end());
  Batch batch{torch::empty(shape, dtype_), torch::empty({std::ssize(indices)}, torch::kInt64)};
  auto* target = batch.target.mutable_data_ptr<std::int64_t>();
  const std::int64_t elements = inputs_.numel() / size();
  for (std::size_t row = 0; row < indices.size(); ++row) {
    const std::int64_t index = indices[row];
    STORMO_CHECK(index >= 0 && index < size(), "sample index out of range");
    const std::int64_t at = static_cast<std::int64_t>(row) * elements;
    if (dtype_ == torch::kFloat64) {
      convert_row(inputs_, index, elements, batch.input.mutable_data_ptr<double>() + at);
    } else {
      convert_row(inputs_, index, elements, batch.input.mutable_data_ptr<float>() + at);
    }
    target[row] = targets_[static_cast<std::size_t>(index)];
  }
  return batch;
}

}  // namespace stormo::data
