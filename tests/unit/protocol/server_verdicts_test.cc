#include <stormo/protocol/server/server_verdicts.h>

#include <array>
#include <vector>

#include <gtest/gtest.h>

#include <stormo/base/rng.h>

namespace stormo::protocol {
namespace {

TEST(ServerVerdicts, TheFirstOfTwoComplaintsCounts) {
  ServerVerdicts verdicts(2);
  EXPECT_TRUE(verdicts.complain(1, 0));
  EXPECT_FALSE(verdicts.complain(0, 1)) << "it is lost itself";
  EXPECT_FALSE(verdicts.complain(1, 0)) << "again";
  EXPECT_EQ(verdicts.lost(), std::set<int>{0});
}

TEST(ServerVerdicts, OnlyNeighboursComplain) {
  ServerVerdicts verdicts(5);
  for (const auto& [from, about] : {std::pair(0, 2), std::pair(2, 2), std::pair(-1, 0),
                                    std::pair(5, 0), std::pair(4, 5), std::pair(0, -1)}) {
    EXPECT_FALSE(verdicts.complain(from, about)) << from << " about " << about;
  }
  EXPECT_TRUE(verdicts.complain(4, 0));
  EXPECT_TRUE(verdicts.complain(4, 3));
  EXPECT_FALSE(verdicts.lose(3)) << "it is lost already";
  EXPECT_FALSE(verdicts.lose(5));
  EXPECT_EQ(verdicts.lost(), (std::set<int>{0, 3}));
}

// A server goes on with a part when the other one that holds it is lost and it is not. Whatever is
// complained about in whatever order, and whenever servers learn verdicts: never both go on.
TEST(ServerVerdicts, NeverTwoGoOnWithOnePart) {
  Rng rng(1, "verdicts");
  for (int round = 0; round < 2000; ++round) {
    const int servers = static_cast<int>(2 + rng.below(4));
    ServerVerdicts chief(servers);
    std::vector<std::set<int>> known(static_cast<std::size_t>(servers));
    std::vector<std::array<bool, 2>> goes_on(static_cast<std::size_t>(servers));
    const auto any = [&] {
      return static_cast<int>(rng.below(static_cast<std::uint64_t>(servers)));
    };
    for (int event = 0; event < 12; ++event) {
      const int server = any();
      const auto lost_before = chief.lost();
      if (rng.below(2) == 0)
        chief.complain(server, rng.below(2) == 0 ? any() : successor(server, servers));
      for (const int lost : lost_before) EXPECT_TRUE(chief.is_lost(lost));
      const int learns = any();
      known[static_cast<std::size_t>(learns)] = chief.lost();
      for (int part = 0; part < servers; ++part) {
        const int backup = successor(part, servers);
        const auto& at_primary = known[static_cast<std::size_t>(part)];
        const auto& at_backup = known[static_cast<std::size_t>(backup)];
        auto& [primary_alone, backup_alone] = goes_on[static_cast<std::size_t>(part)];
        primary_alone |= at_primary.contains(backup) && !at_primary.contains(part);
        backup_alone |= at_backup.contains(part) && !at_backup.contains(backup);
        ASSERT_FALSE(primary_alone && backup_alone) << "part " << part << " of " << servers;
      }
    }
  }
}

}  // namespace
}  // namespace stormo::protocol
