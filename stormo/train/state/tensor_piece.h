#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include <stormo/checkpoint/format/box.h>

namespace stormo::train {

/// A part of one tensor that a rank saves, for any sharding: elements [begin, end) in C order, or
/// those of a box.
struct TensorPiece {
  std::string name;                 ///< of the whole tensor
  std::vector<std::int64_t> shape;  ///< of the whole tensor
  std::int64_t begin = 0;
  std::int64_t end = 0;
  torch::Tensor values;                     ///< in C order; shared, not copied
  std::optional<checkpoint::Box> box = {};  ///< begin and end do not count then
};

}  // namespace stormo::train
