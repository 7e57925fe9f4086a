#pragma once

#include <cstdint>

#include <torch/types.h>

#include <stormo/base/ids.h>

namespace stormo::train {

/// The state of libtorch's CPU random generator; there is one per process. A second forward that
/// starts from the same state draws the same numbers (dropout). About 5 KB.
torch::Tensor generator_state();
void set_generator_state(const torch::Tensor& state);

/// Seeds the generator for one step of a run. Its state is then a function of seed, step and rank:
/// no checkpoint has to hold it, and ranks draw different numbers.
void seed_step(std::uint64_t seed, std::int64_t step, Rank rank);

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

}  // namespace stormo::train
