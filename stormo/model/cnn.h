#pragma once

#include <cstdint>

#include <stormo/model/chain.h>

namespace stormo::model {

/// Sizes of a Cnn; all positive, height and width at least kCnnLeastSide.
struct CnnOptions {
  std::int64_t channels1 = 16;
  std::int64_t channels2 = 32;
  std::int64_t hidden = 128;
  std::int64_t classes = 10;
  std::int64_t channels = 1;  ///< of the input, like height and width
  std::int64_t height = 28;
  std::int64_t width = 28;
};

/// With this side, the output of the second convolution and pooling has one position.
inline constexpr std::int64_t kCnnLeastSide = 16;

/// A CNN like LeNet (LeCun et al. 1998), for images of one size: two 5 x 5 convolutions, each with
/// ReLU and 2 x 2 max pooling, then two fully connected layers. Four Segments. Input [B, channels,
/// height, width], output [B, classes] are logits.
class Cnn : public Chain {
 public:
  explicit Cnn(const CnnOptions& options = {});
};

}  // namespace stormo::model
