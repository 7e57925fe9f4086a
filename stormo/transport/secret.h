#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <stormo/base/status.h>

namespace stormo::transport {

/// The job's 256-bit secret. Never in argv, environment or a log: it travels by inherited
/// descriptor, standard input of a remote shell, or a 0600 file.
class Secret {
 public:
  static constexpr std::size_t kBytes = 32;
  Secret() = default;  ///< no secret: enough for Unix sockets, refused for tcp
  static Secret random();
  /// 64 hexadecimal digits, as in the rendezvous file and on a remote shell's standard input.
  static Result<Secret> from_hex(std::string_view text);
  std::string to_hex() const;

  bool empty() const { return !bytes_.has_value(); }
  const std::array<std::uint8_t, kBytes>& bytes() const { return *bytes_; }

 private:
  std::optional<std::array<std::uint8_t, kBytes>> bytes_;
};

}  // namespace stormo::transport
