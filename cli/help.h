#pragma once

#include <span>
#include <string>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Formatter.hpp>

namespace stormo::cli {

/// The commands of `app` that people may use.
std::vector<const CLI::App*> visible_commands(const CLI::App& app);

/// Help pages that start with a command's examples, which it gives as its footer.
class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override;
};

/// What to print about arguments that no command knows: each with the nearest one that exists.
/// Empty when there are none.
std::string unknown_arguments(const CLI::App& app);

/// The same for the first words, as far as commands are expected: "plan", "bench".
std::string unknown_command(const CLI::App& app, std::span<char* const> words);

}  // namespace stormo::cli
