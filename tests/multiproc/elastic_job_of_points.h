#pragma once

#include <chrono>
#include <regex>
#include <string>
#include <vector>

#include "launch_program.h"
#include "process.h"

namespace stormo::testing {

/// A job of so many ranks of elastic_points_worker of this kind, to one of which `point` happens.
/// `where`: further options of elastic_launcher.
inline Outcome job(int ranks, const std::string& point, const std::string& kind = "shards",
                   const std::vector<std::string>& where = {}) {
  constexpr std::chrono::seconds kLong{90};  // loads libtorch, up to three times in a row
  std::vector<std::string> words{built("elastic_launcher"), std::to_string(ranks)};
  words.insert(words.end(), where.begin(), where.end());
  words.insert(words.end(), {"--", built("elastic_points_worker"), point, kind});
  Process process(words);
  Outcome outcome;
  outcome.status = process.wait(kLong);
  outcome.out = process.out();
  outcome.err = process.err();
  return outcome;
}

inline std::string weights_of(const Outcome& o) {
  static const std::regex line("weights ([0-9a-f]{16})\n");
  std::smatch found;
  return std::regex_search(o.out, found, line) ? found[1].str() : "none: " + o.out + o.err;
}

}  // namespace stormo::testing
