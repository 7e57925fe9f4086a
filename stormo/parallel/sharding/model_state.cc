#include <stormo/parallel/sharding/model_state.h>

namespace stormo::parallel {

double model_state_bytes(int stage, int ranks, std::int64_t parameters,
                         const StateBytesPerParameter& each) {
  const double n = ranks;
  const double bytes = each.parameters / (stage >= 3 ? n : 1) +
                       each.gradients / (stage >= 2 ? n : 1) +
                       each.optimizer / (stage >= 1 ? n : 1);
  return bytes * static_cast<double>(parameters);
}

}  // namespace stormo::parallel
