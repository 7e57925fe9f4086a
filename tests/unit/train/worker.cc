// One rank of the multi-process tests: `train_worker SCENARIO [ARGUMENTS]`, started by the
// launcher. A scenario returns 0, or prints what was not as expected and returns 1.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include <stormo/launch/process/fork_server.h>

#include "scenarios.h"

namespace {

int run(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return 2;
  try {
    if (arguments[0] == "train") return stormo::test::train_scenario(arguments);
    return stormo::test::ddp_scenario(arguments[0]);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}

}  // namespace

// Without the destructors of static objects: those of libtorch take a quarter of a short run.
int main(int argc, char** argv) {
  stormo::launch::serve_forks(argc, argv);
  const int code = run({argv + 1, argv + argc});
  std::fflush(nullptr);
  std::_Exit(code);
}
