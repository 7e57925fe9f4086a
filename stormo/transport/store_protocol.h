#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/transport/store_message.h>

namespace stormo::transport {

/// The Store without sockets: keys, waiting gets, watches and last wills, as a state machine of
/// (state, message, now) -> messages. Everything that a client can make it hold is bounded.
class StoreState {
 public:
  using SessionId = std::uint64_t;
  static constexpr std::size_t kMaxKeys = 131072;
  static constexpr std::size_t kMaxTotalBytes = std::size_t{256} << 20;
  /// Waiting gets and watches of one session.
  static constexpr std::size_t kMaxWaits = 4096;
  /// A longer pause between two ticks is the server's own and not held against its sessions.
  static constexpr Duration kMaxTickGap = std::chrono::seconds(1);

  struct Delivery {
    SessionId to;
    std::string frame;
  };
  using KeyValue = std::pair<std::string, std::string>;

  void open(SessionId session, TimePoint now);
  /// A failure means that the client breaks the protocol: the caller closes the session.
  Status receive(SessionId session, const StoreRequest& request, TimePoint now);
  /// The connection is gone: a session that has not said goodbye leaves its will.
  void close(SessionId session, TimePoint now);
  /// Judges silence. To be called at least every kMaxTickGap / 2, after all input was received.
  void tick(TimePoint now);
  /// When the next silence ends a session; TimePoint::max() when none can.
  TimePoint wake_at() const;

  /// For the process that hosts the server.
  Status set(std::string_view key, std::string_view value);
  Result<bool> set_if_absent(std::string_view key, std::string_view value);
  std::optional<std::string> get(std::string_view key) const;

  /// Frames to send since the last call, in order.
  std::vector<Delivery> take_deliveries() { return std::exchange(deliveries_, {}); }
  /// Keys set since the last call, in order.
  std::vector<KeyValue> take_sets() { return std::exchange(sets_, {}); }
  std::size_t num_sessions() const { return sessions_.size(); }

 private:
  struct Will {
    std::string key;
    std::string value;
    Duration silence;
  };
  struct Session {
    TimePoint last_heard;
    std::optional<Will> will;
    std::string note;
    std::size_t num_waits = 0;
  };
  struct Wait {
    SessionId session;
    std::uint32_t id;
  };
  using Waits = std::map<std::string, std::vector<Wait>, std::less<>>;

  Status answer(SessionId session, std::uint32_t id, Code code, std::string_view value);
  Status on_get(SessionId session, const StoreRequest& request);
  Status on_watch(SessionId session, const StoreRequest& request);
  Status on_set(SessionId session, const StoreRequest& request);
  Status on_add(SessionId session, const StoreRequest& request);
  Status add_wait(Waits& waits, SessionId session, const StoreRequest& request);
  void erase(std::string_view key);
  void execute_will(Session& session, std::string_view reason);
  void forget(Waits& waits, SessionId session, std::optional<std::uint32_t> id);

  std::map<std::string, std::string, std::less<>> values_;
  std::size_t total_bytes_ = 0;
  std::map<SessionId, Session> sessions_;
  Waits gets_;
  Waits watches_;
  std::optional<TimePoint> last_tick_;
  std::vector<Delivery> deliveries_;
  std::vector<KeyValue> sets_;
};

}  // namespace stormo::transport
