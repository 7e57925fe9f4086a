#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::strads {

/// The numbers of a NumPy .npy file, in C order.
struct NpyValues {
  std::vector<std::int64_t> shape;
  std::vector<double> values;
};

/// The shape alone, for checks before a run; errors as read_npy(), and kInvalidArgument for another
/// number of dimensions.
Result<std::vector<std::int64_t>> read_npy_shape(const std::string& path, std::size_t dimensions);

/// Reads a whole array of float32, float64, int32 or int64. Errors name the file; as of
/// parse_npy_header(), and kInvalidArgument for another type.
Result<NpyValues> read_npy(const std::string& path);

/// Writes float64, as replace_file() does.
Status write_npy(const std::string& path, std::span<const std::int64_t> shape,
                 std::span<const double> values);

}  // namespace stormo::strads
