#pragma once

#include <sys/stat.h>

#include <fstream>
#include <string>
#include <vector>

#include <stormo/base/temporary_folder.h>

#include "tests/built.h"

namespace stormo::testing {

using Words = std::vector<std::string>;

inline const std::string kStormo = built("stormo");
inline const std::string kWorker = built("launch_worker");

inline Words stormo_run(const Words& options, const Words& program) {
  Words argv{kStormo, "run"};
  argv.insert(argv.end(), options.begin(), options.end());
  argv.push_back("--");
  argv.insert(argv.end(), program.begin(), program.end());
  return argv;
}

/// A script that plays the remote shell on this machine, in a folder of its own.
class FakeShell {
 public:
  explicit FakeShell(const std::string& body) {
    std::ofstream(script()) << "#!/bin/sh\n" << body << "\n";
    ::chmod(script().c_str(), 0700);
  }
  std::string script() const { return folder_.path() / "shell"; }
  Words options(const std::string& hosts) const {
    return {"-H", hosts, "--remote-shell", script() + " {host}", "--interface", "lo"};
  }

 private:
  TemporaryFolder folder_ = TemporaryFolder::create("launch-test").take_or_throw();
};
inline constexpr const char* kRunHere = "shift\nexec \"$@\"";

}  // namespace stormo::testing
