// Nothing outlives a job: programs that start children, sessions of their own and daemons, which
// hold memory files and sockets, and end in every way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "launch_program.h"
#include "process.h"
#include "tests/built.h"

namespace stormo::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// What `launch_worker household NAME` starts: each binds the abstract socket NAME/ROLE/RANK and
/// holds a memory file, also those that no mark in an environment tells apart.
constexpr int kRoles = 4;

std::string new_name() {
  static int next = 0;
  return "stormo-test-" + std::to_string(::getpid()) + "-" + std::to_string(++next);
}

int sockets_of(const std::string& name) { return count(read_proc("/proc/net/unix"), name + "/"); }

struct Ending {
  const char* mode;
  int signal;  // to the launcher
  int status;
};

void expect_nothing_after(const Ending& ending, const Words& options) {
  const std::string name = new_name();
  Process job(stormo_run(options, {kWorker, "household", ending.mode, name}));
  ASSERT_TRUE(job.wait_for_output("household is up", 2)) << job.err();
  if (ending.signal != 0) {
    EXPECT_EQ(sockets_of(name), 2 * kRoles);
    job.signal(ending.signal);
  }
  EXPECT_EQ(job.wait(), ending.status) << job.err();
  EXPECT_TRUE(job.wait_until_all_gone(0s));
  EXPECT_EQ(sockets_of(name), 0);
}

class Household : public ::testing::TestWithParam<Ending> {};

TEST_P(Household, LeavesNothing) { expect_nothing_after(GetParam(), {"-n", "2"}); }

TEST_P(Household, OnAnotherHostLeavesNothing) {
  const FakeShell shell(kRunHere);
  expect_nothing_after(GetParam(), shell.options("alpha:1,beta:1"));
}

INSTANTIATE_TEST_SUITE_P(Endings, Household,
                         ::testing::Values(Ending{"good", 0, 0}, Ending{"exit1", 0, 1},
                                           Ending{"wait", SIGTERM, 143}, Ending{"kill1", 0, 1}),
                         [](const auto& i) {
                           const std::string mode = i.param.mode;
                           return mode == "good"    ? "AllEndWell"
                                  : mode == "exit1" ? "OneFails"
                                  : mode == "kill1" ? "OneIsKilled"
                                                    : "TheUserEndsIt";
                         });

TEST(Orphans, NoneAfterTheLauncherIsKilled) {
  const std::string name = new_name();
  Process job(stormo_run({"-n", "2"}, {kWorker, "household", "marked", name}));
  ASSERT_TRUE(job.wait_for_output("household is up", 2)) << job.err();
  EXPECT_EQ(sockets_of(name), 2 * kRoles);
  job.signal(SIGKILL);
  EXPECT_TRUE(job.wait_until_all_gone(kGenerous));
  EXPECT_EQ(sockets_of(name), 0);
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
}

TEST(Orphans, NoneAfterTheLauncherAndAGuardAreKilled) {
  for (const std::size_t victim : {0u, 1u}) {
    const std::string name = new_name();
    Process job(stormo_run({"-n", "2"}, {kWorker, "household", "marked", name}));
    ASSERT_TRUE(job.wait_for_output("household is up", 2)) << job.err();
    std::vector<pid_t> guards;
    for (const auto& r : job.relatives()) {
      const std::string comm = read_proc("/proc/" + std::to_string(r.pid) + "/comm");
      if (r.parent == job.pid() && comm == "stormo-guard\n") guards.push_back(r.pid);
    }
    ASSERT_EQ(guards.size(), 2u);
    ASSERT_EQ(::kill(guards[victim], SIGKILL), 0);
    job.signal(SIGKILL);
    EXPECT_TRUE(job.wait_until_all_gone(kGenerous));
    EXPECT_EQ(sockets_of(name), 0);
  }
}

