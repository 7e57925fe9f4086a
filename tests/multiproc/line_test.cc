// The network between two hosts is cut, while both still reach the job's Store: found within the
// heartbeat's bound. A rank that reads late is no cut.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "made_hosts.h"
#include "process.h"
#include "tests/built.h"

namespace stormo::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr std::chrono::seconds kHeartbeat{3};
constexpr std::chrono::seconds kMargin{30};  // for probes once a second, and a busy machine

class Line : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!hosts_.problem().empty()) GTEST_SKIP() << "root: " << hosts_.problem();
  }
  void TearDown() override { std::filesystem::remove(file_); }
  std::vector<std::string> job(const std::string& mode) const {
    return {built("stormo"),
            "run",
            "-H",
            name_ + "-1:1," + name_ + "-2:1",
            "--remote-shell",
            "ip netns exec {host}",
            "--interface",
            name_ + "br,eth0",
            "--heartbeat",
            std::to_string(kHeartbeat.count()) + "s",
            "--",
            built("line_worker"),
            mode,
            file_,
            std::to_string(2 * kHeartbeat.count())};
  }
  /// Ports of a bridge that are isolated reach the bridge itself, but not each other.
  void cut() const {
    const std::string isolate = " type bridge_slave isolated on";
    const Outcome o = run_to_end(
        {"/bin/sh", "-c",
         "ip link set " + name_ + "v1" + isolate + " && ip link set " + name_ + "v2" + isolate});
    ASSERT_EQ(o.status, 0) << o.err;
  }
  void expect_found(const std::string& mode) {
    Process process(job(mode));
    ASSERT_TRUE(process.wait_for_output("working", 2)) << process.err();
    cut();
    std::ofstream(file_).close();
    EXPECT_EQ(process.wait(kHeartbeat + kMargin), 1) << process.err();
    EXPECT_THAT(process.err(), HasSubstr("the network between the hosts is cut"));
    EXPECT_THAT(process.err(), AnyOf(HasSubstr("rank 0 (host "), HasSubstr("rank 1 (host ")));
  }

  const MadeHosts hosts_{2};
  const std::string& name_ = hosts_.name();
  const std::string file_ = ::testing::TempDir() + "line-" + std::to_string(::getpid());
};

TEST_F(Line, ACutWhileRanksExchangeIsFound) { expect_found("talk"); }

TEST_F(Line, ACutWhileOneSendsMuchIsFound) { expect_found("bulk"); }

TEST_F(Line, ACutWhileNobodySendsIsFoundByTheNextOperation) { expect_found("idle"); }

TEST_F(Line, ASlowReaderIsNoCut) {
  const Outcome o = run_to_end(job("slow"));
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_GT(o.took, 2 * kHeartbeat) << "the window was closed for longer than the bound";
}

}  // namespace
}  // namespace stormo::testing
