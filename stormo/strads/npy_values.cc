#include <stormo/strads/npy_values.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string_view>
#include <system_error>

#include <stormo/base/file.h>
#include <stormo/base/npy_header.h>
#include <stormo/base/replace_file.h>

namespace stormo::strads {
namespace {

constexpr std::array<std::string_view, 4> kTypes = {"f8", "f4", "i4", "i8"};

template <class T>
std::vector<double> converted(std::span<const char> bytes) {
  std::vector<double> out(bytes.size() / sizeof(T));
  for (std::size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    out[i] = static_cast<double>(value);
  }
  return out;
}

/// The first bytes of a file, at most `most`.
Result<std::string> front_of(const std::string& path, std::size_t most) {
  // it is a regular file, so reading it never waits for another program
  STORMO_RETURN_IF_ERROR(open_regular(path).status());
  std::error_code failed;
  const std::uint64_t size = std::filesystem::file_size(path, failed);
  std::string bytes(static_cast<std::size_t>(std::min<std::uint64_t>(size, most)), '\0');
  std::ifstream file(path, std::ios::binary);
  if (!failed) file.read(bytes.data(), std::ssize(bytes));
  if (failed || !file) return io_error("cannot read '" + path + "'");
  return bytes;
}

Result<NpyHeader> header_of(const std::string& path, std::string_view front, std::uint64_t size) {
  const auto header = parse_npy_header(std::as_bytes(std::span(front)), size);
  if (!header.ok()) {
    return Status(header.status().code(), fmt::format("'{}' {}", path, header.status().message()));
  }
  if (std::ranges::find(kTypes, header->dtype) != kTypes.end()) return header;
  return invalid_argument(
      fmt::format("'{}' has elements of type {}; save a.astype('float64')", path, header->dtype));
}

}  // namespace

Result<std::vector<std::int64_t>> read_npy_shape(const std::string& path, std::size_t dimensions) {
  STORMO_ASSIGN_OR_RETURN(const std::string front, front_of(path, kMaxNpyFront));
  std::error_code failed;
  const std::uint64_t size = std::filesystem::file_size(path, failed);
  STORMO_ASSIGN_OR_RETURN(const NpyHeader header, header_of(path, front, size));
  if (header.shape.size() == dimensions) return header.shape;
  return invalid_argument(
      fmt::format("'{}' has {} dimensions, not {}", path, header.shape.size(), dimensions));
}

Result<NpyValues> read_npy(const std::string& path) {
  STORMO_ASSIGN_OR_RETURN(const std::string bytes,
                          front_of(path, std::numeric_limits<std::size_t>::max()));
  STORMO_ASSIGN_OR_RETURN(const NpyHeader header, header_of(path, bytes, bytes.size()));
  const auto elements = std::span(bytes).subspan(header.begin);
  if (header.dtype == "f8") return NpyValues{header.shape, converted<double>(elements)};
  if (header.dtype == "f4") return NpyValues{header.shape, converted<float>(elements)};
  if (header.dtype == "i4") return NpyValues{header.shape, converted<std::int32_t>(elements)};
  return NpyValues{header.shape, converted<std::int64_t>(elements)};
}

Status write_npy(const std::string& path, std::span<const std::int64_t> shape,
                 std::span<const double> values) {
  constexpr std::size_t kAlignment = 64, kFront = 10;
  std::string header = fmt::format("{{'descr': '<f8', 'fortran_order': False, 'shape': ({},), }}",
                                   fmt::join(shape, ", "));
  header.append(kAlignment - (kFront + header.size() + 1) % kAlignment, ' ');
  header += '\n';
  return replace_file(path, [&](std::ostream& file) {
    file << "\x93NUMPY\x01" << '\0' << static_cast<char>(header.size() & 0xff)
         << static_cast<char>(header.size() >> 8) << header;
    file.write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(values.size_bytes()));
  });
}

}  // namespace stormo::strads
