// What ranks write on their boards stays on them, however many ranks the group has.
#include <gtest/gtest.h>

#include <algorithm>

#include <stormo/comm/group/memory_map.h>
#include <stormo/transport/inproc/inproc.h>

#include "tests/unit/comm/ranks.h"

namespace stormo::comm {
namespace {

using transport::HostRegion;

/// An all_to_all with counts of 5000 ranks, of which the last two are on this host.
struct LargeGroup {
  static constexpr int kRanks = 5000;
  std::vector<transport::InprocRank> here =
      transport::make_inproc_fabric(2, nullptr, kTestArenaBytes).take_or_throw();
  std::vector<float> data = std::vector<float>(kRanks * 2, 1);
  std::vector<std::int64_t> counts = std::vector<std::int64_t>(kRanks, 2);
  Buffer whole = data;
  Program program{.chunks = kRanks * kRanks, .shares_in = true, .shares_out = true};
  Request request{.kind = OperationKind::kAllToAll,
                  .in = {&whole, 1},
                  .out = {&whole, 1},
                  .counts = counts,
                  .out_counts = counts};

  static Rank rank_of(int local) { return kRanks - 2 + local; }
  Operands operands(int local) const {
    Operands o;
    o.local_rank = local;
    o.memory.resize(2);
    o.layout.assign({&whole, 1});
    o.partition = Partition::pairs(program.chunks, rank_of(local), counts, counts);
    return o;
  }
};

TEST(MemoryMap, CountsOfThousandsOfRanksStayOnTheirBoard) {
  LargeGroup g;
  transport::HostGroup& host = *g.here[0].group;
  // behind the board that is written next lies the other one of the same rank
  host.next_operation();
  std::ranges::fill(host.board(0), std::byte{0x5A});
  host.next_operation();
  MemoryMap map(host);
  Operands o = g.operands(0);
  EXPECT_OK(map.post_parts(g.request, LargeGroup::rank_of(0), LargeGroup::kRanks, g.program, o));
  host.next_operation();
  EXPECT_EQ(std::ranges::count(host.board(0), std::byte{0x5A}),
            static_cast<std::ptrdiff_t>(HostRegion::kBoardBytes));
}

TEST(MemoryMap, EachFindsItsBlockInThePeersInput) {
  LargeGroup g;
  std::vector<std::unique_ptr<MemoryMap>> maps;
  std::vector<Operands> operands;
  for (int local : {0, 1}) {
    maps.push_back(std::make_unique<MemoryMap>(*g.here[static_cast<std::size_t>(local)].group));
    operands.push_back(g.operands(local));
    EXPECT_OK(maps.back()->post_parts(g.request, LargeGroup::rank_of(local), LargeGroup::kRanks,
                                      g.program, operands.back()));
  }
  for (int local : {0, 1}) {
    const auto me = static_cast<std::size_t>(local);
    EXPECT_OK(maps[me]->find_others(g.request, operands[me]));
    // block (peer, me) begins in the peer's input where that of `me` begins in its own
    const std::uintptr_t theirs = operands[me].memory[1 - me].in[0];
    EXPECT_EQ(theirs, reinterpret_cast<std::uintptr_t>(g.data.data()));
  }
}

TEST(MemoryMap, AHostHasABoundedNumberOfRanks) {
  const auto most = HostRegion::anonymous(HostRegion::kMaxRanks);
  EXPECT_TRUE(most.ok()) << most.status().to_string();
  EXPECT_EQ(HostRegion::anonymous(HostRegion::kMaxRanks + 1).status().code(),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace stormo::comm
