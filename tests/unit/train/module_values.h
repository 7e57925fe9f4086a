#pragma once

#include <map>
#include <string>

#include <torch/nn/module.h>

namespace stormo::test {

/// By name.
using Values = std::map<std::string, torch::Tensor>;

/// Copies of the parameters, on the CPU.
inline Values values_of(const torch::nn::Module& module) {
  Values out;
  for (const auto& p : module.named_parameters()) out[p.key()] = p.value().detach().cpu().clone();
  return out;
}

}  // namespace stormo::test
