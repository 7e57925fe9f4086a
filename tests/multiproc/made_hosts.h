#pragma once

#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "process.h"
#include "tests/built.h"

namespace stormo::testing {

/// Hosts that the program `hosts` (tools/hosts) makes of network namespaces: NAME-1, NAME-2, ...,
/// on the bridge NAMEbr. Needs root.
class MadeHosts {
 public:
  /// `options`: more of `hosts up`, such as a rate or --v6.
  explicit MadeHosts(int count, const std::vector<std::string>& options = {})
      : name_("t" + std::to_string(::getpid() % 1000000)) {
    if (::geteuid() != 0) {
      problem_ = "network namespaces need root";
      return;
    }
    std::vector<std::string> words{built("hosts"), "up",      std::to_string(count),     "--name",
                                   name_,          "--owner", std::to_string(::getpid())};
    words.insert(words.end(), options.begin(), options.end());
    const Outcome up = run_to_end(words);
    if (up.status != 0) problem_ = "cannot make network namespaces: " + up.err;
  }
  ~MadeHosts() {
    if (problem_.empty()) run_to_end({built("hosts"), "down", "--name", name_});
  }
  MadeHosts(const MadeHosts&) = delete;
  MadeHosts& operator=(const MadeHosts&) = delete;

  /// Empty, or why there are none.
  const std::string& problem() const { return problem_; }
  const std::string& name() const { return name_; }
  std::string bridge() const { return name_ + "br"; }
  std::string host(int index) const { return name_ + "-" + std::to_string(index + 1); }

 private:
  const std::string name_;
  std::string problem_;
};

}  // namespace stormo::testing
