#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include <stormo/protocol/worker_stalls.h>
#include <stormo/server/message/server_message.h>

namespace stormo::server {

/// What the training thread of a worker does, for the threads that tell it to the servers: a
/// process that answers need not be getting on. Thread-safe.
class WorkerPulse {
 public:
  /// It is getting on, and waits for nobody.
  void get_on() { note({}, /*waits=*/false); }
  /// The same; `doing`: "step 12", "evaluate".
  void get_on(std::string_view doing) { note(doing, /*waits=*/false); }
  /// It waits for servers or other workers from now on, or still does.
  void wait() {
    const std::lock_guard lock(mutex_);
    ++state_.progress;
    state_.waits = true;
  }
  /// Its thread, if it waits, has looked whether it still has to. To be called a few times a
  /// second.
  void look() {
    const std::lock_guard lock(mutex_);
    if (state_.waits) ++state_.progress;
  }
  /// A step is over.
  void end_step() {
    const std::lock_guard lock(mutex_);
    ++state_.steps;
  }
  /// The run is over, and what is left may take any time.
  void finish() {
    const std::lock_guard lock(mutex_);
    state_.finishes = true;
  }
  protocol::WorkerPace state() const {
    const std::lock_guard lock(mutex_);
    return state_;
  }

 private:
  void note(std::string_view doing, bool waits) {
    const std::lock_guard lock(mutex_);
    ++state_.progress;
    state_.waits = waits;
    if (!doing.empty()) state_.doing = doing.substr(0, kMaxDoingBytes);
  }

  mutable std::mutex mutex_;
  protocol::WorkerPace state_;  // guarded
};

}  // namespace stormo::server
