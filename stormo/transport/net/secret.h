#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <stormo/base/status.h>

namespace stormo::transport {

/// The job's 256-bit secret. It is never in argv, environment or a log, but is passed by an
/// inherited descriptor, the standard input of a remote shell, or a 0600 file. Its bytes are in one
/// page that core dumps leave out. All copies of the object share this page; it is overwritten when
/// the last one is destroyed.
class Secret {
 public:
  static constexpr std::size_t kBytes = 32;
  Secret() = default;  ///< no secret: ranks as threads of one process; refused for jobs and tcp
  static Secret random();
  /// 64 hexadecimal digits, as in the rendezvous file and on a remote shell's standard input.
  static Result<Secret> from_hex(std::string_view text);
  /// The caller overwrites the text after use: see cleanse().
  std::string to_hex() const;

  bool empty() const { return bytes_ == nullptr; }
  const std::array<std::uint8_t, kBytes>& bytes() const { return *bytes_; }

 private:
  using Bytes = std::array<std::uint8_t, kBytes>;
  static std::shared_ptr<Bytes> new_bytes();
  std::shared_ptr<Bytes> bytes_;
};

/// Overwrites text that contained a secret, before its memory is freed.
void cleanse(std::string& text);

}  // namespace stormo::transport
