#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/ids.h>
#include <stormo/launch/job/job_plan.h>
#include <stormo/launch/process/output.h>
#include <stormo/protocol/supervisor.h>

namespace stormo::launch {

/// What people hear of a running job, and tools by its records, beside the output of its ranks.
class JobReport {
 public:
  /// `output` and `plan` are borrowed.
  JobReport(JobOutput& output, const JobPlan& plan) : output_(output), plan_(plan) {}

  void started();
  void exited(Rank rank, int code);
  void signalled(Rank rank, int signal);
  void host_leaves(int cross_rank);
  void note(const protocol::RankLost& lost);
  void note(const protocol::RankStarted& started);
  void note(const protocol::RankLeft& left);
  void resized(int before, int ranks);
  /// Somebody who was refused; a flood must not bury the ranks' output.
  void refused(std::string_view text);
  /// This host's part of the register of `parts` has ended.
  void register_ended(std::size_t parts);
  /// The ranks without which the job went on, once more, if there are any.
  void say_lost();
  void ended(int exit_code, const std::string& report);

 private:
  JobOutput& output_;
  const JobPlan& plan_;
  std::vector<std::string> lost_;
  int refusals_ = 0;
};

}  // namespace stormo::launch
