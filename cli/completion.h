#pragma once

#include <string>
#include <vector>

#include <CLI/App.hpp>

namespace stormo::cli {

/// One command, and what may follow it.
struct CommandWords {
  struct Word {
    std::string name;  ///< of an option with its dashes
    std::string help;  ///< its first line
  };
  std::string path;  ///< "stormo plan show"
  std::vector<Word> commands, options;
};

/// All commands of `app` that people may use, as they are now: the program first, a command before
/// those inside of it. Completion scripts and manual pages are made from it.
std::vector<CommandWords> command_words(const CLI::App& app);

/// The names of the shells that have a completion script.
inline constexpr const char* kShells[] = {"bash", "zsh", "fish"};
/// A completion script for all commands and options. `shell` is one of kShells.
std::string completion_script(const CLI::App& app, const std::string& shell);

}  // namespace stormo::cli
