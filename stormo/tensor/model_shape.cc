#include <stormo/tensor/model_shape.h>

#include <stormo/tensor/dtype.h>

namespace stormo::tensor {

std::vector<plan::ParameterShape> parameter_shapes(const torch::nn::Module& module,
                                                   const std::string& prefix) {
  std::vector<plan::ParameterShape> out;
  for (const auto& p : module.named_parameters()) {
    const std::string name = prefix.empty() ? p.key() : prefix + "." + p.key();
    out.push_back({.name = name,
                   .elements = p.value().numel(),
                   .dtype = dtype_of(p.value().scalar_type()).take_or_throw(),
                   .trainable = p.value().requires_grad()});
  }
  return out;
}

}  // namespace stormo::tensor
