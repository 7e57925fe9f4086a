#pragma once

#include <torch/types.h>

namespace stormo::tensor {

/// The state of libtorch's random generator of a device; there is one per process. A second
/// computation that starts from the same state draws the same numbers. On the CPU about 5 KB.
torch::Tensor generator_state(torch::Device device = torch::kCPU);
void set_generator_state(const torch::Tensor& state, torch::Device device = torch::kCPU);

/// Sets the generator's state, and restores the previous one in the destructor.
class GeneratorAt {
 public:
  explicit GeneratorAt(const torch::Tensor& state, torch::Device device = torch::kCPU)
      : device_(device), before_(generator_state(device)) {
    set_generator_state(state, device);
  }
  ~GeneratorAt() { set_generator_state(before_, device_); }
  GeneratorAt(const GeneratorAt&) = delete;
  GeneratorAt& operator=(const GeneratorAt&) = delete;

 private:
  torch::Device device_;
  torch::Tensor before_;
};

}  // namespace stormo::tensor
