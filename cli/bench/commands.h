#pragma once

#include <CLI/App.hpp>

#include <cli/bench/async/options.h>
#include <cli/bench/step/options.h>
#include <cli/commands.h>

namespace stormo::cli {

/// Each adds a command to `stormo bench`.
void add_bench_step_command(CLI::App& bench, Invocation& invocation);
void add_bench_async_command(CLI::App& bench, Invocation& invocation);
void add_bench_servers_command(CLI::App& bench, Invocation& invocation);

/// The commands that need libtorch; they return the exit code.
int run_bench_step(const StepArguments& arguments);
int run_bench_async(const AsyncArguments& arguments);

}  // namespace stormo::cli
