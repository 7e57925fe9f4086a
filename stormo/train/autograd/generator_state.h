#pragma once

#include <torch/types.h>

namespace stormo::train {

/// Of libtorch's CPU generator, which is one for the process: a second run of a forward that starts
/// from the first one's state draws the same numbers (dropout). About 5 KB.
torch::Tensor generator_state();
void set_generator_state(const torch::Tensor& state);

}  // namespace stormo::train
