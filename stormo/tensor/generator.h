#pragma once

#include <torch/types.h>

namespace stormo::tensor {

/// The state of libtorch's CPU random generator; there is one per process. A second computation
/// that starts from the same state draws the same numbers. About 5 KB.
torch::Tensor generator_state();
void set_generator_state(const torch::Tensor& state);

/// Sets the generator's state, and restores the previous one in the destructor.
class GeneratorAt {
 public:
  explicit GeneratorAt(const torch::Tensor& state) { set_generator_state(state); }
  ~GeneratorAt() { set_generator_state(before_); }
  GeneratorAt(const GeneratorAt&) = delete;
  GeneratorAt& operator=(const GeneratorAt&) = delete;

 private:
  torch::Tensor before_ = generator_state();
};

}  // namespace stormo::tensor
