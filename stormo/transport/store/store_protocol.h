#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/transport/store/silence.h>
#include <stormo/transport/store/store_message.h>

namespace stormo::transport {

/// The Store without sockets: keys, pending gets, watches and last wills, as a state machine of
/// (state, message, now) -> messages. The memory that a client can make it use is bounded.
class StoreState {
 public:
  using SessionId = std::uint64_t;
  static constexpr std::size_t kMaxKeys = 131072;
  /// Limits of keys, values and wills: in all, and of one session.
  static constexpr std::size_t kMaxTotalBytes = std::size_t{256} << 20;
  static constexpr std::size_t kMaxSessionBytes = std::size_t{64} << 20;
  /// Limits of pending gets and watches: number per session, and bytes in all.
  static constexpr std::size_t kMaxWaits = 4096;
  static constexpr std::size_t kMaxWaitBytes = std::size_t{64} << 20;

  /// A value is one object, also when it is being sent to several sessions.
  using Value = std::shared_ptr<const std::string>;
  struct Delivery {
    SessionId to;
    std::string head;
    Value value;  ///< follows the head; may be null
    std::size_t size() const { return head.size() + (value ? value->size() : 0); }
    std::string frame() const { return value ? head + *value : head; }
  };
  /// The owner of keys set by the process that hosts the server; no session has this number.
  static constexpr SessionId kHost = ~SessionId{0};
  using KeyValue = std::pair<std::string, std::string>;

  void open(SessionId session, TimePoint now);
  /// A failure means that the client breaks the protocol: the caller closes the session.
  Status receive(SessionId session, const StoreRequest& request, TimePoint now);
  /// The connection has ended: executes the will of a session that has not said goodbye.
  void close(SessionId session, TimePoint now);
  /// Whether the process of a session runs, as far as that can be known here.
  using Runs = std::function<bool(SessionId)>;
  /// Ends sessions that have been silent for too long: for the time of their will, and as much
  /// longer (at most twice as long) as their beats were late before; and not while `runs` says that
  /// their process runs, and is only late. Call it at least every Silence::kMaxOwnPause / 2, after
  /// all input was received.
  void tick(TimePoint now, const Runs& runs = {});
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
  /// Bytes of values that are no longer stored, but still being sent.
  std::size_t bytes_on_their_way() const { return values_alive_->load() - value_bytes_; }

 private:
  struct Will {
    std::string key;
    std::string value;
    Duration silence;
  };
  struct Session {
    Silence silence;
    std::optional<Will> will;
    std::string note;
    std::size_t num_waits = 0;
    std::size_t bytes = 0;  ///< of keys and values it has set, and of its will
  };
  struct Entry {
    Value value;
    SessionId owner;
  };
  struct Wait {
    SessionId session;
    std::uint32_t id;
  };
  using Waits = std::map<std::string, std::vector<Wait>, std::less<>>;

  Value make_value(std::string_view text) const;
  void answer(SessionId session, std::uint32_t id, Code code, std::string_view text);
  void deliver(SessionId session, std::uint32_t id, const Value& value);
  Status store(SessionId owner, std::string_view key, std::string_view value);
  Status check_room(SessionId owner, std::size_t removed, std::size_t owned,
                    std::size_t added) const;
  void charge(SessionId owner, std::size_t removed, std::size_t added);
  Status on_will(SessionId session, const StoreRequest& request);
  Status on_get(SessionId session, const StoreRequest& request);
  Status on_watch(SessionId session, const StoreRequest& request);
  Status on_set(SessionId session, const StoreRequest& request);
  Status add_wait(Waits& waits, SessionId session, const StoreRequest& request);
  void erase(std::string_view key);
  std::size_t will_bytes(SessionId session) const;
  void drop_will(SessionId session);
  static bool is_judged(const Session& session);
  void execute_will(SessionId session, std::string_view reason);
  void forget(Waits& waits, SessionId session, std::optional<std::uint32_t> id);

  static std::size_t wait_bytes(std::string_view key) { return key.size() + sizeof(Wait); }

  std::map<std::string, Entry, std::less<>> values_;
  std::size_t total_bytes_ = 0;
  std::size_t value_bytes_ = 0;
  /// Of values anywhere; they die on the thread that sends them.
  std::shared_ptr<std::atomic<std::size_t>> values_alive_ =
      std::make_shared<std::atomic<std::size_t>>(0);
  std::map<SessionId, Session> sessions_;
  Waits gets_;
  Waits watches_;
  std::size_t wait_bytes_ = 0;
  std::optional<TimePoint> last_tick_;
  std::vector<Delivery> deliveries_;
  std::vector<KeyValue> sets_;
};

}  // namespace stormo::transport
