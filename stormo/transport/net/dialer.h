#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/transport/net/channel.h>
#include <stormo/transport/net/handshake.h>
#include <stormo/transport/net/secret.h>
#include <stormo/transport/net/socket.h>
#include <stormo/transport/net/tls_setting.h>
#include <stormo/transport/net/tls_stream.h>

namespace stormo::transport {

/// Makes one outgoing authenticated connection: connects, and runs the handshake, and that of TLS
/// if the connection leaves the host. It tries again if no process listens yet, if the peer had no
/// place for it, or if the answer is not signed with the secret; only a signed refusal is final.
/// Never blocks; one thread at a time.
class Dialer {
 public:
  struct Options {
    std::vector<SocketAddress> addresses;  ///< tried in turn; at least one
    Secret secret;
    Hello hello;  ///< but for `tls`
    TlsSetting tls = tls_setting();
  };
  explicit Dialer(Options options);

  /// Makes as much progress as possible now. True once finished(): connected, or finally refused.
  bool step(TimePoint now);
  bool finished() const { return stage_ == Stage::kConnected || stage_ == Stage::kRefused; }

  /// The descriptor to poll before the next step(); -1 when step() only has to wait for wake_at().
  int fd() const { return socket_.get(); }
  short poll_events() const;
  TimePoint wake_at() const { return stage_ == Stage::kIdle ? next_attempt_ : TimePoint::max(); }

  /// The connection when finished; kRefused when the peer refused, or could not prove that it
  /// knows the secret.
  Result<Channel> take();
  /// Why it is not connected yet, for the message of a missed deadline. With the last refusal: the
  /// peer may have ended since.
  std::string last_failure() const;
  /// Whether the last attempts, at all addresses, were refused because no process listens there.
  bool nobody_listens() const { return unheard_ >= options_.addresses.size(); }

 private:
  enum class Stage { kIdle, kConnecting, kHandshaking, kSecuring, kConnected, kRefused };
  void start(TimePoint now);
  void retry(TimePoint now, Status why);
  void retry_connect(TimePoint now, int error, Status why);
  bool check_connected(TimePoint now);
  bool shake_hands(TimePoint now);
  void secure(TimePoint now);
  bool flush(TimePoint now);

  Options options_;
  Stage stage_ = Stage::kIdle;
  Descriptor socket_;
  std::optional<Handshake> handshake_;
  std::unique_ptr<TlsStream> tls_;
  std::size_t attempt_ = 0;
  std::size_t unheard_ = 0;  // attempts in a row at which no process listened
  TimePoint next_attempt_{};
  Duration backoff_;
  Status last_;
  std::string refusal_;  // the last one
};

}  // namespace stormo::transport
