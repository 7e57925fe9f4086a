// The schedules of record: a change of any of them shows as a change of a file under tests/golden.
#include <gtest/gtest.h>
#include <stormo/schedule/builders.h>

#include <cstdio>
#include <string>

#include "tests/golden/golden.h"

namespace stormo::schedule {
namespace {

/// Of some sizes, the same on every machine.
std::string hashes(const Builder& b) {
  std::string text;
  for (const int ranks : {1, 2, 4, 16}) {
    const auto s = b.build(ranks, b.takes.hosts && ranks > 1 ? 2 : 1);
    EXPECT_TRUE(s.ok()) << s.status().to_string();
    char line[128];
    std::snprintf(line, sizeof line, "# hash of %d ranks: %016llx\n", ranks,
                  static_cast<unsigned long long>(hash(*s)));
    text += line;
  }
  return text;
}

TEST(Golden, EachBuilderPrintsItsKnownTextAndHashes) {
  for (const Builder& b : builders()) {
    const int ranks = b.takes.even_hosts ? 4 : 5;            // others ignore hosts, root or pieces
    const int pieces = b.name.starts_with("ring_") ? 1 : 2;  // rings are plain without
    const auto s = b.build(ranks, 2, 3, pieces);
    ASSERT_TRUE(s.ok()) << s.status().to_string();
    testing::expect_golden("schedule_" + std::string(b.name) + ".txt", to_text(*s) + hashes(b));
  }
}

}  // namespace
}  // namespace stormo::schedule
