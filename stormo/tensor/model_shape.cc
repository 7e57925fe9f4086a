#include <stormo/tensor/model_shape.h>

#include <stormo/tensor/dtype.h>

namespace stormo::tensor {

plan::ParameterShape parameter_shape(std::string name, const torch::Tensor& parameter) {
  return {.name = std::move(name),
          .elements = parameter.numel(),
          .dtype = dtype_of(parameter.scalar_type()).take_or_throw(),
          .trainable = parameter.requires_grad(),
          .rows = parameter.dim() > 1 && parameter.numel() > 0 ? parameter.size(0) : 0};
}

std::vector<plan::ParameterShape> parameter_shapes(const torch::nn::Module& module,
                                                   const std::string& prefix) {
  std::vector<plan::ParameterShape> out;
  for (const auto& p : module.named_parameters()) {
    out.push_back(parameter_shape(prefix.empty() ? p.key() : prefix + "." + p.key(), p.value()));
  }
  return out;
}

}  // namespace stormo::tensor
