#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <stormo/base/status.h>

namespace stormo {

/// The header of a NumPy .npy file (format versions 1.0, 2.0 and 3.0).
struct NpyHeader {
  std::string dtype;  ///< "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8"; little endian
  std::vector<std::int64_t> shape;
  std::size_t begin = 0;  ///< position of the elements: C order, up to the end of the file
};

/// The most bytes at the start of a file that parse_npy_header() needs.
inline constexpr std::size_t kMaxNpyFront = (1u << 16) + 12;

/// The first bytes of a file that say how long its header is.
inline constexpr std::size_t kNpyLengthBytes = 12;
/// The bytes in front of the elements, as the first kNpyLengthBytes of the file say; at most
/// kMaxNpyFront. Any number within these bounds for a file in another format.
std::size_t npy_front_bytes(std::span<const std::byte> first);

/// Parses the header of a file of `file_bytes`, which must have exactly the elements that the
/// header announces. `front` is the start of the file, at least npy_front_bytes() or the whole.
/// kCorrupt for a file that is damaged or not a .npy file. kInvalidArgument, with a line of NumPy
/// code that converts the array, for arrays that are not supported: big endian, Fortran order,
/// other types. Messages do not name the file.
Result<NpyHeader> parse_npy_header(std::span<const std::byte> front, std::uint64_t file_bytes);

}  // namespace stormo
