#pragma once

#include <CLI/App.hpp>

#include <memory>
#include <string>

namespace stormo::cli {

/// Exit codes of the program (README has the table).
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitSaved = 75;  ///< a peer was lost, and there is a checkpoint to go on from
inline constexpr int kExitInterrupted = 130;

/// Each adds one subcommand to `app`; its callback stores the exit code.
struct Invocation {
  int exit_code = kExitOk;
};

/// Adds a command whose words are `Arguments`, in which `flags` stores them, and whose `run`
/// returns the exit code. `examples` are the beginning of its help page.
template <class Arguments>
CLI::App* add_command(CLI::App& app, Invocation& invocation, const std::string& name,
                      const std::string& help, const std::string& examples,
                      void (*flags)(CLI::App& command, Arguments& arguments),
                      int (*run)(const Arguments& arguments)) {
  CLI::App* command = app.add_subcommand(name, help);
  command->footer(examples);
  const auto a = std::make_shared<Arguments>();
  flags(*command, *a);
  command->callback([a, run, &invocation] { invocation.exit_code = run(*a); });
  return command;
}

void add_plan_command(CLI::App& app, Invocation& invocation);
void add_run_command(CLI::App& app, Invocation& invocation);
void add_bench_command(CLI::App& app, Invocation& invocation);
void add_doctor_command(CLI::App& app, Invocation& invocation);
void add_tune_command(CLI::App& app, Invocation& invocation);
void add_checkpoint_command(CLI::App& app, Invocation& invocation);
void add_data_command(CLI::App& app, Invocation& invocation);
void add_train_command(CLI::App& app, Invocation& invocation);
void add_top_command(CLI::App& app, Invocation& invocation);
void add_resize_command(CLI::App& app, Invocation& invocation);
void add_evaluate_command(CLI::App& app, Invocation& invocation);
void add_sample_command(CLI::App& app, Invocation& invocation);
void add_predict_command(CLI::App& app, Invocation& invocation);
void add_simulate_command(CLI::App& app, Invocation& invocation);
void add_replay_command(CLI::App& app, Invocation& invocation);
void add_strads_command(CLI::App& app, Invocation& invocation);
/// What one of the two programs (cli/own_program.h) asks of the other.
void add_inner_commands(CLI::App& app, Invocation& invocation);

}  // namespace stormo::cli
