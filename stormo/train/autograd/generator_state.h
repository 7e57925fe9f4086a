#pragma once

#include <torch/types.h>

namespace stormo::train {

/// Of libtorch's CPU generator, which is one for the process: a second run of a forward that starts
/// from the first one's state draws the same numbers (dropout). About 5 KB.
torch::Tensor generator_state();
void set_generator_state(const torch::Tensor& state);

/// Sets it while this lives.
class GeneratorAt {
 public:
  explicit GeneratorAt(const torch::Tensor& state) { set_generator_state(state); }
  ~GeneratorAt() { set_generator_state(before_); }
  GeneratorAt(const GeneratorAt&) = delete;
  GeneratorAt& operator=(const GeneratorAt&) = delete;

 private:
  torch::Tensor before_ = generator_state();
};

}  // namespace stormo::train
