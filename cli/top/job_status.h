#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/event.h>
#include <stormo/base/status.h>

namespace stormo::cli {

/// What a job says of one of its ranks.
struct RankStatus {
  std::string host{};   ///< empty: not known
  std::string state{};  ///< "running", "stopped"; empty: not known
  std::optional<std::uint64_t> memory_bytes{};
  /// Of a step, by Lane; empty: not known.
  std::optional<std::array<double, kNumLanes>> seconds{};
  /// A part of the step in which it is slow, and how often the time of the others it takes.
  struct Slow {
    std::string part{};
    double ratio = 1, without = 1;  ///< and the time of a step without that, as a share
  };
  std::vector<Slow> slow{};

  /// Time in which others may have to wait for it.
  double busy_seconds() const;
};

/// What a job says of itself at a moment, as its page /json has it.
struct JobStatus {
  struct Evaluation {
    std::string split{};
    std::int64_t step = 0;
    double loss = 0;
    std::optional<double> accuracy{};
  };
  struct Step {
    std::int64_t step = 0, steps = 0;
    double epoch = 0, loss = 0, learning_rate = 0, samples_per_s = 0, remaining_s = 0;
    double age_s = 0;  ///< since it was seen
  };

  std::string version{};  ///< of Stormo
  std::string state{};    ///< "starting", "training", "done", "interrupted", "failed"
  double running_s = 0;
  bool started = false;  ///< what follows is known
  std::string recipe{}, strategy{};
  int num_ranks = 0, num_hosts = 0;
  std::int64_t parameters = 0, global_batch = 0, planned_steps = 0;
  std::optional<Step> step{};       ///< the newest
  std::vector<RankStatus> ranks{};  ///< all, once it has started
  int slowest = -1;                 ///< rank that computed and loaded longest; -1: not known
  std::vector<Evaluation> evaluations{};
  std::string warning{};      ///< the newest
  std::string save_failed{};  ///< the newest checkpoint that could not be written
  std::string error{};        ///< why it failed
  std::int64_t end_steps = 0;
  double end_train_loss = 0;

  bool has_ended() const { return state != "starting" && state != "training"; }
  double steps_per_s() const;
};

/// From the text of a page. kCorrupt for what is none of a job; kInvalidArgument, with the version
/// of that Stormo, for one that this one does not know.
Result<JobStatus> parse_job_status(std::string_view text);

/// "training, step 12 of 100"; how it has ended, where it has.
std::string state_text(const JobStatus& job);

/// The object that `stormo top --json` prints. `address`: that of the job.
std::string to_json(const JobStatus& job, const std::string& address);

}  // namespace stormo::cli
