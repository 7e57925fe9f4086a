// One of four processes is killed or stopped in the middle of an operation: every other one learns
// the same first cause in time, and together they form a new group. A stopped one is continued as
// soon as others have failed: those who share its host have ended it by then; alone on its host, it
// learns the same cause.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <stormo/transport/store/store.h>

#include "process.h"
#include "tests/built.h"
#include "tests/conformance/at_once.h"
#include "tests/conformance/every_operation.h"
#include "tests/sanitized.h"

namespace stormo::testing {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int kRanks = 4;
constexpr int kVictim = 2;
constexpr int kContinued = 3;              // exit code of a victim that was not ended
constexpr milliseconds kMargin = 20000ms;  // for a busy machine
// Long enough for ranks that join while many other processes want the same two cores.
constexpr milliseconds kHeartbeat = 2000ms;
// with a sanitizer freed memory is kept for a while
constexpr long kMaxGrowthKilobytes = (kSanitized ? 300 : 16) << 10;
constexpr int kAtOnce = 12;  // scenarios; most of the time they wait

struct Scenario {
  std::string operation;
  std::string hosts;
  std::string fault;   // kill, stop
  std::string moment;  // during, before
  milliseconds heartbeat;
  milliseconds deadline;
  bool by_deadline() const { return heartbeat == 0ms; }
  std::string text() const {
    return operation + " on " + hosts + ", " + fault + " " + moment +
           (by_deadline() ? ", found by the deadline" : "");
  }
};

/// The rest of the line that starts with `key`.
std::string value_of(const std::string& key, const std::string& output) {
  for (const std::string& line : split_lines(output)) {
    if (line.starts_with(key + " ")) return line.substr(key.size() + 1);
  }
  return "";
}

/// A death is found by the end of its connection, a stop by the heartbeat or, where none is judged,
/// by the caller's deadline.
std::vector<Scenario> scenarios(const std::string& hosts) {
  std::vector<Scenario> all;
  bool by_deadline = false;
  for (const comm::NamedOperation& operation : comm::every_operation()) {
    by_deadline = !by_deadline;
    for (const char* moment : {"during", "before"}) {
      const std::string name(operation.name);
      by_deadline = !by_deadline;
      all.push_back({name, hosts, "kill", moment, 5000ms, 10000ms});
      all.push_back({name, hosts, "stop", moment, by_deadline ? 0ms : kHeartbeat,
                     by_deadline ? 600ms : 10000ms});
    }
  }
  return all;
}

class FaultInProcesses : public ::testing::TestWithParam<const char*> {
 protected:
  void run(const Scenario& s) {
    transport::StoreServer::Options options;
    options.listen = "tcp:127.0.0.1";
    options.secret = secret_;
    auto server = transport::StoreServer::start(options);
    ASSERT_TRUE(server.ok()) << server.status().to_string();
    std::vector<std::unique_ptr<Process>> ranks;
    for (int r = 0; r < kRanks; ++r) {
      ranks.push_back(std::make_unique<Process>(
          std::vector<std::string>{built("fault_worker"), s.operation, s.hosts, std::to_string(r),
                                   std::to_string(kVictim), s.fault, s.moment,
                                   (*server)->address().text, std::to_string(s.heartbeat.count()),
                                   std::to_string(s.deadline.count())},
          std::vector<std::string>{"STORMO_TEST_SECRET=" + secret_.to_hex()}));
    }
    std::string first_cause;
    for (int r = 0; r < kRanks; ++r) {
      Process& rank = *ranks[static_cast<std::size_t>(r)];
      if (r == kVictim) continue;
      SCOPED_TRACE(s.text() + ", rank " + std::to_string(r));
      const int status = rank.wait();
      EXPECT_EQ(status, 0) << rank.out() << rank.err();
      if (status != 0) continue;
      check_survivor(s, rank.out(), ranks[kVictim]->pid());
      const std::string cause = value_of("cause", rank.out());
      if (first_cause.empty()) first_cause = cause;
      EXPECT_EQ(cause, first_cause);
    }
    check_victim(s, *ranks[kVictim], first_cause);
  }

  static void check_victim(const Scenario& s, Process& victim, const std::string& first_cause) {
    SCOPED_TRACE(s.text() + ", the victim");
    const bool alone = s.hosts == "1,1,1,1";
    int status = victim.wait(2s);
    // starved, and taken for silent before it stopped: it was continued too soon
    const auto end = std::chrono::steady_clock::now() + kGenerous;
    while (status == -1 && std::chrono::steady_clock::now() < end) {
      victim.signal(SIGCONT);
      status = victim.wait(1s);
    }
    // who was stopped in a message may go on: it only reads memory of others, and then looks
    // whether it may use what it has read
    const bool goes_on =
        s.operation == "send_and_recv" && s.fault == "stop" && status == kContinued;
    if (s.fault == "kill" || (!alone && !goes_on)) {
      EXPECT_EQ(status, 128 + SIGKILL) << victim.out() << victim.err();
      return;
    }
    EXPECT_EQ(status, kContinued) << victim.out() << victim.err();
    EXPECT_EQ(value_of("cause", victim.out()), first_cause);
  }

  static void check_survivor(const Scenario& s, const std::string& out, pid_t process) {
    const std::string cause = value_of("cause", out);
    const std::string outcome = value_of("outcome", out);
    // the victim, by rank and host, or by its process for who was reading its memory; by a
    // deadline, it is the one that does not answer, or has not come
    const std::string victim = "rank " + std::to_string(kVictim);
    if (s.by_deadline()) {
      EXPECT_THAT(cause, AnyOf(HasSubstr(victim + ": no answer"),
                               HasSubstr("before local " + victim + " arrived")));
    } else {
      EXPECT_THAT(cause, AnyOf(HasSubstr(victim + " (host host"),
                               HasSubstr("process " + std::to_string(process) + " of this host")));
    }
    EXPECT_THAT(cause, HasSubstr(s.by_deadline() ? "deadline exceeded: " : "peer lost: "));
    EXPECT_THAT(outcome, HasSubstr(cause.substr(cause.find(": ") + 2)));
    EXPECT_THAT(outcome, HasSubstr(s.operation == "send_and_recv" ? " tag 7" : s.operation));
    const milliseconds found_after = s.fault == "kill" ? 0ms
                                     : s.by_deadline() ? s.deadline
                                                       : s.heartbeat;
    EXPECT_LE(milliseconds(std::stol("0" + value_of("took", out))), found_after + kMargin);
    EXPECT_LT(std::stol(value_of("grown", out)), kMaxGrowthKilobytes);
    EXPECT_EQ(value_of("new group", out), "ok");
    EXPECT_LE(std::stol(value_of("descriptors", out)), 0) << "closed with the first group";
  }

  const transport::Secret secret_ = transport::Secret::random();
};

TEST_P(FaultInProcesses, IsOneCauseForAllAndASmallerGroupGoesOn) {
  const std::vector<Scenario> all = scenarios(GetParam());
  at_once(kAtOnce, all.size(), [&](std::size_t i) { run(all[i]); });
}

INSTANTIATE_TEST_SUITE_P(Shm, FaultInProcesses, ::testing::Values("4"));
INSTANTIATE_TEST_SUITE_P(Tcp, FaultInProcesses, ::testing::Values("1,1,1,1"));
INSTANTIATE_TEST_SUITE_P(Mixed, FaultInProcesses, ::testing::Values("2,2"));

}  // namespace
}  // namespace stormo::testing
