#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/transport/net/handshake.h>
#include <stormo/transport/net/secret.h>
#include <stormo/transport/net/socket.h>

namespace stormo::transport {

/// One outgoing connection on its way to being authenticated: connects, shakes hands, and starts
/// over while nobody listens yet, the peer had no place for it, or somebody without the secret
/// answers: only a refusal that is signed with it is final. Never blocks; one thread at a time.
class Dialer {
 public:
  struct Options {
    std::vector<SocketAddress> addresses;  ///< tried in turn; at least one
    Secret secret;
    Hello hello;
  };
  explicit Dialer(Options options);

  /// Does what can be done now. True once finished(): connected, or refused for good.
  bool step(TimePoint now);
  bool finished() const { return stage_ == Stage::kConnected || stage_ == Stage::kRefused; }

  /// What to poll for until step() is due again; -1 when only time helps.
  int fd() const { return socket_.get(); }
  short poll_events() const;
  TimePoint wake_at() const { return stage_ == Stage::kIdle ? next_attempt_ : TimePoint::max(); }

  /// The connected socket when finished; kRefused when the peer (or its proof) said no.
  Result<Descriptor> take();
  /// Why it is not connected yet, for the message of an exceeded deadline.
  std::string last_failure() const;

 private:
  enum class Stage { kIdle, kConnecting, kHandshaking, kConnected, kRefused };
  void start(TimePoint now);
  void retry(TimePoint now, Status why);
  bool check_connected(TimePoint now);
  bool shake_hands(TimePoint now);
  bool flush(TimePoint now);

  Options options_;
  Stage stage_ = Stage::kIdle;
  Descriptor socket_;
  std::optional<Handshake> handshake_;
  std::size_t attempt_ = 0;
  TimePoint next_attempt_{};
  Duration backoff_;
  Status last_;
};

}  // namespace stormo::transport
