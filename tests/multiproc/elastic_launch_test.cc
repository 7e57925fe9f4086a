// Elastic jobs with real processes: the register, and ranks that are lost and started again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>

#include <stormo/base/temporary_folder.h>
#include <stormo/launch/messages/job_control.h>

#include "launch_program.h"
#include "process.h"

namespace stormo::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kElasticWorker = built("elastic_worker");

Words elastic(const Words& options, const std::string& mode) {
  Words argv{built("elastic_launcher")};
  argv.insert(argv.end(), options.begin(), options.end());
  argv.insert(argv.end(), {"--", kElasticWorker, mode});
  return argv;
}

Words on_two_hosts(const FakeShell& shell) {
  return {"2", "hosts=alpha:1,beta:1", "shell=" + shell.script()};
}

/// The pids of the lost process of rank 1 and of its replacement, of the lines that say so in this
/// order.
std::pair<int, int> replaced(const std::string& err) {
  static const std::regex lines(
      "stormo: rank 1 \\(host \\S+, pid (\\d+)\\) killed by signal 9 \\(SIGKILL\\); the job goes "
      "on "
      "without it\n"
      "stormo: rank 1 \\(host \\S+, pid (\\d+)\\) is started again\n");
  std::smatch found;
  if (!std::regex_search(err, found, lines)) return {0, 0};
  return {std::stoi(found[1]), std::stoi(found[2])};
}

void expect_replaced_once(const Outcome& o) {
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.out, ::testing::AllOf(HasSubstr("[1] begins 1\n"), HasSubstr("[1] begins 2\n")));
  const auto [before, after] = replaced(o.err);
  EXPECT_GT(before, 0) << o.err;
  EXPECT_GT(after, 0);
  EXPECT_NE(before, after);
  EXPECT_THAT(o.err, HasSubstr("stormo: ranks were lost once before the end:\n  rank 1 "));
}

pid_t parent_of(const Process& job, pid_t child) {
  for (const Process::Relative& p : job.relatives())
    if (p.pid == child) return p.parent;
  return -1;
}

/// How often the program was loaded.
class Loads {
 public:
  std::string variable() const { return "LOADED=" + path().string(); }
  std::uintmax_t count() const { return std::filesystem::file_size(path()); }

 private:
  std::filesystem::path path() const { return folder_.path() / "loaded"; }
  TemporaryFolder folder_ = TemporaryFolder::create("elastic-launch").take_or_throw();
};

/// The process that forks ranks: it runs their program, and is none of them.
pid_t fork_server_of(const Process& job, int ranks) {
  std::set<pid_t> of_ranks;
  for (int r = 0; r < ranks; ++r) of_ranks.insert(job.rank(r, kElasticWorker));
  for (const Process::Relative& p : job.relatives()) {
    if (p.command.starts_with(kElasticWorker) && !of_ranks.contains(p.pid)) return p.pid;
  }
  return -1;
}

TEST(ElasticRun, ARankThatDiesIsStartedAgain) {
  expect_replaced_once(run_to_end(elastic({"3"}, "once")));
}

TEST(ElasticRun, AlsoOnAnotherHost) {
  const FakeShell shell(kRunHere);
  expect_replaced_once(run_to_end(elastic(on_two_hosts(shell), "once")));
}

TEST(ElasticRun, RecordsSayWhoWasLostAndStartedAgain) {
  const Outcome o = run_to_end(elastic({"2", "json"}, "once"));
  ASSERT_EQ(o.status, 0) << o.err;
  std::vector<std::string> events;
  for (const std::string& line : split_lines(o.out)) {
    const auto record = nlohmann::json::parse(line);
    const std::string event = record.at("event");
    if (event == "lost" || event == "started_again") events.push_back(event);
    if (event != "started_again") continue;
    EXPECT_EQ(record.at("rank"), 1);
    EXPECT_EQ(record.at("incarnation"), 2);
    EXPECT_GT(record.at("pid"), 0);
  }
  EXPECT_THAT(events, ElementsAre("lost", "started_again"));
}

TEST(ElasticRun, RanksReachTheRegister) {
  const FakeShell shell(kRunHere);
  for (const Words& where : {Words{"2"}, on_two_hosts(shell)}) {
    const Outcome o = run_to_end(elastic(where, "register"));
    EXPECT_EQ(o.status, 0) << o.err;
    EXPECT_EQ(count(o.out, "epoch 1 of this job\n"), 2) << o.out;
  }
}

