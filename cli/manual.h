#pragma once

#include <string>
#include <vector>

#include <CLI/App.hpp>

namespace stormo::cli {

/// The file of a manual page, "stormo-plan-show.1", and its text for man(1).
struct ManualPage {
  std::string file;
  std::string text;
};

/// A page for the program and one for each command that people may use, from their help.
std::vector<ManualPage> manual_pages(const CLI::App& app);

}  // namespace stormo::cli
