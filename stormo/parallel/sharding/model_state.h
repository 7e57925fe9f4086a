#pragma once

#include <cstdint>

namespace stormo::parallel {

/// Bytes of model state per parameter. The defaults are those of mixed precision Adam: 16-bit
/// parameters and gradients, float32 master weights and two moments.
struct StateBytesPerParameter {
  double parameters = 2;
  double gradients = 2;
  double optimizer = 12;
};

/// Bytes of model state on each of `ranks` ranks for a model of `parameters` elements, without
/// alignment. ZeRO stage 0 replicates everything, 1 shards the optimizer's state, 2 also gradients,
/// 3 also parameters: 16, 4 + 12/N, 2 + 14/N, 16/N bytes per parameter by default. S. Rajbhandari
/// et al., "ZeRO: memory optimizations toward training trillion parameter models", SC 2020.
double model_state_bytes(int stage, int ranks, std::int64_t parameters,
                         const StateBytesPerParameter& each = {});

}  // namespace stormo::parallel
