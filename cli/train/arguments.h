#pragma once

#include <CLI/App.hpp>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cli/commands.h>
#include <cli/launch_flags.h>

namespace stormo::cli {

/// The words of `stormo train`.
struct TrainArguments {
  std::string recipe;
  std::vector<std::string> overrides;
  LaunchFlags launch;
  std::string engine = "stormo";
  std::string trace;
  std::string record;
  std::string log_csv;
  std::string metrics;
  std::string metrics_token;
  std::string otlp;
  bool cost = false;
  std::optional<double> price;
  std::string tensorboard;
  std::string checkpoint;
  std::string init_from;
  std::vector<std::string> init_new;
  std::vector<std::string> accept_changes;
  std::string on_usr1 = "save-and-exit";
  bool resume = false;
  bool auto_resume = false;
  bool overwrite = false;
  bool dry_run = false;
  bool json = false;
  bool help_recipe = false;
};

/// Adds them to `command`; `run` makes its exit code of them.
void add_train_arguments(CLI::App& command, Invocation& invocation,
                         int (*run)(const TrainArguments& a));

/// `stormo train`; returns the exit code.
int run_train(const TrainArguments& a);

/// How ranks are launched, whose program is not named yet; notes what is wrong with the flags.
launch::LaunchOptions train_launch_options(const TrainArguments& a,
                                           std::vector<std::string>& errors);

/// What the process that launches ranks must know of a run, once all of it has been checked.
struct CheckedRun {
  std::string program = {};               ///< that trains
  std::string library_path = {};          ///< by which it finds libtorch, as LD_LIBRARY_PATH
  std::string checkpoint_directory = {};  ///< empty: none
  launch::RanksToLose may_be_lost = {};
  std::optional<launch::Elastic> elastic = {};  ///< the ranks are an elastic job
  std::vector<std::string> chosen = {};  ///< words for ranks beside those of the command line
};
std::string to_text(const CheckedRun& run);
Result<CheckedRun> parse_checked_run(const std::string& text);

}  // namespace stormo::cli
