#pragma once

#include <stormo/comm/codec/encoder.h>

namespace stormo::comm {

/// Blocks of plan::Codec::kInt8: a float32 scale, then a number of 8 bits for each value, which is
/// the nearest of -127 to 127 times the scale. The largest value of a block has 127 or -127. A
/// block with a value that is not finite becomes one of NaN, and nothing of it is kept; of one
/// whose values are all below 1e-36 nothing is sent, and all is kept. The bits are the same on all
/// processors.
Encoder int8_encoder();

}  // namespace stormo::comm
