#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include <stormo/base/descriptor.h>

namespace stormo::transport {

class TlsStream;

/// A connected, authenticated socket; what goes through it is encrypted if its ends have agreed on
/// that. One thread at a time, but any thread may shut fd() down.
class Channel {
 public:
  Channel();
  /// In plain text.
  explicit Channel(Descriptor socket);
  /// `tls` is over `socket`, and its handshake is done.
  Channel(Descriptor socket, std::unique_ptr<TlsStream> tls);
  ~Channel();
  Channel(Channel&& other) noexcept;
  Channel& operator=(Channel&& other) noexcept;

  bool valid() const { return socket_.valid(); }
  /// For poll() and the options of sockets.
  int fd() const { return socket_.get(); }
  bool is_encrypted() const { return tls_ != nullptr; }
  void reset();

  /// As sendmsg() and recvmsg(): how many bytes, or -1 and errno; see describe_socket_error().
  /// They do not wait before set_blocking(). Bytes that were not sent must come first in the next
  /// send(), and not have changed. What is left when receive() has filled all parts may be unseen
  /// by poll(): go on until EAGAIN, or give kReadAhead bytes.
  static constexpr std::size_t kReadAhead = 48 << 10;
  ssize_t send(std::span<const iovec> parts);
  ssize_t receive(std::span<const iovec> parts);
  void set_blocking();

 private:
  Descriptor socket_;
  std::unique_ptr<TlsStream> tls_;
  bool blocks_ = false;
};

/// What errno means after a transfer over a Channel.
std::string describe_socket_error(int error);

}  // namespace stormo::transport
