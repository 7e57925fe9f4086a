#pragma once

#include <cstdint>

#include <stormo/model/chain.h>

namespace stormo::model {

/// Sizes of a Cnn; all positive.
struct CnnOptions {
  std::int64_t channels1 = 16;
  std::int64_t channels2 = 32;
  std::int64_t hidden = 128;
  std::int64_t classes = 10;
};

/// LeNet class (LeCun et al. 1998), for grey images of 28 x 28: two 5 x 5 convolutions, each with
/// ReLU and 2 x 2 max pooling, then two fully connected layers. Four Segments.
/// Input [B, 1, 28, 28], output [B, classes] are logits.
class Cnn : public Chain {
 public:
  explicit Cnn(const CnnOptions& options = {});
};

}  // namespace stormo::model
