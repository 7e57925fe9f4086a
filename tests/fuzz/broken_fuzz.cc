// A target with a bug: replay_test.sh shows that replay finds it, says how to repeat it, and
// repeats it.
#include <stormo/base/check.h>

#include "tests/fuzz/fuzz.h"

std::vector<std::string> stormo::fuzz::seeds() { return {"sound", "as well"}; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = stormo::fuzz::as_text(data, size);
  STORMO_CHECK(text.size() < 3 || text[2] != 'X', "the bug");
  return 0;
}
