#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <utility>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::server {

/// Ranges of memory that are sent or received one after the other, in large system calls without
/// a copy. The memory is borrowed.
class ByteRanges {
 public:
  ByteRanges() = default;
  void add(const void* data, std::size_t bytes);
  /// In front of all others; before the first byte is moved.
  void put_first(const void* data, std::size_t bytes);
  bool done() const { return next_ == ranges_.size(); }
  /// Bytes that were moved since the beginning.
  std::size_t moved() const { return moved_; }

  /// As much as the socket takes or has now: false if that was nothing (it does not block). kIo
  /// when the connection has ended.
  Result<bool> send(int fd) { return transfer(fd, Way::kSend); }
  Result<bool> receive(int fd) { return transfer(fd, Way::kReceive); }
  /// All of it, on a socket that blocks.
  Status send_all(int fd) { return transfer_all(fd, Way::kSend); }
  Status receive_all(int fd) { return transfer_all(fd, Way::kReceive); }
  /// Back to the first byte.
  void rewind();

 private:
  enum class Way { kSend, kReceive };
  Result<bool> transfer(int fd, Way way);
  Status transfer_all(int fd, Way way);

  std::vector<iovec> ranges_;
  std::size_t next_ = 0;    // range
  std::size_t offset_ = 0;  // bytes of it that are done
  std::size_t moved_ = 0;   // of all ranges
};

}  // namespace stormo::server