TEST(ElasticRun, TheRegisterOfAJobIsOnLoopbackAndLeavesNothing) {
  const TemporaryFolder folder = TemporaryFolder::create("elastic-launch").take_or_throw();
  const Words variables{"TMPDIR=" + folder.path().string(), "STORMO_JOB=outer",
                        "STORMO_INCARNATION=7"};
  const Outcome o = run_to_end(elastic({"2"}, "place"), variables);
  EXPECT_EQ(o.status, 0) << o.err;
  static const std::regex line(
      "\\[[01]\\] job ([0-9a-f]{16}), register quorum://127\\.0\\.0\\.1:\\d+, incarnation 1\n");
  std::smatch found;
  ASSERT_TRUE(std::regex_search(o.out, found, line)) << o.out;
  EXPECT_EQ(count(o.out, "job " + found[1].str() + ","), 2) << "it has one name";
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(ElasticRun, OnThreeHostsTheRegisterHasThreePartsAndLeavesNothing) {
  const TemporaryFolder folder = TemporaryFolder::create("elastic-launch").take_or_throw();
  const FakeShell shell(kRunHere);
  const Words three{"3", "hosts=alpha:1,beta:1,gamma:1", "shell=" + shell.script()};
  for (const Words& where : {three, on_two_hosts(shell)}) {  // the third is the launcher's
    const Outcome o = run_to_end(elastic(where, "place"), {"TMPDIR=" + folder.path().string()});
    EXPECT_EQ(o.status, 0) << o.err;
    static const std::regex line(
        "register quorum://127\\.0\\.0\\.1:\\d+(,127\\.0\\.0\\.1:\\d+){2}, ");
    EXPECT_TRUE(std::regex_search(o.out, line)) << o.out;
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  }
}

TEST(ElasticRun, AHostThatCannotHaveItsPartOfTheRegisterEndsTheStart) {
  const FakeShell shell("[ $1 != beta ] || exit 9\n" + std::string(kRunHere));
  Process job(elastic(on_two_hosts(shell), "wait"));
  EXPECT_EQ(job.wait(), 99) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("host beta, which has a part of the job's register"));
  EXPECT_TRUE(job.wait_until_all_gone(kGenerous));
}

TEST(ElasticRun, TheRegisterOfTheSiteIsPassedOn) {
  const Outcome o = run_to_end(elastic({"2", "register=etcd://10.0.0.1/training"}, "place"));
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(count(o.out, "register etcd://10.0.0.1/training,"), 2) << o.out;
}

TEST(ElasticRun, ReplacementsAreForkedFromWhatIsLoaded) {
  for (const Words& options : {Words{"3"}, Words{"3", "loaded"}}) {
    const Loads loads;
    const Outcome o = run_to_end(elastic(options, "once"), {loads.variable()});
    expect_replaced_once(o);
    EXPECT_EQ(loads.count(), 1u);
  }
}

TEST(ElasticRun, WithoutTheForkServerTheyAreLoaded) {
  for (const Words& options : {Words{"2"}, Words{"2", "loaded"}}) {
    const Loads loads;
    Process job(elastic(options, "wait"), {loads.variable()});
    ASSERT_TRUE(job.wait_for_output("waits 1", 2)) << job.err();
    const pid_t server = fork_server_of(job, 2);
    ASSERT_GT(server, 0);
    ASSERT_EQ(::kill(server, SIGKILL), 0);
    ASSERT_EQ(::kill(job.rank(1, kElasticWorker), SIGKILL), 0);
    ASSERT_TRUE(job.wait_for_output("waits 2")) << job.err();
    EXPECT_EQ(loads.count(), 2u);
    job.signal(SIGTERM);
    EXPECT_EQ(job.wait(), 143) << job.err();
  }
}

TEST(ElasticRun, AnInterruptionEndsTheJobWhileARankIsStarted) {
  Process job(elastic({"2", "json"}, "wait"));
  ASSERT_TRUE(job.wait_for_output("waits 1", 2)) << job.err();
  const pid_t server = fork_server_of(job, 2);
  ASSERT_EQ(::kill(server, SIGSTOP), 0);  // it does not answer
  ASSERT_EQ(::kill(job.rank(1, kElasticWorker), SIGKILL), 0);
  ASSERT_TRUE(job.wait_for_output("\"event\":\"lost\"")) << job.err();
  job.signal(SIGINT);
  EXPECT_EQ(job.wait(), 130) << job.err();
  EXPECT_THAT(job.out(), Not(HasSubstr("started_again")));
  EXPECT_TRUE(job.wait_until_all_gone(0s));
}

