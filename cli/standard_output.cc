#include <cli/standard_output.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>

#include <cli/commands.h>

namespace stormo::cli {

int finish_output(int exit_code, int first_error) {
  errno = 0;
  std::cout.flush();
  const bool flushed = std::fflush(stdout) == 0;
  const int cause = first_error != 0 ? first_error : errno;
  if (flushed && std::ferror(stdout) == 0 && std::cout.good()) return exit_code;
  // Without fmt::print(), which throws when standard error is full as well.
  std::fprintf(stderr, "stormo: standard output: %s; the output is not complete\n",
               cause != 0 ? std::strerror(cause) : "an earlier write failed");
  return exit_code == kExitOk ? kExitFailed : exit_code;
}

}  // namespace stormo::cli