TEST(Orphans, NoneAfterTheAgentIsKilled) {
  const std::string name = new_name();
  const FakeShell shell(kRunHere);
  Process job(stormo_run(shell.options("alpha:1,beta:1"), {kWorker, "household", "marked", name}));
  ASSERT_TRUE(job.wait_for_output("household is up", 2)) << job.err();
  const auto relatives = job.relatives();
  const auto agent = std::find_if(relatives.begin(), relatives.end(), [&](const auto& r) {
    return r.parent == job.pid() && r.command.ends_with("agent ");
  });
  ASSERT_NE(agent, relatives.end());
  ASSERT_EQ(::kill(agent->pid, SIGKILL), 0);
  EXPECT_EQ(job.wait(), 1);
  EXPECT_TRUE(job.wait_until_all_gone(kGenerous));
  EXPECT_EQ(sockets_of(name), 0);
}

TEST(Orphans, NoneAfterTheLauncherIsKilledBehindARemoteShell) {
  // The shell stays between launcher and agent, as ssh does.
  const FakeShell shell("shift\n\"$@\"");
  const std::string name = new_name();
  Process job(stormo_run(shell.options("alpha:1,beta:1"), {kWorker, "household", "marked", name}));
  ASSERT_TRUE(job.wait_for_output("household is up", 2)) << job.err();
  job.signal(SIGKILL);
  EXPECT_TRUE(job.wait_until_all_gone(kGenerous));
  EXPECT_EQ(sockets_of(name), 0);
}

TEST(Orphans, NoneOfRanksThatLeaveTheirGroup) {
  const FakeShell shell("shift\n\"$@\"");
  const Words program{"setsid", "sh", "-c", "echo started; exec sleep 1000"};
  Process job(stormo_run(shell.options("alpha:1,beta:1"), program));
  ASSERT_TRUE(job.wait_for_output("started", 2)) << job.err();
  job.signal(SIGKILL);
  EXPECT_TRUE(job.wait_until_all_gone(kGenerous)) << "the agents end their ranks, then themselves";
}

TEST(Orphans, ABackgroundProcessThatHoldsTheOutputDoesNotHoldTheJob) {
  const Outcome o = run_to_end(stormo_run({"-n", "2"}, {"sh", "-c", "sleep 1000 & echo started"}));
  EXPECT_EQ(o.status, 0);
  EXPECT_LT(o.took, 60s);
  EXPECT_EQ(count(o.out, "started"), 2);
}

TEST(Orphans, ThoseThatEndEarlyAreReaped) {
  const Outcome o = run_to_end(stormo_run({"-n", "1"}, {kWorker, "daemons-end"}));
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(o.out, "[0] reaped\n");
}

TEST(Orphans, NothingIsLeftInFileSystems) {
  // a private /dev/shm, and a layer over /tmp that catches whatever is written there
  const std::string script =
      "mount -t tmpfs none /dev/shm && mount -t tmpfs none /mnt && mkdir /mnt/new /mnt/work && "
      "mount -t overlay overlay -o lowerdir=/tmp,upperdir=/mnt/new,workdir=/mnt/work /tmp || "
      "exit 99; \"$@\"; echo status $?; ls -A /dev/shm /mnt/new | grep -v -e '^/' -e '^$'; exit 0";
  const std::vector<std::pair<Words, int>> programs{
      {{kWorker, "household", "exit1", new_name()}, 1},
      {{built("job_worker"), "throw", "1"}, 1},  // with Arenas, secrets, and rings between hosts
      {{built("job_worker"), "good", "1"}, 0}};
  for (const auto& [program, status] : programs) {
    Words words{"/usr/bin/unshare", "-m", "sh", "-c", script, "sh"};
    const Words run = stormo_run({"-H", "localhost:2,127.0.0.1:1"}, program);
    words.insert(words.end(), run.begin(), run.end());
    const Outcome o = run_to_end(words);
    if (o.status != 0) GTEST_SKIP() << "root: no private mounts here: " << o.err;
    const auto lines = split_lines(o.out);
    ASSERT_FALSE(lines.empty());
    EXPECT_EQ(lines.back(), "status " + std::to_string(status)) << o.out << o.err;
  }
}

}  // namespace
}  // namespace stormo::testing