TEST(ElasticRun, ReplacementsEndWithTheLauncher) {
  Process job(elastic({"2"}, "wait"));
  ASSERT_TRUE(job.wait_for_output("waits 1", 2)) << job.err();
  ASSERT_EQ(::kill(job.rank(1, kElasticWorker), SIGKILL), 0);
  ASSERT_TRUE(job.wait_for_output("waits 2")) << job.err();
  job.signal(SIGKILL);
  EXPECT_TRUE(job.wait_until_all_gone(kGenerous));
}

TEST(ElasticRun, WhoFindsAnErrorOfTheUserIsNotStartedAgain) {
  Process job(elastic({"2", "json"}, "refuses"));
  ASSERT_TRUE(job.wait_for_output("waits 1", 2)) << job.err();
  ASSERT_EQ(::kill(job.rank(1, kElasticWorker), SIGKILL), 0);
  ASSERT_TRUE(job.wait_for_output("\"event\":\"lost\"", 2)) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("ended with exit status 2"));
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), 143);
  EXPECT_EQ(count(job.out(), "started_again"), 1) << job.out();
}

TEST(ElasticRun, OfALostHostNobodyIsStartedAgain) {
  const FakeShell shell(kRunHere);
  Words options = on_two_hosts(shell);
  options.push_back("json");
  Process job(elastic(options, "wait"));
  ASSERT_TRUE(job.wait_for_output("waits 1", 2)) << job.err();
  const pid_t agent = parent_of(job, job.rank(1, kElasticWorker));
  ASSERT_GT(agent, 0);
  ASSERT_EQ(::kill(agent, SIGKILL), 0);
  ASSERT_TRUE(job.wait_for_output("lost with its host")) << job.err();
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), 143);
  EXPECT_THAT(job.out(), Not(HasSubstr("started_again")));
}

TEST(ElasticRun, AHostIsGivenBackWhenItsAgentIsTold) {
  const FakeShell shell(kRunHere);
  Words options = on_two_hosts(shell);
  options.push_back("json");
  Process job(elastic(options, "wait"));
  ASSERT_TRUE(job.wait_for_output("waits 1", 2)) << job.err();
  ASSERT_EQ(::kill(parent_of(job, job.rank(1, kElasticWorker)), SIGTERM), 0);
  ASSERT_TRUE(job.wait_for_output("\"event\":\"left\"")) << job.err();
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), 143);
  EXPECT_THAT(job.err(), HasSubstr("host beta is taken away: its ranks leave the job\n"));
  EXPECT_THAT(job.out(), Not(HasSubstr("started_again")));
  EXPECT_THAT(job.out(), HasSubstr("\"lost\":[]"));
}

/// As soon as it listens.
launch::JobSize ask(const std::string& path, int ranks, const std::string& hosts = "") {
  const Deadline by = Deadline::after(kGenerous);
  for (;;) {
    const auto size = launch::ask_job(path, {.ranks = ranks, .hosts = hosts}, by);
    if (size.ok()) return *size;
    if (by.expired()) return {.refused = size.status().message()};
    ::poll(nullptr, 0, 1);
  }
}

/// Until these ranks train, and no other is there.
void expect_reached(const std::string& path, int ranks) {
  const Deadline by = Deadline::after(kGenerous);
  launch::JobSize size;
  while (!size.is_reached && !by.expired()) {
    size = ask(path, 0);
    ::poll(nullptr, 0, 1);
  }
  EXPECT_TRUE(size.is_reached);
  EXPECT_EQ(size.ranks, ranks);
  EXPECT_EQ(size.processes.size(), static_cast<std::size_t>(ranks));
}

