#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/launch/environment.h>
#include <stormo/transport/call/fields.h>
#include <stormo/transport/net/socket.h>

namespace stormo::launch {

/// What a person asks of a running elastic job.
struct SizeRequest {
  /// From now on; 0: as many as there are, and one for each slot of `hosts`.
  std::int32_t ranks = 0;
  std::string hosts = {};  ///< "c:2,d" as in -H: they are added; empty: none
  /// Only asks how many there are.
  bool changes_nothing() const { return ranks == 0 && hosts.empty(); }
  bool operator==(const SizeRequest&) const = default;
};
void fields(auto& visit, transport::Like<SizeRequest> auto& request) {
  visit("request", request.ranks, request.hosts);
}

/// What its launcher answers.
struct JobSize {
  std::string refused = {};  ///< why the job keeps its size; empty: nothing is wrong
  std::string command = {};  ///< that it runs
  std::int32_t before = 0;   ///< ranks that it had, or was to have
  std::int32_t ranks = 0;    ///< that it has, or is to have
  std::int32_t members = 0;  ///< ranks that train together now
  Epoch epoch = 0;           ///< in which they do; 0: the register was not reached
  bool is_reached = false;   ///< these are the ranks that it is to have, and all others have left
  std::vector<std::int32_t> processes = {};  ///< of ranks on this host
  bool operator==(const JobSize&) const = default;
};
void fields(auto& visit, transport::Like<JobSize> auto& size) {
  visit("size of a job", size.refused, size.command, size.before, size.ranks, size.members,
        size.epoch, size.is_reached, transport::at_most(kMaxRanks, size.processes));
}

/// A Unix socket by which a person asks something of a running job, with a thread that answers. It
/// lies in a folder that only this user can enter, and others are refused.
class JobControl {
 public:
  using Answer = std::function<JobSize(const SizeRequest&)>;
  /// `answer` is called on the thread of this object. A file at `path` that another process has
  /// left is removed.
  static Result<std::unique_ptr<JobControl>> start(std::string path, Answer answer);
  JobControl(const JobControl&) = delete;
  JobControl& operator=(const JobControl&) = delete;
  ~JobControl();  ///< waits for an answer that is being given

 private:
  JobControl(std::string path, Answer answer, transport::Descriptor listener,
             transport::Descriptor end);
  void serve();
  Status answer_one(int fd) const;

  std::string path_;
  Answer answer_;
  transport::Descriptor listener_;
  transport::Descriptor end_;  ///< readable: the thread is to end
  std::thread thread_;
};

/// Asks the job whose JobControl is at `path`. kNotFound when none is there any more; kRefused by
/// one of another version.
Result<JobSize> ask_job(const std::string& path, const SizeRequest& request, Deadline by);

}  // namespace stormo::launch
