#pragma once

#include <string>

#include <stormo/train/recipe.h>

namespace stormo::cli {

/// What every rank of a `stormo train` job must know.
struct TrainRun {
  train::Recipe recipe;
  std::string engine = "stormo";  ///< see join_world
  bool json = false;
  std::string trace;  ///< file to write; empty: none
};

/// Set for the ranks by a launcher whose standard error is a terminal: its width in columns.
inline constexpr const char* kTerminalVariable = "STORMO_TERMINAL";
/// Width of the terminal behind standard error, 0 when there is none.
int terminal_columns();

/// Trains as one rank of the job that the environment describes, or alone; returns the exit code.
int run_rank(const TrainRun& run);

}  // namespace stormo::cli
