#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include <stormo/launch/job/host_ranks.h>
#include <stormo/launch/messages/frames.h>
#include <stormo/launch/messages/host_job.h>
#include <stormo/launch/process/spawn.h>

namespace stormo::launch {

/// The ranks of another host, started by an agent that a remote shell starts there.
class RemoteHost final : public HostRanks {
 public:
  /// `command`: program and arguments of the remote shell, followed by those of the agent.
  static Result<std::unique_ptr<RemoteHost>> start(EventLoop& loop, const HostJob& job,
                                                   const std::vector<std::string>& command,
                                                   const std::vector<std::string>& environment,
                                                   RankListener& listener);
  ~RemoteHost() override;

  /// For a job without the address of its register: now it is known, and the ranks start.
  void begin(const std::string& register_address);
  void send_signal(int signal) override;
  void start_later(const LaterStart& start) override;
  void ask_to_leave(Rank rank) override;
  void pause_output(bool paused) override;
  void begin_end() override;
  void end(Deadline by) override;
  TimePoint wakes_at() const override { return answers_by_; }
  void tick(TimePoint now) override;

 private:
  RemoteHost(EventLoop& loop, const HostJob& job, RankListener& listener);
  void read_frames();
  void read_errors();
  void take(const Frame& frame);
  void lose(std::string_view reason);
  void order(const AgentOrder& order);
  std::string how_it_ended();
  bool owns(Rank rank) const;

  EventLoop& loop_;
  RankListener& listener_;
  std::string host_;
  int cross_rank_;
  Rank first_rank_;
  int local_size_;
  std::set<Rank> added_;  ///< ranks beyond these
  TimePoint answers_by_;
  pid_t shell_ = 0;
  Descriptor input_;
  Descriptor output_;
  Descriptor errors_;
  std::unique_ptr<OutputQueue> requests_;
  FrameReader frames_;
  LineSplitter error_lines_;
  std::string last_error_;
  bool paused_ = false;
  bool lost_ = false;
};

}  // namespace stormo::launch
