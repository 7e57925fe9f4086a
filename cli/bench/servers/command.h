#pragma once

#include <CLI/App.hpp>

#include <cli/commands.h>

namespace stormo::cli {

/// Adds `servers` to `stormo bench`.
void add_bench_servers_command(CLI::App& bench, Invocation& invocation);

}  // namespace stormo::cli
