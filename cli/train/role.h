#pragma once

#include <string>

#include <cli/train/rank.h>
#include <stormo/launch/tf_config.h>
#include <stormo/transport/store/rendezvous.h>

namespace stormo::cli {

/// Runs as a server or a worker of a job that the launcher has started (STORMO_RANK): its last
/// strategy.server_processes ranks are servers, the others workers. Returns the exit code.
int run_launched_role(TrainRun run);
/// The same for a process that TF_CONFIG describes.
int run_configured_role(TrainRun run, const launch::ClusterTask& task);

}  // namespace stormo::cli
