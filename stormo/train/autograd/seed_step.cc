#include <stormo/train/autograd/seed_step.h>

#include <torch/utils.h>

#include <stormo/base/rng.h>

namespace stormo::train {

void seed_step(std::uint64_t seed, std::int64_t step, Rank rank) {
  Rng rng(seed, "step", static_cast<std::uint64_t>(step));
  torch::manual_seed(rng.next_u64() + static_cast<std::uint64_t>(rank));
}

}  // namespace stormo::train
