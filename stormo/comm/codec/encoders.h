#pragma once

#include <stormo/comm/codec/encoder.h>

namespace stormo::comm {

/// That of a codec of blocks; null for codecs that are types.
const Encoder* find_encoder(plan::Codec codec);

}  // namespace stormo::comm
