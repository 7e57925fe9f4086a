#include <stormo/train/autograd/generator_state.h>

#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/utils.h>

#include <stormo/base/rng.h>

namespace stormo::train {

torch::Tensor generator_state() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::scoped_lock lock(generator.mutex());
  return generator.get_state();
}

void set_generator_state(const torch::Tensor& state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::scoped_lock lock(generator.mutex());
  generator.set_state(state);
}

void seed_step(std::uint64_t seed, std::int64_t step, Rank rank) {
  Rng rng(seed, "step", static_cast<std::uint64_t>(step));
  torch::manual_seed(rng.next_u64() + static_cast<std::uint64_t>(rank));
}

}  // namespace stormo::train
