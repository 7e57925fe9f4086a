#include <stormo/base/check.h>

#include <cstdio>
#include <cstdlib>

namespace stormo {

void check_failed(const char* condition, const char* file, int line, const char* message) {
  std::fprintf(stderr, "stormo: internal error: %s (%s) at %s:%d\n", message, condition, file,
               line);
  std::abort();
}

}  // namespace stormo
