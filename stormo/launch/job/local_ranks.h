#pragma once

#include <deque>
#include <memory>
#include <string>

#include <stormo/launch/job/host_ranks.h>
#include <stormo/launch/messages/host_job.h>
#include <stormo/launch/process/fork_server.h>
#include <stormo/launch/process/memory_kills.h>
#include <stormo/launch/process/orphans.h>
#include <stormo/launch/process/spawn.h>
#include <stormo/launch/process/stopped_processes.h>

namespace stormo::launch {

/// The ranks of this host: children of this process, in one process group with a guard.
class LocalRanks final : public HostRanks {
 public:
  /// Starts all ranks or none. `loaded` has loaded their program already. `loop`, `orphans`,
  /// `listener`, and of an elastic job `loaded`, must outlive the result; on_started and on_message
  /// are called before this returns, the other functions while the loop runs.
  static Result<std::unique_ptr<LocalRanks>> start(EventLoop& loop, Orphans& orphans, HostJob job,
                                                   Guard guard, RankListener& listener,
                                                   ForkServer* loaded = nullptr);
  /// As start(), for ranks of an elastic job that another process has started: starts none.
  static Result<std::unique_ptr<LocalRanks>> stand_by(EventLoop& loop, Orphans& orphans,
                                                      HostJob job, Guard guard,
                                                      RankListener& listener);
  ~LocalRanks() override;

  /// After stand_by(): a child of this process, started by another one, is this rank. It must be
  /// known by note_child().
  Status adopt(Rank rank, pid_t process);
  void send_signal(int signal) override;
  /// Blocks as ForkServer::spawn().
  void start_later(const LaterStart& start) override;
  /// By SIGTERM with protocol::kLeaveMark, to the process itself; one that does not listen yet
  /// dies.
  void ask_to_leave(Rank rank) override;
  void pause_output(bool paused) override;
  TimePoint wakes_at() const override { return next_look_; }
  /// Of an elastic job: looks for ranks that stay stopped, and ends them.
  void tick(TimePoint now) override;
  void end(Deadline by) override;

 private:
  struct Output {
    Rank rank = 0;
    Stream stream = Stream::kOutput;
    Descriptor fd;
  };
  struct Process {
    Rank rank = 0;
    pid_t pid = 0;
    Descriptor pidfd;
    bool gone = false;
    bool is_adopted = false;  ///< it is in no group of the guard
  };
  LocalRanks(EventLoop& loop, Orphans& orphans, HostJob job, Guard guard, RankListener& listener)
      : loop_(loop),
        orphans_(orphans),
        listener_(listener),
        guard_(std::move(guard)),
        job_(std::move(job)),
        stopped_(job_.longest_stop) {}

  static Result<std::unique_ptr<LocalRanks>> make(EventLoop& loop, Orphans& orphans, HostJob job,
                                                  Guard guard, RankListener& listener,
                                                  ForkServer* loaded);
  Status prepare(ForkServer* loaded);
  Status await_later_starts();
  Status start_rank(const LaterStart& start);
  HostJob job_with(const LaterStart& start) const;
  Result<pid_t> spawn_rank(const Child& child, bool is_first);
  Status watch(Process& process);
  void abandon(Process& process);
  void note_gone(Process& process);
  void end_server();
  void finish_output(Rank rank);
  void finish(Output& output);
  Status watch_output(Rank rank, Stream stream, Descriptor fd);
  void read_output(Output& output);
  void close_output(Output& output);
  void reap(Process& process);
  void kill_ranks(Deadline by);
  void end_processes(Deadline by);

  EventLoop& loop_;
  Orphans& orphans_;
  RankListener& listener_;
  Guard guard_;
  const MemoryKills memory_;
  HostJob job_;
  StoppedProcesses stopped_;
  TimePoint next_look_ = TimePoint::max();  ///< for them
  Cpus cpus_;
  Child common_;       ///< of all ranks
  Descriptor secret_;  ///< a file that they inherit
  std::unique_ptr<ForkServer> own_server_;
  ForkServer* server_ = nullptr;  ///< forks them; null: each is a process of its own
  // Callbacks hold references to elements.
  std::deque<Process> processes_;
  std::deque<Output> outputs_;
  bool paused_ = false;
};

/// Loads the program of the ranks, for which loads_program_once() is true, from `file`, to be
/// forked in the session of `group`. Null where that fails: then each rank says what is wrong with
/// it.
std::unique_ptr<ForkServer> load_program(const HostJob& job, const std::string& file, pid_t group,
                                         const Cpus& cpus);

/// A message for the user if ranks share cores on this host; else empty.
std::string oversubscription_note(const Cpus& cpus, int local_ranks);

}  // namespace stormo::launch
