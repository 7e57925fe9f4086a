#pragma once

#include <CLI/App.hpp>

#include <cli/bench/step/options.h>
#include <cli/commands.h>

namespace stormo::cli {

/// Adds `step` to `stormo bench`.
void add_bench_step_command(CLI::App& bench, Invocation& invocation);

/// The command; returns the exit code. It needs libtorch.
int run_bench_step(const StepArguments& arguments);

}  // namespace stormo::cli
