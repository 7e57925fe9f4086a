#include <stormo/protocol/strads/block_weights.h>

#include <algorithm>
#include <bit>

namespace stormo::protocol {

BlockWeights::BlockWeights(std::int64_t blocks, double weight)
    : blocks_(blocks),
      leaves_(std::bit_ceil(static_cast<std::size_t>(std::max<std::int64_t>(blocks, 1)))),
      sums_(2 * leaves_) {
  std::fill_n(sums_.begin() + static_cast<std::ptrdiff_t>(leaves_), blocks, weight);
  for (std::size_t i = leaves_ - 1; i > 0; --i) sums_[i] = sums_[2 * i] + sums_[2 * i + 1];
}

void BlockWeights::set(std::int64_t block, double weight) {
  std::size_t i = leaves_ + static_cast<std::size_t>(block);
  sums_[i] = weight;
  for (i /= 2; i > 0; i /= 2) sums_[i] = sums_[2 * i] + sums_[2 * i + 1];
}

std::int64_t BlockWeights::at(double share) const {
  double rest = share * sum();
  std::size_t i = 1;
  while (i < leaves_) {
    const double left = sums_[2 * i];
    // never into an empty part, also where rounding has left a rest beyond the sum
    const bool right = rest >= left && sums_[2 * i + 1] > 0;
    if (right) rest -= left;
    i = 2 * i + (right ? 1 : 0);
  }
  return std::min(static_cast<std::int64_t>(i - leaves_), blocks_ - 1);
}

}  // namespace stormo::protocol
