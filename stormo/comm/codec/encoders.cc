#include <stormo/comm/codec/encoders.h>

#include <algorithm>
#include <vector>

namespace stormo::comm {
namespace {

const std::vector<Encoder>& encoders() {
  static const std::vector<Encoder> rows = {int8_encoder()};
  return rows;
}

}  // namespace

const Encoder* find_encoder(plan::Codec codec) {
  const auto found =
      std::ranges::find(encoders(), codec, [](const Encoder& e) { return e.row.codec; });
  return found == encoders().end() ? nullptr : &*found;
}

}  // namespace stormo::comm
