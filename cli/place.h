#pragma once

#include <cli/launch_flags.h>
#include <stormo/base/status.h>
#include <stormo/launch/environment.h>
#include <stormo/transport/store/rendezvous.h>

namespace stormo::cli {

/// The place of this process in a job. The environment says it (launch::read_environment), but what
/// the command line says comes first:
///  - If -n or -H ask for other ranks than the environment's job has, and that job is this process
///    alone (a shell in a Slurm step, a pod of one), the place is none (source "none"): the ranks
///    are to be started here. kInvalidArgument names both where the job has several processes.
///  - Where a foreign launcher started this process, flags such as --interface stand for the
///    variables that say the same, and those that only a launch can follow are refused.
Result<transport::Rendezvous> read_place(const LaunchFlags& flags,
                                         const launch::EnvironmentReader& read);

/// The same from the environment of this process, in which flags then stand for their variables,
/// for whoever reads it later. The job's secret stays unread: its descriptor can be read only once.
Result<transport::Rendezvous> place_in_job(const LaunchFlags& flags);

/// The same, and the secret is read.
Result<transport::Rendezvous> take_place_in_job(const LaunchFlags& flags);

}  // namespace stormo::cli
