#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/own_process.h>
#include <stormo/transport/store/store.h>

namespace stormo::transport {

/// Keeps the servers of jobs that this process has left while others go on: they need the Store
/// until they have left too. Thread-safe.
class StoreKeeper {
 public:
  struct Options {
    Duration at_most = std::chrono::hours(1);  ///< that the end waits, for all servers together
    Duration say_after = std::chrono::seconds(5);
    std::function<void(std::string_view line)> say;  ///< what the end waits for, if that takes long
  };
  /// Ends when the process exits.
  static StoreKeeper& of_process();

  explicit StoreKeeper(Options options) : options_(std::move(options)) {}
  /// Waits as wait_at_end() does.
  ~StoreKeeper();
  StoreKeeper(const StoreKeeper&) = delete;
  /// Waits until no client is left at any server, at most until `by`; whether that is so.
  bool wait(Deadline by);
  /// Waits until no client is left at any server, at most as long as the options say, and says so
  /// if it takes long. For a process that ends without destructors. `look`, if any, is called now
  /// and then; it may throw.
  void wait_at_end(const std::function<void()>& look = {});
  /// Does not wait. The server is closed as soon as it has no clients.
  void keep(std::unique_ptr<StoreServer> server);

 private:
  struct Kept {
    std::unique_ptr<StoreServer> server;  // guarded by State::mutex
    bool is_deserted = false;             // guarded by State::mutex
    OwnProcess process{};
  };
  /// Also of the threads that close servers.
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::shared_ptr<Kept>> kept;  // guarded by mutex
  };
  static void close(State& state, const std::shared_ptr<Kept>& deserted);

  const Options options_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace stormo::transport
