#pragma once

#include <cstdint>
#include <vector>

#include <stormo/model/chain.h>

namespace stormo::model {

/// Fully connected layers with ReLU between them; one Segment per layer.
/// Input [B, ...] is flattened to [B, sizes.front()]; output [B, sizes.back()] are logits.
class Mlp : public Chain {
 public:
  /// At least two sizes, all positive, e.g. {784, 512, 512, 10}.
  explicit Mlp(const std::vector<std::int64_t>& sizes);
};

}  // namespace stormo::model
