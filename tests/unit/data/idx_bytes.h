#pragma once

#include <zlib.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace stormo::data {

/// An IDX file of unsigned bytes as its specification describes it.
inline std::string idx_bytes(const std::vector<std::uint32_t>& dims, std::string_view values) {
  std::string out{'\0', '\0', '\x08', static_cast<char>(dims.size())};
  for (const std::uint32_t d : dims) {
    for (const int shift : {24, 16, 8, 0}) out.push_back(static_cast<char>(d >> shift & 0xff));
  }
  return out.append(values);
}

inline std::string gzip(const std::string& bytes) {
  z_stream z{};
  deflateInit2(&z, Z_BEST_SPEED, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);  // 16: gzip framing
  std::vector<unsigned char> in(bytes.begin(), bytes.end());
  std::vector<unsigned char> out(deflateBound(&z, in.size()) + 32);
  z.next_in = in.data();
  z.avail_in = static_cast<unsigned>(in.size());
  z.next_out = out.data();
  z.avail_out = static_cast<unsigned>(out.size());
  deflate(&z, Z_FINISH);
  std::string result(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(z.total_out));
  deflateEnd(&z);
  return result;
}

}  // namespace stormo::data
