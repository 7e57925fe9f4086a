// `stormo run` on hosts that are network namespaces, joined by a bridge.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "process.h"
#include "tests/built.h"
#include "two_hosts.h"

namespace stormo::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

class Network : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!hosts_.problem().empty()) GTEST_SKIP() << "root: " << hosts_.problem();
  }
  std::vector<std::string> run(const std::string& mode) const {
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

  const TwoHosts hosts_{GetParam()};
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
  EXPECT_EQ(job.wait(3s), 1);
  EXPECT_TRUE(job.wait_until_all_gone(1s));
  EXPECT_THAT(job.err(), HasSubstr("pid " + std::to_string(victim) + ") killed by signal 9"));
}

INSTANTIATE_TEST_SUITE_P(Addresses, Network, ::testing::Values(false, true),
                         [](const auto& i) { return i.param ? "V6" : "V4"; });

}  // namespace
}  // namespace stormo::testing
