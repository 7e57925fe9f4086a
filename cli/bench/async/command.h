#pragma once

#include <CLI/App.hpp>

#include <cli/bench/async/options.h>
#include <cli/commands.h>

namespace stormo::cli {

/// Adds `async` to `stormo bench`.
void add_bench_async_command(CLI::App& bench, Invocation& invocation);

/// The command; returns the exit code. It needs libtorch.
int run_bench_async(const AsyncArguments& arguments);

}  // namespace stormo::cli
