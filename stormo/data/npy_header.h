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

/// Reads the header of `file`, which must hold exactly the elements that it promises. kCorrupt for
/// what is no .npy file or is damaged; kInvalidArgument, with the line of NumPy that helps, for
/// arrays that are not read: big endian, Fortran order, other types. Messages do not name the file.
Result<NpyHeader> parse_npy_header(std::span<const std::byte> file);

}  // namespace stormo::data
