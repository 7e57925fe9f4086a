#pragma once

#include <CLI/App.hpp>

#include <cli/commands.h>

namespace stormo::cli {

/// Adds `step` to `stormo bench`.
void add_bench_step_command(CLI::App& bench, Invocation& invocation);

}  // namespace stormo::cli
