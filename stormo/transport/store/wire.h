#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace stormo::transport {

static_assert(std::endian::native == std::endian::little, "wire format is little-endian");

/// Appends an integer of fixed width, little-endian.
template <std::integral T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// Appends a 32-bit length and the bytes.
inline void put_bytes(std::string& out, std::string_view bytes) {
  put(out, static_cast<std::uint32_t>(bytes.size()));
  out.append(bytes);
}

/// Reads the format of put() from untrusted input. It never reads past the end, and compares a
/// length with its limit and with the remaining bytes before it is used. After the first failure
/// all reads fail.
class WireReader {
 public:
  explicit WireReader(std::string_view in) : rest_(in) {}

  template <std::integral T>
  bool read(T& value) {
    if (rest_.size() < sizeof value) return fail();
    std::memcpy(&value, rest_.data(), sizeof value);
    rest_.remove_prefix(sizeof value);
    return true;
  }

  bool read_bytes(std::size_t max_bytes, std::string_view& bytes) {
    std::uint32_t length = 0;
    if (!read(length)) return false;
    if (length > max_bytes || length > rest_.size()) return fail();
    bytes = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return true;
  }

  /// True if all reads succeeded.
  bool good() const { return !failed_; }
  /// True if all reads succeeded and no bytes are left.
  bool done() const { return !failed_ && rest_.empty(); }

 private:
  bool fail() {
    failed_ = true;
    rest_ = {};
    return false;
  }

  std::string_view rest_;
  bool failed_ = false;
};

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace stormo::transport
