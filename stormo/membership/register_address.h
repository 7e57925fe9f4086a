#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <stormo/membership/register.h>
#include <stormo/transport/net/secret.h>

namespace stormo::membership {

/// What a register wants to know besides its address.
struct RegisterAccess {
  std::string job;
  transport::Secret secret;  ///< of the job: for its own acceptors
  std::string password;      ///< of the user of an etcd
};

/// The register of a job at an address, without connecting:
///
///   quorum://10.0.0.1:4000,10.0.0.2:4000,10.0.0.3:4000   the job's own acceptors, in their order
///   etcd://10.0.0.1:2379,10.0.0.2:2379                   the key /stormo/JOB of the site's etcd
///   etcd://USER@10.0.0.1/training                        the key /training/JOB, at etcd's port
///   2379
///
/// kInvalidArgument for any other text, with all that is wrong with it, and for etcd where Stormo
/// was built without libcurl.
Result<std::unique_ptr<Register>> open_register(std::string_view address,
                                                const RegisterAccess& access);

}  // namespace stormo::membership
