#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/transport/net/channel.h>
#include <stormo/transport/net/socket.h>
#include <stormo/transport/tcp/frame.h>
#include <stormo/transport/transport.h>

namespace stormo::transport {

/// One authenticated connection to a peer: adds and checks frame headers, never blocks. Used only
/// by the thread inside exchange().
class Connection {
 public:
  Connection(Rank peer, Channel socket, Epoch epoch, bool checksum);

  /// Queue a message; its memory is borrowed until it is complete.
  void add(const Outgoing& message) { sends_.push_back({message, {}, 0}); }
  void add(const Incoming& message) { receives_.push_back(message); }
  bool sending() const { return next_send_ < sends_.size(); }
  bool receiving() const { return next_receive_ < receives_.size(); }
  bool busy() const { return sending() || receiving(); }
  /// Removes completed messages from the queues; busy() must be false.
  void clear();

  /// Send or receive as much as possible without blocking, at most about a megabyte; true if any
  /// bytes were moved.
  Result<bool> send_some();
  Result<bool> receive_some();

  Rank peer() const { return peer_; }
  int fd() const { return socket_.fd(); }
  /// "receive #4 from rank 1 (tag 0x7): 0 of 1024 bytes"; for the message of a missed deadline.
  std::string describe_wait() const;
  /// kPeerLost when the peer's kernel has not answered for `limit`: the network is cut.
  Status check_line(TimePoint now, Duration limit);

 private:
  struct Send {
    Outgoing message;
    FrameBytes header;
    std::size_t sent;  // of header and payload together
    std::size_t total() const { return kFrameHeaderBytes + message.bytes.size(); }
  };

  void prepare(Send& send);
  void account_sent(std::size_t bytes);
  /// Uses what was read ahead; OK also when more is needed.
  Status use_staged();
  void report_progress() const;
  Status accept_header();
  Status complete_receive();
  Result<std::size_t> read_socket();
  Status lost(const char* what, int error) const;
  Status receive_error(const Status& why) const;

  static constexpr std::size_t kStagingBytes = 32 << 10;

  const Rank peer_;
  Channel socket_;
  const Epoch epoch_;
  const bool checksum_;

  std::vector<Send> sends_;
  std::size_t next_send_ = 0;
  std::size_t prepared_ = 0;  // sends with a header
  std::uint64_t send_sequence_ = 0;

  std::vector<Incoming> receives_;
  std::size_t next_receive_ = 0;
  std::uint64_t receive_sequence_ = 0;
  bool in_payload_ = false;
  FrameHeader header_;
  std::size_t received_ = 0;  // of the current payload

  Acknowledgements acknowledgements_;

  // Small messages, and what follows them, are read ahead with one system call.
  std::unique_ptr<std::byte[]> staging_;
  std::size_t staged_begin_ = 0;
  std::size_t staged_end_ = 0;
};

}  // namespace stormo::transport
