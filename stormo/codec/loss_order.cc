#include <stormo/codec/loss_order.h>

#include <algorithm>
#include <array>

namespace stormo {
namespace {

constexpr std::array kLosses = {
    CodecLoss{Codec::kNone},
    // as many bytes as float16, fewer bits, but no limit that a large gradient exceeds
    CodecLoss{Codec::kBFloat16},
    CodecLoss{Codec::kFloat16},
    CodecLoss{Codec::kInt8},
    CodecLoss{Codec::kInt4},
    CodecLoss{Codec::kQsgd},
    CodecLoss{Codec::kPowerSgd},
    CodecLoss{Codec::kTernGrad},
    CodecLoss{Codec::kSign},
    CodecLoss{Codec::kTopK},
    CodecLoss{Codec::kThreshold},
    // with the usual density models learn so late that people have to choose it
    CodecLoss{Codec::kRandomK, /*is_automatic=*/false},
};

/// Of the codecs that are known here.
constexpr bool has_each_once() {
  for (std::size_t i = 0; i < kLosses.size(); ++i) {
    const auto same = [i](const CodecLoss& l) { return l.codec == static_cast<Codec::Kind>(i); };
    if (std::ranges::count_if(kLosses, same) != 1) return false;
  }
  return true;
}
static_assert(has_each_once());

}  // namespace

std::span<const CodecLoss> least_lossy_first() { return kLosses; }

}  // namespace stormo
