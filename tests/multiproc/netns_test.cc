// `stormo run` on hosts that are network namespaces, joined by a bridge.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "process.h"

namespace stormo::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

/// Two namespaces with one interface each (eth0), and a bridge of this host that reaches both.
class Network : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "root: network namespaces need root";
    const std::string id = std::to_string(::getpid() % 10000);
    bridge_ = "stb" + id;
    const bool v6 = GetParam();
    const std::string net =
        v6 ? "fd5e:" + id + "::" : "10.213." + std::to_string(::getpid() % 250) + ".";
    const std::string bits = v6 ? "/64 nodad" : "/24";
    std::string script = "set -e; ip link add " + bridge_ + " type bridge; ip link set " + bridge_ +
                         " up; ip addr add " + net + "1" + bits + " dev " + bridge_ + ";";
    for (int i = 0; i < 2; ++i) {
      const std::string n = std::to_string(i);
      hosts_[i] = "sth" + n + "-" + id;
      const std::string in = "ip -n " + hosts_[i] + " ";
      script += "ip netns add " + hosts_[i] + "; ip link add stv" + n + id +
                " type veth peer name eth0 netns " + hosts_[i] + "; ip link set stv" + n + id +
                " master " + bridge_ + " up;" + in + "link set lo up;" + in + "link set eth0 up;" +
                in + "addr add " + net + std::to_string(i + 2) + bits + " dev eth0;";
    }
    const Outcome o = run_to_end({"/bin/sh", "-c", script});
    if (o.status != 0) {
      TearDown();
      GTEST_SKIP() << "root: cannot make network namespaces: " << o.err;
    }
  }
  void TearDown() override {
    if (bridge_.empty()) return;
    std::string script = "ip link del " + bridge_;
    for (const std::string& host : hosts_) {
      // with its namespace the link would go as well, but some time later
      script += "; ip -n " + host + " link del eth0; ip netns del " + host;
    }
    run_to_end({"/bin/sh", "-c", script});
    bridge_.clear();
  }
  std::vector<std::string> run(const std::string& mode) const {
    return {STORMO_PROGRAM,
            "run",
            "-H",
            hosts_[0] + ":2," + hosts_[1] + ":2",
            "--remote-shell",
            "ip netns exec {host}",
            "--interface",
            bridge_ + ",eth0",
            "--",
            STORMO_LAUNCH_WORKER,
            mode};
  }

  std::string bridge_;
  std::string hosts_[2];
};

TEST_P(Network, TwoHostsOfTwoRanksMeet) {
  const Outcome o = run_to_end(run("meet"));
  EXPECT_EQ(o.status, 0) << o.err;
  const std::string met = "met " + hosts_[0] + " " + hosts_[0] + " " + hosts_[1] + " " + hosts_[1];
  EXPECT_EQ(count(o.out, met + " through tcp"), 4) << o.out;
}

TEST_P(Network, EachHostTakesTheInterfaceThatItHas) {
  const Outcome o = run_to_end(run("place"));
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(count(o.out, "interface 'eth0'"), 4) << o.out;
  EXPECT_THAT(o.out, HasSubstr("[3] rank 3/4 local 1/2 host 1/2 " + hosts_[1]));
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
