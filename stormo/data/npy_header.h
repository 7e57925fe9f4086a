#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::data {

/// What the front of a NumPy .npy file says (format versions 1.0, 2.0 and 3.0).
struct NpyHeader {
  std::string dtype;  ///< "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8"; little endian
  std::vector<std::int64_t> shape;
  std::size_t begin = 0;  ///< of the elements: C order, up to the end of the file
};

/// The longest front of a file that parse_npy_header() looks at.
inline constexpr std::size_t kMaxNpyFront = (1u << 16) + 12;

/// Reads the header of a file of `file_bytes`, which must hold exactly the elements that it
/// promises; `front` is its beginning, kMaxNpyFront bytes or all. kCorrupt for what is no .npy file
/// or is damaged; kInvalidArgument, with the line of NumPy that helps, for arrays that are not
/// read: big endian, Fortran order, other types. Messages do not name the file.
Result<NpyHeader> parse_npy_header(std::span<const std::byte> front, std::uint64_t file_bytes);

}  // namespace stormo::data
