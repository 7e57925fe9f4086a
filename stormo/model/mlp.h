#pragma once

#include <cstdint>
#include <vector>

#include <stormo/model/chain.h>

namespace stormo::model {

/// How ranks cut an Mlp that they compute together.
enum class MlpCut : std::uint8_t {
  kByLayers,   ///< tensor parallelism: all layers, see cut_of_layer()
  kByColumns,  ///< the first layer by the columns of the input, of which each rank has some; one
               ///< rank has the targets
};

/// Fully connected layers with ReLU between them; one Segment per layer.
/// Input [B, ...] is flattened to [B, sizes.front()]; output [B, sizes.back()] are logits.
class Mlp : public Chain {
 public:
  /// At least two sizes, all positive, e.g. {784, 512, 512, 10}.
  explicit Mlp(const std::vector<std::int64_t>& sizes, MlpCut cut = MlpCut::kByLayers);
};

}  // namespace stormo::model
