#pragma once

#include <sys/types.h>

#include <string_view>

#include <stormo/base/clock.h>
#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/launch/process/output.h>

namespace stormo::launch {

/// Receives events of the ranks of one host. All functions are called on the event loop's thread.
class RankListener {
 public:
  virtual ~RankListener() = default;
  virtual void on_started(Rank rank, pid_t pid) = 0;
  virtual void on_not_started(Rank rank, const Status& why) = 0;
  virtual void on_output(Rank rank, Stream stream, std::string_view bytes) = 0;
  virtual void on_output_end(Rank rank, Stream stream) = 0;
  virtual void on_exited(Rank rank, int code) = 0;
  /// `why`: the cause, if the host knows it; may be empty.
  virtual void on_signalled(Rank rank, int signal, std::string_view why) = 0;
  /// The host's acceptor of the membership register listens there.
  virtual void on_acceptor(int cross_rank, std::string_view address) = 0;
  /// A message for the user ("4 ranks share 2 cores").
  virtual void on_message(std::string_view host, std::string_view text) = 0;
  /// The host is taken away soon, as the agent of an elastic job was told.
  virtual void on_host_leaves(int /*cross_rank*/) {}
  /// The connection to this host has ended; there are no more events.
  virtual void on_host_lost(int cross_rank, std::string_view reason) = 0;
};

/// A start of a rank of an elastic job whose ranks have all been started once: again, or a further
/// one.
struct LaterStart {
  Rank rank = 0;
  int local_rank = 0;
  int incarnation = 0;
};

/// The running ranks of one host, here or behind a remote shell.
class HostRanks {
 public:
  virtual ~HostRanks() = default;
  /// Sends a signal to every process of the host's ranks, including their children.
  virtual void send_signal(int signal) = 0;
  /// Starts a rank that has no process, of an elastic job; on_started() or on_not_started() is
  /// called, at once or later.
  virtual void start_later(const LaterStart& start) = 0;
  /// Tells the process of a rank, and no other, to leave its elastic job.
  virtual void ask_to_leave(Rank rank) = 0;
  /// Stops reading the output of the ranks, until called with false.
  virtual void pause_output(bool paused) = 0;
  /// When to call tick() if no event comes before; TimePoint::max(): never.
  virtual TimePoint wakes_at() const { return TimePoint::max(); }
  virtual void tick(TimePoint) {}
  /// Lets hosts do beside each other what end() waits for.
  virtual void begin_end() {}
  /// Ends all remaining processes and passes on the rest of their output. Blocks at most until
  /// `by`, and from then on as long as a second never passes without output that they had written.
  virtual void end(Deadline by) = 0;
};

}  // namespace stormo::launch
