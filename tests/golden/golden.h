#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "tests/built.h"

namespace stormo::testing {

/// Expects `text` to equal the file tests/golden/NAME and prints the lines that differ.
/// To accept a change, run the test once with STORMO_UPDATE_GOLDEN=1 and read `git diff` before
/// committing it.
inline void expect_golden(const std::string& name, const std::string& text) {
  const std::string path = repository() / "tests/golden" / name;
  if (std::getenv("STORMO_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path, std::ios::binary) << text;
  }
  std::ifstream file(path, std::ios::binary);
  ASSERT_TRUE(file) << "no golden file " << name << "; make it with STORMO_UPDATE_GOLDEN=1";
  const std::string golden{std::istreambuf_iterator<char>(file), {}};
  if (text == golden) return;
  std::istringstream was(golden), is(text);
  std::ostringstream diff;
  std::string old_line, line;
  for (int number = 1; was || is; ++number) {
    const bool has_old = static_cast<bool>(std::getline(was, old_line));
    const bool has_new = static_cast<bool>(std::getline(is, line));
    if (has_old && has_new && old_line == line) continue;
    if (has_old) diff << number << ": - " << old_line << "\n";
    if (has_new) diff << number << ": + " << line << "\n";
  }
  ADD_FAILURE() << name << " differs (- golden, + now; STORMO_UPDATE_GOLDEN=1 accepts):\n"
                << diff.str();
}

}  // namespace stormo::testing
