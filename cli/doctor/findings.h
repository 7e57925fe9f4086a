#pragma once

#include <string>
#include <vector>

#include <cli/doctor/facts.h>

namespace stormo::cli {

/// Something that would fail or be slow here.
struct Finding {
  bool fatal = false;  ///< ranks cannot run at all
  std::string what;
  std::string why;
  std::string remedy;
  bool operator==(const Finding&) const = default;
};

/// Pure: what to say about a host with these facts, the worst first.
std::vector<Finding> findings(const HostFacts& facts);

}  // namespace stormo::cli
