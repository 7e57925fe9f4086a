#pragma once

#include <cstddef>
#include <vector>

#include <stormo/base/rng.h>
#include <stormo/codec/codec.h>

namespace stormo {

struct Coded {
  std::vector<std::byte> code;
  std::vector<float> decoded;
  std::vector<float> lost;
};

/// One message in a codec that encodes.
inline Coded coded(const CodecRow& row, const std::vector<float>& values, const CodeKey& key = {}) {
  const auto bytes = row.bytes(static_cast<std::int64_t>(values.size()), key.density);
  Coded out{.code = std::vector<std::byte>(static_cast<std::size_t>(bytes)),
            .decoded = std::vector<float>(values.size()),
            .lost = values};
  row.encode(out.lost, out.code.data(), key);
  row.decode_add(out.code.data(), out.decoded, key);
  return out;
}

/// From -scale to scale.
inline std::vector<float> random_values(std::size_t count, double scale, std::uint64_t seed = 7) {
  Rng rng(seed, "codec_test");
  std::vector<float> out(count);
  for (float& v : out) v = static_cast<float>(scale * (2 * rng.uniform() - 1));
  return out;
}

}  // namespace stormo
