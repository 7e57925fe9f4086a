#include <fmt/format.h>
#include <openssl/crypto.h>
#include <CLI/Config.hpp>  // defines what App.hpp only declares

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <memory>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>

#include <cli/build_facts.h>
#include <cli/commands.h>
#include <cli/completion.h>
#include <cli/engine.h>
#include <cli/help.h>
#include <cli/manual.h>
#include <stormo/base/printable.h>
#include <stormo/base/replace_file.h>
#include <stormo/base/version.h>
#include <stormo/launch/job/agent.h>
#include <stormo/launch/process/fork_server.h>

namespace stormo::cli {
namespace {

constexpr const char* kProgramExamples =
    "  stormo train recipes/quickstart.toml -n 2    train a model on 2 workers\n"
    "  stormo run -n 2 -- ./my_trainer              run your own program on 2 workers\n"
    "  stormo doctor                                what would be slow here, and why";

/// Several lines: version, protocol, git hash, compiler, build type and libraries.
std::string version_text() {
  const std::string_view torch = kTorchVersion;
  return fmt::format(
      "stormo {}\n"
      "protocol   {}\n"
      "git        {}\n"
      "compiler   {}\n"
      "build      {}\n"
      "libtorch   {}\n"
      "OpenSSL    {}",
      kVersion, kProtocolVersion, kGitHash, kCompiler, kBuildType,
      torch.empty() ? "none (this build cannot train)" : torch,
      OpenSSL_version(OPENSSL_VERSION_STRING));
}

void add_commands(CLI::App& app, Invocation& invocation) {
  add_train_command(app, invocation);
  add_top_command(app, invocation);
  add_resize_command(app, invocation);
  add_evaluate_command(app, invocation);
  add_predict_command(app, invocation);
  add_sample_command(app, invocation);
  add_data_command(app, invocation);
  add_run_command(app, invocation);
  add_checkpoint_command(app, invocation);
  add_plan_command(app, invocation);
  add_simulate_command(app, invocation);
  add_replay_command(app, invocation);
  add_strads_command(app, invocation);
  add_bench_command(app, invocation);
  add_tune_command(app, invocation);
  add_doctor_command(app, invocation);
}

void add_completion_command(CLI::App& app) {
  CLI::App* completion = app.add_subcommand("completion", "Print a shell completion script");
  completion->footer(
      "  source <(stormo completion bash)\n"
      "  source <(stormo completion zsh)\n"
      "  stormo completion fish | source");
  completion->require_subcommand(1);
  for (const std::string shell : kShells) {
    completion->add_subcommand(shell, "For " + shell)->callback([&app, shell] {
      fmt::print("{}", completion_script(app, shell));
    });
  }
}

/// What an installation does; not for people, who have man(1).
void add_manual_command(CLI::App& app, Invocation& invocation) {
  CLI::App* manual = app.add_subcommand("manual", "")->group("");
  auto folder = std::make_shared<std::string>();
  manual->add_option("folder", *folder, "Writes the manual pages there")->required();
  manual->callback([&app, &invocation, folder] {
    for (const ManualPage& page : manual_pages(app)) {
      const std::string path = *folder + "/" + page.file;
      const Status written = replace_file(path, [&page](std::ostream& file) { file << page.text; });
      if (written.ok()) continue;
      fmt::print(stderr, "stormo manual: cannot write '{}'\n", path);
      invocation.exit_code = kExitFailed;
    }
  });
}

/// What the launcher starts on other hosts; not for people.
void add_agent_command(CLI::App& app, Invocation& invocation) {
  app.add_subcommand("agent", "")->group("")->callback([&invocation] {
    const Result<int> code = launch::run_agent();
    if (!code.ok()) fmt::print(stderr, "stormo agent: {}\n", code.status().message());
    invocation.exit_code = code.ok() ? *code : kExitFailed;
  });
}

/// Everything after "--" of `run` is another program's business.
int arguments_to_parse(int argc, char** argv) {
  if (argc < 2 || std::string_view(argv[1]) != "run") return argc;
  for (int i = 2; i < argc; ++i)
    if (std::string_view(argv[i]) == "--") return i;
  return argc;
}

int fail_usage(std::string_view text) {
  fmt::print(stderr, "stormo: {}\n", printable(text));
  return kExitUsage;
}

int run_program(int argc, char** argv) {
  CLI::App app("Distributed training of libtorch models", "stormo");
  app.formatter(std::make_shared<HelpFormatter>());
  app.footer(kProgramExamples);
  app.require_subcommand(1);
  app.set_version_flag("--version", [] { return version_text(); });
  Invocation invocation;
  add_commands(app, invocation);
  add_completion_command(app);
  add_manual_command(app, invocation);
  add_agent_command(app, invocation);
  add_inner_commands(app, invocation);

  if (argc < 2) {
    fmt::print(stderr, "{}", app.help());
    return kExitUsage;
  }
  if (const std::string text = unknown_command(app, {argv + 1, argv + argc}); !text.empty())
    return fail_usage(text);
  try {
    app.parse(arguments_to_parse(argc, argv), argv);
  } catch (const CLI::ExtrasError& e) {
    const std::string text = unknown_arguments(app);
    return fail_usage(text.empty() ? e.what() : text);
  } catch (const CLI::Success& e) {
    std::ostringstream text;  // the help or the version; std::cout would not say why it fails
    const int code = app.exit(e, text, text);
    fmt::print("{}", text.str());
    return code;
  } catch (const CLI::ParseError& e) {
    return fail_usage(e.what());
  }
  return invocation.exit_code;
}

/// The exit code for a program that has nothing more to print: kExitFailed instead of kExitOk, with
/// the cause on standard error, when standard output did not take everything. `first_error`: the
/// errno of a write that has failed before, 0 where none is known.
int finish_output(int exit_code, int first_error) {
  errno = 0;
  std::cout.flush();
  const bool flushed = std::fflush(stdout) == 0;
  const int cause = first_error != 0 ? first_error : errno;
  if (flushed && std::ferror(stdout) == 0 && std::cout.good()) return exit_code;
  // Without fmt::print(), which throws when standard error is full as well.
  std::fprintf(stderr, "stormo: standard output: %s; the output is not complete\n",
               cause != 0 ? std::strerror(cause) : "an earlier write failed");
  return exit_code == kExitOk ? kExitFailed : exit_code;
}

/// Ends the process without the destructors of static objects, where none of them has something to
/// do: those of libtorch take a quarter of the time of a short command.
[[noreturn]] void leave(int exit_code) {
  if (uses_mpi()) std::exit(exit_code);
  std::fflush(nullptr);
  std::_Exit(exit_code);
}

}  // namespace
}  // namespace stormo::cli

int main(int argc, char** argv) {
  using namespace stormo::cli;
  stormo::launch::serve_forks(argc, argv);
  int exit_code = kExitFailed;
  int output_error = 0;
  try {
    exit_code = run_program(argc, argv);
  } catch (const std::exception& e) {
    // What printing throws is told by finish_output(); printing may throw here, too.
    const auto* failed = dynamic_cast<const std::system_error*>(&e);
    if (std::ferror(stdout) != 0 && failed != nullptr)
      output_error = failed->code().value();
    else if (std::ferror(stdout) == 0 && std::ferror(stderr) == 0)
      std::fputs(fmt::format("stormo: {}\n", stormo::printable(e.what())).c_str(), stderr);
  }
  leave(finish_output(exit_code, output_error));
}
