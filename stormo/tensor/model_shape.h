#pragma once

#include <string>
#include <vector>

#include <torch/nn/module.h>

#include <stormo/plan/model_shape.h>

namespace stormo::tensor {

/// The module's parameters in its own order, each once, their names below `prefix` ("": none).
/// Throws Error for an element type that no plan knows.
std::vector<plan::ParameterShape> parameter_shapes(const torch::nn::Module& module,
                                                   const std::string& prefix);

}  // namespace stormo::tensor
