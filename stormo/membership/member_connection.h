#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/protocol/elastic/elastic_message.h>
#include <stormo/transport/call/frame_connection.h>
#include <stormo/transport/net/channel.h>

namespace stormo::membership {

/// A connection between two members of an elastic job, from its handshake on. Never blocks; one
/// thread at a time.
class MemberConnection {
 public:
  enum class State {
    kOpen,
    /// The kernel of the peer's host has closed it, and the peer had not said that it would: the
    /// process has ended.
    kPeerEnded,
    /// A reset or a time limit, which a cut line also causes.
    kBroken,
    kClosed,  ///< by this end or the other one, in order
  };

  /// Tells the peer that this is `me`. `name`: of the other end, for messages. `dialled`: the
  /// identity that is meant to be there; empty for a connection that the peer has opened.
  MemberConnection(transport::Channel socket, const protocol::MemberId& me, std::string name,
                   std::string dialled);

  int fd() const { return frames_.fd(); }
  short poll_events() const { return frames_.poll_events(); }
  State state() const { return state_; }
  const std::string& name() const { return name_; }
  const std::string& dialled() const { return dialled_; }
  /// Empty until it has said so.
  const std::optional<protocol::MemberId>& peer() const { return peer_; }

  /// Takes what has arrived, of which `messages` are appended, and sends what waits. kCorrupt for
  /// what no member sends; then it is closed.
  Status serve(std::vector<protocol::ElasticMessage>& messages);
  /// Whether a message may be sent: the peer is known, and the socket has taken what was before.
  bool is_ready() const;
  void send(std::string_view encoded_message);
  /// Says goodbye, so that the peer does not take the end of the connection for that of a process.
  void close();

 private:
  Status take(std::string_view body, std::vector<protocol::ElasticMessage>& messages);
  bool has_unsent() const;

  transport::FrameConnection frames_;
  std::string name_;
  std::string dialled_;
  std::optional<protocol::MemberId> peer_;
  State state_ = State::kOpen;
};

/// What send() takes.
std::string encode_message(const protocol::ElasticMessage& message);

}  // namespace stormo::membership
