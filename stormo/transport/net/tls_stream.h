#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <stormo/base/status.h>

using BIO = struct bio_st;
using SSL = struct ssl_st;

namespace stormo::transport {

/// One end of TLS 1.3 over a connected socket, with a key that both ends know (an external PSK) and
/// an ephemeral Diffie-Hellman exchange, so that who learns the key later cannot read what was
/// recorded. Never blocks, unless it is told to. One thread at a time.
class TlsStream {
 public:
  using Key = std::array<std::byte, 32>;
  enum class Role { kClient, kServer };
  /// A record holds so many bytes at most, and takes so many more on the wire.
  static constexpr std::size_t kRecordBytes = 16384;
  static constexpr std::size_t kRecordOverhead = 22;
  /// What is read ahead of receive() at most.
  static constexpr std::size_t kReadAhead = 48 << 10;

  /// `fd` is borrowed. `key` is for this connection alone: it says who speaks to whom.
  TlsStream(int fd, Role role, const Key& key);
  ~TlsStream();
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  /// As much of the handshake as is possible now; true once it is done. It takes no byte that
  /// follows it from the socket. A failure is final.
  Result<bool> shake_hands();

  /// As sendmsg() and recvmsg(): how many bytes, or -1 and errno. Bytes count as sent when the
  /// whole of their record has left; those that were not sent must come first in the next call, and
  /// not have changed. receive() makes one system call at most, and returns 0 only when the peer
  /// has said that it sends no more: without that the end of the connection is ECONNRESET, because
  /// anybody on the way could have cut it. Bytes that are not the peer's are EBADMSG. What is left
  /// when the parts are full is not seen by poll(): go on until EAGAIN, or give kReadAhead bytes.
  ssize_t send(std::span<const iovec> parts);
  ssize_t receive(std::span<const iovec> parts);
  /// From now on send() and receive() wait, as the socket does.
  void set_blocking() { blocks_ = true; }
  /// The next record has another key; send() does this by itself, long before a key is worn out.
  Status renew_key();

 private:
  static int write_bio(BIO* bio, const char* data, int size);
  static int read_bio(BIO* bio, char* data, int size);
  static long control_bio(BIO* bio, int command, long number, void* pointer);
  friend struct TlsBio;

  Status handshake_failure(int why);
  bool encrypt(std::span<const iovec> parts, std::size_t from, std::size_t total);
  bool flush();
  ssize_t fail(int error);

  const int fd_;
  Key key_;
  SSL* ssl_ = nullptr;
  bool blocks_ = false;
  bool is_open_ = false;  // the handshake is done
  int error_ = 0;         // errno of a failure
  // receiving
  bool may_read_ = false;  // the system call of this receive() was not made yet
  bool has_ended_ = false;
  // sending
  std::vector<unsigned char> out_;  // encrypted
  std::size_t out_begin_ = 0;       // what has not left
  std::size_t encrypted_ = 0;       // bytes of the caller's that out_ stands for
  std::uint64_t records_ = 0;       // with the present key
  std::unique_ptr<unsigned char[]> gathered_;
};

}  // namespace stormo::transport
