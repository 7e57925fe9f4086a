#pragma once

#include <CLI/App.hpp>

#include <memory>
#include <string>

#include <cli/launch_flags.h>
#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/transport/store/rendezvous.h>

namespace stormo::cli {

/// Adds --engine: what moves the bytes between ranks.
void add_engine_flag(CLI::App& command, std::string& engine);

/// How this process finds its job: take_place_in_job(), or "mpi" as the source, when the engine is
/// MPI, which knows by itself.
Result<transport::Rendezvous> find_place(const std::string& engine, const LaunchFlags& flags);

/// Joins the world through `engine`. Blocks as comm::join and mpi::join_mpi do.
Result<std::unique_ptr<comm::Communicator>> join_world(const std::string& engine,
                                                       const transport::Rendezvous& place);

/// Whether this process has joined a world through MPI, which a static object ends.
bool uses_mpi();

}  // namespace stormo::cli
