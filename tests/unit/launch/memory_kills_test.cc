#include <stormo/launch/process/memory_kills.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include <stormo/base/temporary_folder.h>

namespace stormo::launch {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// A machine's /proc and /sys, as far as they are looked at.
class MemoryKillsTest : public ::testing::Test {
 protected:
  void write(const std::string& file, const std::string& text) {
    const std::filesystem::path path = std::filesystem::path(folder_.path()) / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  MemoryKills now() { return MemoryKills(folder_.path()); }

  TemporaryFolder folder_ = TemporaryFolder::create("memory-kills").take_or_throw();
};

TEST_F(MemoryKillsTest, SecondVersion) {
  write("proc/self/cgroup", "0::/job/step\n");
  write("sys/fs/cgroup/job/step/memory.events", "low 0\noom 3\noom_kill 2\n");
  write("sys/fs/cgroup/job/step/memory.max", "max\n");
  write("sys/fs/cgroup/job/memory.max", "1073741824\n");
  const MemoryKills kills = now();
  EXPECT_EQ(kills.why_killed(), "") << "those of before do not count";
  write("sys/fs/cgroup/job/step/memory.events", "low 0\noom 4\noom_kill 3\n");
  EXPECT_THAT(kills.why_killed(), AllOf(HasSubstr("out of memory"), HasSubstr("use 1 GiB")));
}

TEST_F(MemoryKillsTest, FirstVersionInAContainer) {
  write("proc/self/cgroup", "5:cpu:/x\n4:cpuset,memory:/docker/0123\n0::/\n");
  write("sys/fs/cgroup/memory/memory.oom_control", "under_oom 0\noom_kill 0\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  const MemoryKills kills = now();
  write("sys/fs/cgroup/memory/memory.oom_control", "under_oom 0\noom_kill 1\n");
  EXPECT_THAT(kills.why_killed(), AllOf(HasSubstr("out of memory"), HasSubstr("group is full")));
}

TEST_F(MemoryKillsTest, TheMachineWithoutGroups) {
  write("proc/vmstat", "nr_free_pages 12\noom_kill 7\n");
  const MemoryKills kills = now();
  EXPECT_EQ(kills.why_killed(), "");
  write("proc/vmstat", "nr_free_pages 12\noom_kill 8\n");
  EXPECT_THAT(kills.why_killed(), HasSubstr("most likely this one"));
}

TEST_F(MemoryKillsTest, AMachineThatTellsNothing) { EXPECT_EQ(now().why_killed(), ""); }

}  // namespace
}  // namespace stormo::launch
