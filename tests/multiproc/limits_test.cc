// What the system refuses or ends, named with its remedy: open files, file sizes, mapped files,
// memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "launch_program.h"
#include "process.h"
#include "tests/built.h"

namespace stormo::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Words limited(const std::string& limit, const Words& words) {
  Words all{"/bin/bash", "-c", limit + " && exec \"$@\"", "bash"};
  all.insert(all.end(), words.begin(), words.end());
  return all;
}

TEST(OpenFiles, TooFewAreRefusedBeforeAnythingStarts) {
  const Outcome o =
      run_to_end(limited("ulimit -n 366", stormo_run({"-n", "100"}, {"echo", "started"})));
  EXPECT_EQ(o.status, 2);
  EXPECT_THAT(o.err, AllOf(HasSubstr("100 ranks"), HasSubstr("limit is 366"),
                           HasSubstr("ulimit -Hn"), HasSubstr("start fewer ranks")));
  EXPECT_EQ(o.out, "");
}

TEST(OpenFiles, WhatIsAskedForIsEnough) {
  const Words job = stormo_run({"-n", "8"}, {built("job_worker"), "good"});
  const Outcome refused = run_to_end(limited("ulimit -n 100", job));
  ASSERT_EQ(refused.status, 2);
  const std::size_t at = refused.err.find("need ");
  ASSERT_NE(at, std::string::npos) << refused.err;
  const std::string needed = std::to_string(std::stoi(refused.err.substr(at + 5)));
  const Outcome o = run_to_end(limited("ulimit -n " + needed, job));
  EXPECT_EQ(o.status, 0) << o.err;
}

TEST(OpenFiles, TheSoftLimitIsRaised) {
  const Outcome o = run_to_end(limited("ulimit -Sn 64 && ulimit -Hn 2000",
                                       stormo_run({"-n", "2"}, {"bash", "-c", "ulimit -n"})));
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(count(o.out, "] 2000\n"), 2) << o.out;
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which reserve terabytes
TEST(AddressSpace, WhatTheLimitLeavesIsEnough) {
  for (const char* ranks : {"1", "2", "4"}) {
    for (const char* kilobytes : {"16000000", "1000000"}) {
      const Outcome o =
          run_to_end(limited(std::string("ulimit -v ") + kilobytes,
                             stormo_run({"-n", ranks}, {built("job_worker"), "good"})));
      EXPECT_EQ(o.status, 0) << ranks << " ranks, " << kilobytes << " kB: " << o.err;
    }
  }
}
#endif

TEST(FileSizes, TheirLimitIsNamed) {
  const Outcome o = run_to_end(stormo_run({"-n", "2"}, {kWorker, "file-size"}));
  EXPECT_EQ(o.status, 1);
  EXPECT_THAT(o.err, AllOf(HasSubstr("rank 1 (host "), HasSubstr("killed by signal 25 (SIGXFSZ)"),
                           HasSubstr("raise it (ulimit -f)")));
}

TEST(FileSizes, SharedMemoryIsNoLargerThanAFileMayBe) {
  const Words job = stormo_run({"-n", "2"}, {built("job_worker"), "good"});
  EXPECT_EQ(run_to_end(limited("ulimit -f 1048576", job)).status, 0);
  const Outcome o = run_to_end(limited("ulimit -f 1000", job));
  EXPECT_EQ(o.status, 1);
  EXPECT_THAT(o.err, AllOf(HasSubstr("at most 1000 KiB"), HasSubstr("raise the limit to 1 GiB"),
                           HasSubstr("ulimit -f")));
}

TEST(MappedFiles, OneThatShrinksIsNamed) {
  const Outcome o = run_to_end(stormo_run({"-n", "2"}, {kWorker, "bus"}));
  EXPECT_EQ(o.status, 1);
  EXPECT_THAT(o.err, AllOf(HasSubstr("killed by signal 7 (SIGBUS)"),
                           HasSubstr("A mapped file became shorter")));
}

/// A control group of the memory controller, version 1 or 2, for one test. Its limit leaves room
/// for the launcher, which has 160 MiB in a sanitized build, so that a rank is the largest process
/// when memory runs out.
class MemoryGroup {
 public:
  MemoryGroup() {
    for (const char* base : {"/sys/fs/cgroup", "/sys/fs/cgroup/memory"}) {
      folder_ = std::string(base) + "/stormo-test-" + std::to_string(::getpid());
      std::error_code error;
      std::filesystem::create_directory(folder_, error);
      for (const char* file : {"memory.max", "memory.limit_in_bytes"}) {
        if (!std::filesystem::exists(folder_ + "/" + file)) continue;
        std::ofstream(folder_ + "/" + file) << (512 << 20);
        usable_ = true;
        return;
      }
      std::filesystem::remove(folder_, error);
    }
  }
  ~MemoryGroup() {
    std::error_code error;
    if (usable_) std::filesystem::remove(folder_, error);
  }
  bool usable() const { return usable_; }
  std::string enter() const { return "echo $$ > " + folder_ + "/cgroup.procs"; }

 private:
  std::string folder_;
  bool usable_ = false;
};

TEST(Memory, TheKernelsKillIsNamed) {
  const MemoryGroup group;
  if (!group.usable()) GTEST_SKIP() << "root: cannot make a control group for memory here";
  const Outcome o =
      run_to_end(limited(group.enter(), stormo_run({"-n", "2"}, {kWorker, "memory"})));
  EXPECT_EQ(o.status, 1);
  EXPECT_THAT(o.err, AllOf(HasSubstr("rank 1 (host "), HasSubstr("killed by signal 9 (SIGKILL)"),
                           HasSubstr("out of memory: "), HasSubstr("which may use 512 MiB"),
                           HasSubstr("start fewer ranks")));
}

TEST(Memory, AnotherKillIsNotTakenForIt) {
  const Outcome o = run_to_end(stormo_run({"-n", "2"}, {kWorker, "killed"}));
  EXPECT_EQ(o.status, 1);
  EXPECT_THAT(o.err, AllOf(HasSubstr("SIGKILL comes from outside"),
                           ::testing::Not(HasSubstr("out of memory"))));
}

}  // namespace
}  // namespace stormo::testing
