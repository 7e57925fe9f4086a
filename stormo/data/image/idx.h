#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::data {

/// An array of bytes in the IDX format, which MNIST uses.
struct IdxArray {
  std::vector<std::int64_t> dims;
  std::vector<std::uint8_t> values;  ///< row-major; as many as the product of dims
};

/// Reads `path`, plain or compressed by gzip, and requires `num_dims` dimensions of unsigned bytes.
/// kNotFound, kIo or kCorrupt name the file and what is wrong with it. Memory is allocated by the
/// content of the file, not by the sizes in its header.
Result<IdxArray> read_idx(const std::string& path, int num_dims);

}  // namespace stormo::data
