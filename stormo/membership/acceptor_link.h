#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/protocol/register/register_message.h>
#include <stormo/transport/call/frame_connection.h>
#include <stormo/transport/net/dialer.h>
#include <stormo/transport/net/secret.h>
#include <stormo/transport/net/socket.h>

namespace stormo::membership {

/// A proposer's connection to one acceptor, which is made again when it breaks. Never blocks.
class AcceptorLink {
 public:
  struct Options {
    transport::HostPort address;
    int index = 0, count = 1;  ///< which acceptor it must be, of how many
    transport::Secret secret;
  };
  explicit AcceptorLink(Options options) : options_(std::move(options)) {}

  /// Does what it can now. `request` (null: none) is sent once on each connection.
  void step(TimePoint now, const protocol::RegisterRequest* request);
  /// The answers that have come.
  std::vector<protocol::RegisterReply> take() { return std::exchange(replies_, {}); }

  int fd() const { return connection_ ? connection_->fd() : dialer_ ? dialer_->fd() : -1; }
  short poll_events() const {
    return connection_ ? connection_->poll_events() : dialer_ ? dialer_->poll_events() : short{0};
  }
  TimePoint wake_at() const {
    return connection_ ? TimePoint::max() : dialer_ ? dialer_->wake_at() : next_dial_;
  }
  bool is_connected() const { return connection_.has_value(); }
  /// "10.0.0.1:4000: connection refused".
  std::string state_text() const;

 private:
  Status dial(TimePoint now);
  Status talk(const protocol::RegisterRequest* request);

  Options options_;
  std::unique_ptr<transport::Dialer> dialer_;
  std::optional<transport::FrameConnection> connection_;
  TimePoint next_dial_{};
  std::uint64_t sent_ = 0;  // round, on this connection
  std::vector<protocol::RegisterReply> replies_;
  std::string trouble_;  // why there was no connection, or no answer, last
};

}  // namespace stormo::membership
