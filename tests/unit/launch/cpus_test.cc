#include <stormo/launch/process/cpus.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <set>
#include <vector>

#include <stormo/launch/process/other_load.h>

namespace stormo::launch {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// `cores` cores of two logical processors each, on two memory nodes.
Cpus machine(int cores, double quota = 0) {
  Cpus cpus;
  cpus.numa_nodes.resize(2);
  for (int c = 0; c < cores; ++c) {
    cpus.cores.push_back({c, c + cores});
    for (const int cpu : cpus.cores.back()) cpus.numa_nodes[c < cores / 2 ? 0 : 1].push_back(cpu);
  }
  cpus.quota = quota;
  cpus.logical = 2 * cores;
  return cpus;
}

TEST(BindRanks, CoresAreSharedOutWithoutOverlapOrRest) {
  for (const int cores : {1, 2, 3, 7, 8, 16}) {
    for (int ranks = 1; ranks <= cores; ++ranks) {
      const Cpus cpus = machine(cores);
      std::set<int> used;
      std::size_t total = 0;
      for (const CpuList& mine : bind_ranks(cpus, ranks, BindPolicy::kCore)) {
        EXPECT_GE(mine.size(), static_cast<std::size_t>(cores / ranks) * 2);
        EXPECT_LE(mine.size(), static_cast<std::size_t>((cores + ranks - 1) / ranks) * 2);
        used.insert(mine.begin(), mine.end());
        total += mine.size();
      }
      EXPECT_EQ(total, static_cast<std::size_t>(cores) * 2);
      EXPECT_EQ(used.size(), total);
    }
  }
}

TEST(BindRanks, MoreRanksThanCoresTakeTurns) {
  EXPECT_THAT(bind_ranks(machine(2), 3, BindPolicy::kCore),
              ElementsAre(CpuList{0, 2}, CpuList{1, 3}, CpuList{0, 2}));
}

TEST(BindRanks, AutoBindsOnlyWhenEveryRankHasACore) {
  EXPECT_THAT(bind_ranks(machine(2), 2, BindPolicy::kAuto),
              ElementsAre(CpuList{0, 2}, CpuList{1, 3}));
  EXPECT_THAT(bind_ranks(machine(2), 3, BindPolicy::kAuto), Each(IsEmpty()));
  EXPECT_THAT(bind_ranks(machine(8, 1.5), 3, BindPolicy::kAuto), Each(IsEmpty()));
  EXPECT_THAT(bind_ranks(machine(8), 1, BindPolicy::kAuto), Each(IsEmpty()));
}

TEST(BindRanks, NumaTakesNodesInTurn) {
  const Cpus cpus = machine(4);
  EXPECT_THAT(bind_ranks(cpus, 3, BindPolicy::kNuma),
              ElementsAre(cpus.numa_nodes[0], cpus.numa_nodes[1], cpus.numa_nodes[0]));
}

TEST(BindRanks, NoneBindsNothing) {
  EXPECT_THAT(bind_ranks(machine(4), 2, BindPolicy::kNone), Each(IsEmpty()));
}

TEST(ThreadsPerRank, SharesCoresAndIsNeverZero) {
  EXPECT_EQ(threads_per_rank(machine(8), 2), 4);
  EXPECT_EQ(threads_per_rank(machine(8), 3), 2);
  EXPECT_EQ(threads_per_rank(machine(2), 16), 1);
  EXPECT_EQ(threads_per_rank(machine(8, 2.0), 1), 2);
}

TEST(ThreadsPerRank, LeavesCoresToOthersThatHaveHalfOfThem) {
  EXPECT_EQ(threads_per_rank(machine(2), 1, 0.9), 2);
  EXPECT_EQ(threads_per_rank(machine(2), 1, 1.1), 1);
  EXPECT_EQ(threads_per_rank(machine(2), 1, 2.0), 1);
  EXPECT_EQ(threads_per_rank(machine(8), 1, 3.9), 8);
  EXPECT_EQ(threads_per_rank(machine(8), 1, 4.2), 4);
  EXPECT_EQ(threads_per_rank(machine(8), 2, 5.0), 1);
  EXPECT_EQ(threads_per_rank(machine(8, 2.0), 1, 5.0), 2) << "by the quota";
}

TEST(ThreadsBesideOthers, BusyProcessesOnAllCoresLeaveOne) {
  const Cpus cpus = read_cpus();
  std::vector<pid_t> others;
  for (int i = 0; i < cpus.logical; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (volatile int n = 0;;) n = n + 1;
    }
    others.push_back(child);
  }
  const LoadedThreads seen = threads_beside_others(cpus, 1);
  for (const pid_t child : others) {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  const int usual = threads_per_rank(cpus, 1);
  if (cpus.quota == 0) {  // below a quota they do not fill the cores
    EXPECT_EQ(seen.threads, 1);
  }
  EXPECT_EQ(seen.note.empty(), seen.threads == usual || usual == 1) << seen.note;
}

TEST(ReadCpus, ThisMachineHasSome) {
  const Cpus cpus = read_cpus();
  EXPECT_GE(cpus.usable_cores(), 1);
  EXPECT_GE(cpus.logical, static_cast<int>(cpus.cores.size()));
  EXPECT_FALSE(cpus.numa_nodes.empty());
}

TEST(ParseCpuList, Grammar) {
  EXPECT_THAT(parse_cpu_list("0-3,8"), ElementsAre(0, 1, 2, 3, 8));
  EXPECT_THAT(parse_cpu_list("5"), ElementsAre(5));
  EXPECT_THAT(parse_cpu_list("3,1"), ElementsAre(1, 3));
  EXPECT_THAT(parse_cpu_list(""), IsEmpty());
  EXPECT_THAT(parse_cpu_list("x,-1"), IsEmpty());
}

TEST(BindPolicy, Names) {
  EXPECT_EQ(*parse_bind_policy("numa"), BindPolicy::kNuma);
  EXPECT_FALSE(parse_bind_policy("cores").ok());
}

}  // namespace
}  // namespace stormo::launch
