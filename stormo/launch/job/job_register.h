#pragma once

#include <functional>
#include <memory>
#include <string>

#include <stormo/base/status.h>
#include <stormo/base/temporary_folder.h>
#include <stormo/membership/acceptor/register_server.h>

namespace stormo::launch {

/// The name of an elastic job: no other has it, also in a register that jobs share.
std::string random_job_name();

/// The membership register of a job, with one acceptor: a thread of this process, and a file in a
/// folder that is removed with this object.
class JobRegister {
 public:
  struct Options {
    std::string job;   ///< its name
    std::string host;  ///< the address by which all ranks reach this machine
    transport::PortRange ports;
    transport::Secret secret;
    /// As in RegisterServer.
    std::function<void(const std::string&)> on_event;
  };
  static Result<std::unique_ptr<JobRegister>> start(Options options);

  /// For membership::open_register().
  std::string address() const;

 private:
  explicit JobRegister(TemporaryFolder folder) : folder_(std::move(folder)) {}

  TemporaryFolder folder_;
  std::unique_ptr<membership::RegisterServer> server_;  // ends before its folder is removed
};

}  // namespace stormo::launch
