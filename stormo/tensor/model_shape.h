#pragma once

#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>

#include <stormo/plan/model/model_shape.h>

namespace stormo::tensor {

/// A parameter as plans name it. Throws Error for an element type that plans do not support.
plan::ParameterShape parameter_shape(std::string name, const torch::Tensor& parameter);

/// The module's parameters in its order, each once; names get `prefix` (may be empty). Throws Error
/// for an element type that plans do not support.
std::vector<plan::ParameterShape> parameter_shapes(const torch::nn::Module& module,
                                                   const std::string& prefix);

}  // namespace stormo::tensor
