// `stormo run` on hosts that are network namespaces, joined by a bridge.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <memory>
#include <set>

#include "made_hosts.h"
#include "process.h"
#include "tests/built.h"

namespace stormo::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

class Network : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!hosts_.problem().empty()) GTEST_SKIP() << "root: " << hosts_.problem();
  }
  Words run(const std::string& mode) const {
    return {built("stormo"),
            "run",
            "-H",
            hosts_.host(0) + ":2," + hosts_.host(1) + ":2",
            "--remote-shell",
            "ip netns exec {host}",
            "--interface",
            hosts_.bridge() + ",eth0",
            "--",
            built("launch_worker"),
            mode};
  }

  const MadeHosts hosts_{2, GetParam() ? Words{"--v6"} : Words{}};
};

TEST_P(Network, TwoHostsOfTwoRanksMeet) {
  const Outcome o = run_to_end(run("meet"));
  EXPECT_EQ(o.status, 0) << o.err;
  const std::string met =
      "met " + hosts_.host(0) + " " + hosts_.host(0) + " " + hosts_.host(1) + " " + hosts_.host(1);
  EXPECT_EQ(count(o.out, met + " through tcp"), 4) << o.out;
}

TEST_P(Network, EachHostTakesTheInterfaceThatItHas) {
  const Outcome o = run_to_end(run("place"));
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(count(o.out, "interface 'eth0'"), 4) << o.out;
  EXPECT_THAT(o.out, HasSubstr("[3] rank 3/4 local 1/2 host 1/2 " + hosts_.host(1)));
}

TEST_P(Network, AKilledRankEndsBothHosts) {
  Process job(run("will"));
  ASSERT_TRUE(job.wait_for_output("joined", 4)) << job.err();
  pid_t victim = 0;
  for (const auto& r : job.relatives())
    if (r.command.find("launch_worker") != std::string::npos &&
        r.command.find(" run ") == std::string::npos)
      victim = r.pid;
  ASSERT_GT(victim, 0);
  ASSERT_EQ(::kill(victim, SIGKILL), 0);
  EXPECT_EQ(job.wait(), 1);
  EXPECT_TRUE(job.wait_until_all_gone(kGenerous));
  EXPECT_THAT(job.err(), HasSubstr("pid " + std::to_string(victim) + ") killed by signal 9"));
}

INSTANTIATE_TEST_SUITE_P(Addresses, Network, ::testing::Values(false, true),
                         [](const auto& i) { return i.param ? "V6" : "V4"; });

Words up(const std::string& name, pid_t owner) {
  return {built("hosts"), "up", "1", "--name", name, "--owner", std::to_string(owner)};
}

TEST(NetworkOfHosts, GoesBeforeTheNextOneOnceItsOwnerHasEnded) {
  if (::geteuid() != 0) GTEST_SKIP() << "root: network namespaces need root";
  Process owner({"/bin/true"});
  ASSERT_EQ(owner.wait(), 0);
  const std::string left = "u" + std::to_string(owner.pid());
  ASSERT_EQ(run_to_end(up(left, owner.pid())).status, 0);
  EXPECT_THAT(run_to_end({"/sbin/ip", "netns"}).out, HasSubstr(left + "-1"));
  const MadeHosts next(1);
  ASSERT_EQ(next.problem(), "");
  const std::string hosts = run_to_end({"/sbin/ip", "netns"}).out;
  EXPECT_EQ(count(hosts, left + "-1"), 0) << hosts;
  EXPECT_THAT(hosts, HasSubstr(next.host(0)));
}

TEST(NetworkOfHosts, HasAddressesThatNoOtherOneHasThoughAllAreMadeAtOnce) {
  if (::geteuid() != 0) GTEST_SKIP() << "root: network namespaces need root";
  std::vector<std::unique_ptr<Process>> made;
  Words names;
  for (char letter = 'a'; letter < 'f'; ++letter) {
    names.push_back(std::string(1, letter) + std::to_string(::getpid()));
    made.push_back(std::make_unique<Process>(up(names.back(), ::getpid())));
  }
  std::set<std::string> addresses;
  for (std::size_t i = 0; i < made.size(); ++i) {
    EXPECT_EQ(made[i]->wait(), 0) << made[i]->err();
    addresses.insert(
        run_to_end({"/sbin/ip", "-n", names[i] + "-1", "-br", "-4", "addr", "show", "eth0"}).out);
  }
  EXPECT_EQ(addresses.size(), names.size());
  for (const std::string& name : names) run_to_end({built("hosts"), "down", "--name", name});
}

}  // namespace
}  // namespace stormo::testing
