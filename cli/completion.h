#pragma once

#include <string>

#include <CLI/App.hpp>

namespace stormo::cli {

/// A bash completion script for all commands and options of `app`, as they are now.
std::string bash_completion(const CLI::App& app);

}  // namespace stormo::cli
