#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <stormo/base/descriptor.h>
#include <stormo/base/status.h>
#include <stormo/transport/net/port_range.h>
#include <stormo/transport/net/secret.h>

namespace stormo::launch {

/// The name of an elastic job: no other has it, also in a register that jobs share.
std::string random_job_name();

/// An acceptor of the membership register of a job, in a process of its own with a file in a folder
/// that it removes at its end. That is the end of this object. If the process that has started it
/// ends otherwise, it goes on as long as a member of the job, on whichever host, is connected to
/// it.
class JobRegister {
 public:
  /// Call before other threads are started: the process is a fork without exec.
  static Result<std::unique_ptr<JobRegister>> start();
  ~JobRegister();
  JobRegister(const JobRegister&) = delete;
  JobRegister& operator=(const JobRegister&) = delete;

  struct Options {
    std::string job;  ///< its name
    std::int32_t index = 0;
    std::int32_t count = 1;  ///< acceptors of the register
    std::string host;        ///< the address by which all ranks reach this machine
    transport::PortRange ports{};
    transport::Secret secret{};
  };
  /// Once. The address of the acceptor, "HOST:PORT".
  Result<std::string> serve(const Options& options);

  /// Readable when there are lines().
  int descriptor() const { return control_.get(); }
  /// What it has to say to people: a line for each refused connection, and when the disk fails.
  std::vector<std::string> lines();

 private:
  JobRegister(pid_t pid, Descriptor control) : pid_(pid), control_(std::move(control)) {}
  pid_t pid_;
  Descriptor control_;
};

}  // namespace stormo::launch
