#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::server {

/// Ranges of memory that are sent or received one after the other, in large system calls without
/// a copy. The memory is borrowed.
class ByteRanges {
 public:
  void add(const void* data, std::size_t bytes);
  /// The body of a frame that goes before all ranges, of which none counts as moved then.
  void set_head(std::string body);
  bool done() const { return next_ >= ranges_.size(); }
  /// Bytes that were moved since the beginning.
  std::size_t moved() const { return moved_; }

  /// As much as the socket takes or has now: false if that was nothing (it does not block). kIo
  /// when the connection has ended.
  Result<bool> send(int fd) { return transfer(fd, Way::kSend); }
  Result<bool> receive(int fd) { return transfer(fd, Way::kReceive); }
  /// All of it, from the first byte, on a socket that blocks.
  Status send_all(int fd) { return transfer_all(fd, Way::kSend); }
  Status receive_all(int fd) { return transfer_all(fd, Way::kReceive); }
  /// Back to the first byte.
  void rewind();

 private:
  enum class Way { kSend, kReceive };
  static constexpr std::size_t kNoHead = 2;  // the first range without one
  Result<bool> transfer(int fd, Way way);
  Status transfer_all(int fd, Way way);

  std::optional<std::string> head_;
  std::uint32_t head_bytes_ = 0;
  std::vector<iovec> ranges_ = {{}, {}};  // the first two: the length of the head, and its body
  std::size_t next_ = kNoHead;            // range
  std::size_t offset_ = 0;                // bytes of it that are done
  std::size_t moved_ = 0;                 // of all ranges
};

}  // namespace stormo::server