// The ranks of this test do not listen: they die of the signal that asks them to leave.
TEST(ElasticRun, ItsSizeChangesOnRequest) {
  const TemporaryFolder folder = TemporaryFolder::create("elastic-launch").take_or_throw();
  const std::string path = folder.path() / "control";
  Process job(elastic({"2", "json", "control=" + path}, "trains"));
  ASSERT_TRUE(job.wait_for_output("waits 1", 2)) << job.err();
  expect_reached(path, 2);
  const launch::JobSize more = ask(path, 3);
  EXPECT_EQ(more.refused, "");
  EXPECT_EQ((std::pair{more.before, more.ranks}), (std::pair{2, 3}));
  ASSERT_TRUE(job.wait_for_output("waits 2")) << job.err();
  EXPECT_FALSE(ask(path, 0).is_reached) << "it is no member";
  EXPECT_THAT(job.out(), HasSubstr("\"rank\":2,\"stream\":\"stdout\",\"text\":\"waits 2\""));
  EXPECT_EQ(ask(path, 2).ranks, 2);
  ASSERT_TRUE(job.wait_for_output("\"event\":\"left\"")) << job.err();
  expect_reached(path, 2);
  EXPECT_THAT(ask(path, -3).refused, HasSubstr("at least 1"));
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), 143) << job.err();
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_THAT(job.err(), HasSubstr(" is started\n"));
  EXPECT_THAT(job.err(), HasSubstr(" has left; the job goes on without it\n"));
}

TEST(ElasticRun, HostsAreAddedOnRequest) {
  const TemporaryFolder folder = TemporaryFolder::create("elastic-launch").take_or_throw();
  const std::string path = folder.path() / "control";
  const FakeShell shell(kRunHere);
  Words options = on_two_hosts(shell);
  options.insert(options.end(), {"json", "control=" + path});
  Process job(elastic(options, "trains"));
  ASSERT_TRUE(job.wait_for_output("waits 1", 2)) << job.err();
  const std::string refused = ask(path, 0, "alpha:2,localhost:1").refused;
  EXPECT_THAT(refused, HasSubstr("'alpha' is a host of the job"));
  EXPECT_THAT(refused, HasSubstr("'localhost': ranks on the launcher's host"));
  const launch::JobSize more = ask(path, 0, "gamma:2");
  EXPECT_EQ(more.refused, "");
  EXPECT_EQ((std::pair{more.before, more.ranks}), (std::pair{2, 4}));
  ASSERT_TRUE(job.wait_for_output("waits 2", 2)) << job.err();
  for (const int rank : {2, 3}) {
    const pid_t pid = job.rank(rank, kElasticWorker);
    ASSERT_GT(pid, 0);
    EXPECT_THAT(read_proc("/proc/" + std::to_string(pid) + "/environ"),
                ::testing::AllOf(HasSubstr(std::string("STORMO_HOST=gamma\0", 18)),
                                 HasSubstr("STORMO_LOCAL_RANK=" + std::to_string(rank - 2)),
                                 HasSubstr("STORMO_LOCAL_SIZE=2")));
  }
  ASSERT_EQ(::kill(job.rank(3, kElasticWorker), SIGKILL), 0);  // as every other rank
  ASSERT_TRUE(job.wait_for_output("waits 3")) << job.err();
  EXPECT_EQ(ask(path, 2).ranks, 2);
  ASSERT_TRUE(job.wait_for_output("\"event\":\"left\"", 2)) << job.err();
  EXPECT_THAT(ask(path, 0, "gamma:1").refused, HasSubstr("or was one"));
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), 143) << job.err();
  EXPECT_TRUE(job.wait_until_all_gone(kGenerous));
}

TEST(ElasticRun, AJobOfOneHostCannotGetOthers) {
  const TemporaryFolder folder = TemporaryFolder::create("elastic-launch").take_or_throw();
  const std::string path = folder.path() / "control";
  Process job(elastic({"2", "control=" + path}, "trains"));
  ASSERT_TRUE(job.wait_for_output("waits 1", 2)) << job.err();
  EXPECT_THAT(ask(path, 3, "gamma:1").refused, HasSubstr("start it with another host in -H"));
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), 143) << job.err();
}

TEST(ElasticRun, ItsSizeIsThatOfTheStartUntilItTrains) {
  const TemporaryFolder folder = TemporaryFolder::create("elastic-launch").take_or_throw();
  const std::string path = folder.path() / "control";
  Process job(elastic({"2", "control=" + path}, "wait"));
  EXPECT_THAT(ask(path, 1).refused, HasSubstr("does not train yet"));
  ASSERT_TRUE(job.wait_for_output("waits 1", 2)) << job.err();
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), 143) << job.err();
}

}  // namespace
}  // namespace stormo::testing
