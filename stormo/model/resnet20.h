#pragma once

#include <cstdint>

#include <stormo/model/chain.h>

namespace stormo::model {

/// Sizes of a ResNet20; all positive. One rank takes images of any size, and uses height and width
/// only to count flops. Ranks that have parts of the places need images of this size.
struct ResNet20Options {
  std::int64_t channels = 3;
  std::int64_t height = 32;
  std::int64_t width = 32;
  std::int64_t classes = 10;
};

/// The residual network with 20 layers for small images of He et al. ("Deep residual learning for
/// image recognition", 2016, section 4.2): a 3 x 3 convolution, three stages of three blocks with
/// 16, 32 and 64 channels, mean over all places, one linear layer; short-cuts without parameters
/// (their option A); 269,722 parameters for 10 classes of colour images. Batch normalisation keeps
/// running means and variances in buffers.
/// Segments: "stem", "block0" ... "block8", "head". Input [B, channels, H, W], output [B, classes]
/// logits.
class ResNet20 : public Chain {
 public:
  explicit ResNet20(const ResNet20Options& options = {});
};

}  // namespace stormo::model
