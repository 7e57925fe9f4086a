#include <stormo/tensor/generator.h>

#include <mutex>

#include <ATen/Context.h>
#include <torch/utils.h>

namespace stormo::tensor {

torch::Tensor generator_state(torch::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::scoped_lock lock(generator.mutex());
  return generator.get_state();
}

void set_generator_state(const torch::Tensor& state, torch::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::scoped_lock lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace stormo::tensor
