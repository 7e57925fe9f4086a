#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/transport/net/port_range.h>
#include <stormo/transport/net/secret.h>
#include <stormo/transport/store/key_values.h>

namespace stormo::transport {

/// Where a Store listens: "unix:NAME" (abstract Unix socket: no file), "unix:/PATH" (a file in a
/// folder that only this user enters) or "tcp:HOST:PORT" / "tcp:[V6]:PORT". On all of them both
/// ends prove that they know the job's secret. On Unix sockets they must also belong to the same
/// user.
struct StoreAddress {
  std::string text;
  bool empty() const { return text.empty(); }
  bool operator==(const StoreAddress&) const = default;
};

/// Longest key and value that either side accepts; checked before any allocation.
inline constexpr std::size_t kMaxKeyBytes = 1024;
inline constexpr std::size_t kMaxValueBytes = 1u << 20;

/// The job's key-value service, for rendezvous, liveness and the first cause of a failure. The
/// server runs on one thread of its own, never blocks on a client, and stores nothing on disk.
///
/// Liveness uses last wills, as in MQTT: a session names a key and a value that the server sets (if
/// absent) when the session ends without goodbye, or sends no heartbeat for longer than it
/// announced. All ranks watch one key, so the first cause is the value that was set first.
class StoreServer {
 public:
  struct Options {
    /// "unix:" chooses a random abstract name; "unix:/PATH" creates a socket file and removes it at
    /// the end; "tcp:HOST" or "tcp:HOST:PORT" binds that address.
    std::string listen = "unix:";
    PortRange ports;
    Secret secret;  ///< required for tcp
    /// Called on the server's thread, one line per refused connection (reason, peer).
    std::function<void(std::string_view)> on_refused;
    /// Called on the server's thread after each key is set, e.g. by the launcher for "failure".
    std::function<void(std::string_view key, std::string_view value)> on_set;
  };
  static Result<std::unique_ptr<StoreServer>> start(Options options);
  virtual ~StoreServer() = default;  ///< stops the thread and closes every connection

  virtual StoreAddress address() const = 0;
  /// In-process access for the process that hosts the server.
  virtual void set(std::string_view key, std::string_view value) = 0;
  /// False when the key already had a value.
  virtual bool set_if_absent(std::string_view key, std::string_view value) = 0;
  virtual std::optional<std::string> get(std::string_view key) const = 0;
  /// Calls `callback` once, on the server's thread, when no client is connected or being
  /// authenticated, all received requests are handled, and no will can set a key any more. If all
  /// clients were processes of this host and have ended, this is immediate.
  virtual void when_deserted(std::function<void()> callback) = 0;
};

/// One authenticated session with the Store. Thread-safe. It has one thread, which sends
/// heartbeats, reads replies and calls the callbacks of watches.
class StoreClient : public KeyValues {
 public:
  struct Options {
    StoreAddress address;
    Secret secret;
    Duration beat = std::chrono::milliseconds(250);
    /// Prefix of every key, so that successive groups on the same Store use different keys.
    std::string prefix = {};
  };
  /// Blocks: tries again until the server accepts the connection or `by` has passed.
  static Result<std::unique_ptr<StoreClient>> connect(Options options, Deadline by);
  /// Without goodbye() before it, the server treats the end of the session as the death of the
  /// client.
  ~StoreClient() override = default;

  virtual Status set(std::string_view key, std::string_view value, Deadline by) = 0;
  /// Removes the key and its value, if any; a later get waits again, and watches remain.
  virtual Status erase(std::string_view key, Deadline by) = 0;
  /// Adds `text` to the end of the key's value, which is empty before the first time; the value
  /// that the key has afterwards. An empty text makes no key.
  virtual Result<std::string> append(std::string_view key, std::string_view text, Deadline by) = 0;
  /// Calls `callback` on the client's thread: once if the key has a value, and on every later set.
  /// When the session is lost, the callback of on_lost() is called instead.
  virtual Status watch(std::string_view key, std::function<void(std::string_view)> callback) = 0;
  /// Last will: the server sets `key` to `value` (if absent) when this session ends without
  /// goodbye, or sends no heartbeat for `silence` (zero: no limit). The server appends the reason,
  /// and the latest note if any, to the value.
  virtual Status set_will(std::string_view key, std::string_view value, Duration silence,
                          Deadline by) = 0;
  /// Sets the function that returns the note of each heartbeat ("step 12, all_reduce #40"). It is
  /// called on the client's thread and must not block.
  virtual void set_note_source(std::function<std::string()> source) = 0;
  /// Called once on the client's thread when the server is gone. The cause is a kPeerLost.
  virtual void on_lost(std::function<void(Status)> callback) = 0;
  /// Ends the session in order: its will is removed, and the connection and the thread end. This is
  /// so also when `by` passes before the server has answered. Later calls fail with kCancelled, and
  /// no callback is called any more.
  virtual Status goodbye(Deadline by) = 0;
  /// Address of this end of the connection ("10.0.0.2"), empty for Unix sockets: an address by
  /// which other hosts reach this one.
  virtual std::string local_address() const = 0;
};

}  // namespace stormo::transport
