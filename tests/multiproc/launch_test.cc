// `stormo run` with real processes: output, failures, signals, secrets, remote shells.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include <stormo/base/temporary_folder.h>

#include "launch_program.h"
#include "process.h"

namespace stormo::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

TEST(Run, AProgramThatKnowsNothingOfStormo) {
  const Outcome o = run_to_end(stormo_run({"-n", "2"}, {"echo", "-n", "hello", "--", "-x"}));
  EXPECT_EQ(o.status, 0) << o.err;
  auto lines = split_lines(o.out);
  std::sort(lines.begin(), lines.end());
  EXPECT_EQ(lines, (Words{"[0] hello -- -x", "[1] hello -- -x"}));
}

TEST(Run, PlacesRanksAndSharesCores) {
  const Outcome o = run_to_end(stormo_run({"-n", "3", "--bind", "none"}, {kWorker, "place"}),
                               {"RANK=7", "SLURM_PROCID=9", "OMPI_COMM_WORLD_RANK=5"});
  EXPECT_EQ(o.status, 0) << o.err;
  for (int r = 0; r < 3; ++r) {
    const std::string n = std::to_string(r);
    EXPECT_THAT(o.out, HasSubstr("[" + n + "] rank " + n + "/3 local " + n + "/3 host 0/1"));
  }
}

TEST(Run, BindsEachRankToCoresOfItsOwn) {
  const long cores = ::sysconf(_SC_NPROCESSORS_ONLN);
  if (cores < 2) GTEST_SKIP() << "machine: one core: nothing to share out";
  const Outcome o = run_to_end(stormo_run({"-n", "2", "--bind", "core"}, {kWorker, "place"}));
  ASSERT_EQ(o.status, 0) << o.err;
  const auto lines = split_lines(o.out);
  ASSERT_EQ(lines.size(), 2u);
  const auto cpus = [](const std::string& line) { return line.substr(line.find("cpus ")); };
  EXPECT_NE(cpus(lines[0]), cpus(lines[1]));
}

TEST(Run, OutputIsDeinterleavedByLines) {
  constexpr int kLines = 2000;
  const Outcome o = run_to_end(stormo_run({"-n", "3"}, {kWorker, "lines", std::to_string(kLines)}));
  ASSERT_EQ(o.status, 0) << o.err;
  std::vector<int> next(3, 0);
  for (const std::string& line : split_lines(o.out)) {
    const int rank = line[1] - '0';
    ASSERT_THAT(line, StartsWith("[" + std::to_string(rank) + "] line " +
                                 std::to_string(next[static_cast<std::size_t>(rank)]++) + " ."));
    ASSERT_TRUE(line.ends_with(". end")) << line;
  }
  EXPECT_EQ(next, (std::vector{kLines, kLines, kLines}));
  EXPECT_EQ(count(o.err, "] error "), 3 * kLines);
}

TEST(Run, MuchOutputToASlowReaderBlocksNobody) {
  constexpr int kBytes = 6 << 20;
  Process job(stormo_run({"-n", "2"}, {kWorker, "flood", std::to_string(kBytes)}));
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(job.out().size(), 2u * kBytes / 1024 * (1024 + 4));
}

TEST(Run, RawPassesRankZeroThrough) {
  const Outcome o = run_to_end(stormo_run({"-n", "2", "--output", "raw"}, {"printf", "a\\rb"}));
  EXPECT_EQ(o.status, 0);
  EXPECT_EQ(o.out, "a\rb");
  EXPECT_THAT(o.err, HasSubstr("[1] b\n"));
}

TEST(Run, ControlBytesOfRanksDoNotReachTheTerminal) {
  const Words evil{"printf", "\\033]0;title\\007 10%%\\r20%%\\r\\n\\033[2Jdone\\n"};
  const Outcome o = run_to_end(stormo_run({"-n", "1"}, evil));
  EXPECT_EQ(o.out, "[0] 20%\n[0] \\x1b[2Jdone\n");
  EXPECT_EQ(run_to_end(stormo_run({"-n", "1", "--output", "raw"}, evil)).out,
            "\x1b]0;title\a 10%\r20%\r\n\x1b[2Jdone\n");
}

TEST(Run, JsonIsOneObjectPerLine) {
  const Outcome o = run_to_end(stormo_run({"-n", "2", "--json"}, {"printf", "x\\377\\n"}));
  EXPECT_EQ(o.status, 0);
  std::vector<std::string> events;
  for (const std::string& line : split_lines(o.out))
    events.push_back(nlohmann::json::parse(line).at("event"));
  EXPECT_EQ(events.front(), "start");
  EXPECT_EQ(events.back(), "end");
  EXPECT_EQ(std::count(events.begin(), events.end(), "output"), 2);
  EXPECT_EQ(std::count(events.begin(), events.end(), "exit"), 2);
}

TEST(Failure, TheFirstEndsAllAndIsNamed) {
  const Outcome o = run_to_end(stormo_run({"-n", "3"}, {kWorker, "exit1", "7"}));
  EXPECT_EQ(o.status, 1);
  EXPECT_THAT(o.err, HasSubstr("stormo: rank 1 (host "));
  EXPECT_THAT(o.err, HasSubstr("ended with exit status 7"));
  EXPECT_LT(o.took, 30s);
}

TEST(Failure, ConfigurationErrorsPassThrough) {
  EXPECT_EQ(run_to_end(stormo_run({"-n", "2"}, {kWorker, "exit1", "2"})).status, 2);
  EXPECT_EQ(run_to_end(stormo_run({"-n", "2"}, {kWorker, "exit1", "75"})).status, 75);
}

TEST(Failure, AKilledRankEndsAll) {
  Process job(stormo_run({"-n", "3"}, {kWorker, "will"}));
  ASSERT_TRUE(job.wait_for_output("joined", 3)) << job.err();
  const pid_t victim = job.rank(1, kWorker);
  ASSERT_GT(victim, 0);
  ASSERT_EQ(::kill(victim, SIGKILL), 0);
  EXPECT_EQ(job.wait(), 1);
  EXPECT_TRUE(job.wait_until_all_gone(0s));
  const std::string first = job.err().substr(job.err().find("stormo: rank"));
  EXPECT_THAT(first.substr(0, first.find('\n')),
              AllOf(StartsWith("stormo: rank 1 (host "),
                    HasSubstr("pid " + std::to_string(victim) + ") killed by signal 9 (SIGKILL)"),
                    HasSubstr("all_reduce #40")));
}

TEST(Failure, RanksThatIgnoreSigtermAreKilled) {
  Process job(stormo_run({"-n", "2"}, {kWorker, "stubborn"}));
  ASSERT_TRUE(job.wait_for_output("ready", 2)) << job.err();
  ASSERT_EQ(::kill(job.rank(0, kWorker), SIGKILL), 0);
  EXPECT_EQ(job.wait(), 1);
  EXPECT_TRUE(job.wait_until_all_gone(0s));
}

TEST(Failure, AReportBeatsTheExitOfAnotherRank) {
  const Outcome o = run_to_end(stormo_run({"-n", "2"}, {kWorker, "report"}));
  EXPECT_EQ(o.status, 1);
  EXPECT_THAT(o.err, HasSubstr("stormo: rank 1 (host "));
  EXPECT_THAT(o.err, HasSubstr("): step 7: loss is not finite"));
}

TEST(Failure, WhatARankSaysForgesNoLineAndIsShort) {
  const Outcome o = run_to_end(stormo_run({"-n", "2"}, {kWorker, "report", "900000"}));
  EXPECT_EQ(o.status, 1);
  EXPECT_THAT(o.err, AllOf(HasSubstr("loss is not finite\n  stormo: all is well\n  [0] so it is\n"),
                           HasSubstr("KiB left out)")));
  EXPECT_LT(o.err.size(), 100'000u);
}

/// A job that was told to ignore signals, as nohup and shells do.
Words ignoring(const std::string& signals, const Words& words) {
  Words argv{"/bin/sh", "-c", "trap '' " + signals + "; exec \"$@\"", "sh"};
  argv.insert(argv.end(), words.begin(), words.end());
  return argv;
}

TEST(UserSignals, ThoseThatWereIgnoredAtTheStartStaySo) {
  const std::vector<int> ignored{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU};
  Process job(ignoring("HUP INT TERM USR1 USR2 XCPU", stormo_run({"-n", "2"}, {kWorker, "wait"})));
  ASSERT_TRUE(job.wait_for_output("ready", 2)) << job.err();
  const pid_t victim = job.rank(1, kWorker);
  for (const pid_t pid : {job.pid(), victim, job.rank(0, kWorker)})
    for (const int signal : ignored) ASSERT_EQ(::kill(pid, signal), 0);
  ASSERT_EQ(::kill(victim, SIGKILL), 0);  // the launcher reads this after what came before
  EXPECT_EQ(job.wait(), 1);
  EXPECT_THAT(job.err(), HasSubstr("stormo: rank 1 (host "));
  EXPECT_THAT(job.err(), HasSubstr("killed by signal 9"));
}

TEST(UserSignals, OthersThanThoseAreHeard) {
  Process job(ignoring("HUP", stormo_run({"-n", "2"}, {kWorker, "interruptible"})));
  ASSERT_TRUE(job.wait_for_output("ready", 2)) << job.err();
  job.signal(SIGHUP);
  job.signal(SIGINT);
  EXPECT_EQ(job.wait(), 130);
  EXPECT_EQ(count(job.out(), "saved"), 2);
}

TEST(UserSignals, AreForwardedAndSetTheExitCode) {
  for (const int signal : {SIGINT, SIGTERM}) {
    Process job(stormo_run({"-n", "2"}, {kWorker, "interruptible"}));
    ASSERT_TRUE(job.wait_for_output("ready", 2)) << job.err();
    job.signal(signal);
    EXPECT_EQ(job.wait(), 128 + signal);
    EXPECT_EQ(count(job.out(), "saved"), 2);
  }
}

TEST(UserSignals, EndProgramsThatDoNotHandleThem) {
  Process job(stormo_run({"-n", "2"}, {kWorker, "wait"}));
  ASSERT_TRUE(job.wait_for_output("ready", 2)) << job.err();
  job.signal(SIGINT);
  EXPECT_EQ(job.wait(), 130);
}

TEST(UserSignals, ASecondOneKills) {
  Process job(stormo_run({"-n", "2"}, {kWorker, "stubborn"}));
  ASSERT_TRUE(job.wait_for_output("ready", 2)) << job.err();
  job.signal(SIGTERM);
  ASSERT_TRUE(job.wait_for_output("ignored", 2));
  job.signal(SIGINT);
  EXPECT_EQ(job.wait(), 143);
  EXPECT_TRUE(job.wait_until_all_gone(0s));
}

TEST(Hosts, TwoLoopbackHostsMeetThroughTcp) {
  const Outcome o = run_to_end(stormo_run({"-H", "localhost:2,127.0.0.1:1"}, {kWorker, "meet"}));
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(count(o.out, "through tcp"), 3) << o.out;
}

TEST(Hosts, ASecretIsSeenNowhere) {
  const Outcome o = run_to_end(stormo_run({"-H", "localhost:1,127.0.0.1:1"}, {kWorker, "secret"}));
  EXPECT_EQ(o.status, 0) << o.out << o.err;
  EXPECT_EQ(count(o.out, "hidden in"), 2);
}

TEST(RemoteShell, StartsRanksThatMeet) {
  const FakeShell shell(kRunHere);
  const Outcome o = run_to_end(stormo_run(shell.options("alpha:2,beta:2"), {kWorker, "meet"}));
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(count(o.out, "met alpha alpha beta beta through tcp"), 4) << o.out;
}

TEST(RemoteShell, TheSecretTravelsOverStandardInput) {
  const FakeShell shell(kRunHere);
  const Outcome o = run_to_end(stormo_run(shell.options("alpha:1,beta:1"), {kWorker, "secret"}));
  EXPECT_EQ(o.status, 0) << o.out << o.err;
}

TEST(RemoteShell, NoiseOfALoginIsShownNotMisread) {
  const FakeShell shell(std::string("echo \"welcome to $1\"\necho careful >&2\n") + kRunHere);
  const Outcome o = run_to_end(stormo_run(shell.options("alpha:1"), {"echo", "done"}));
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.err, AllOf(HasSubstr("[alpha] welcome to alpha"), HasSubstr("[alpha] careful")));
  EXPECT_EQ(o.out, "[0] done\n");
}

TEST(RemoteShell, ControlBytesOfAHostDoNotReachTheTerminal) {
  const FakeShell shell("printf 'welcome\\033[2J\\n'; printf 'careful\\033[2J\\n' >&2; exit 255");
  const Outcome o = run_to_end(stormo_run(shell.options("alpha:1"), {"true"}));
  EXPECT_EQ(o.status, 1);
  EXPECT_THAT(o.err, AllOf(HasSubstr("[alpha] welcome\\x1b[2J"),
                           HasSubstr("exit status 255: careful\\x1b[2J"), Not(HasSubstr("\x1b"))));
}

TEST(RemoteShell, AHostThatCannotBeReachedIsNamed) {
  const FakeShell shell(
      std::string("if [ $1 = alpha ]; then echo no route to alpha >&2; exit 255; fi\n") + kRunHere);
  const Outcome o = run_to_end(stormo_run(shell.options("alpha:1,beta:1"), {kWorker, "wait"}));
  EXPECT_EQ(o.status, 1);
  EXPECT_THAT(o.err, HasSubstr("stormo: host alpha lost: the remote shell ended with exit status "
                               "255: no route to alpha"));
}

TEST(RemoteShell, AProgramThatIsNotThereIsNamedWithItsHost) {
  const FakeShell shell(kRunHere);
  const Outcome o = run_to_end(stormo_run(shell.options("alpha:1"), {"/no/such/program"}));
  EXPECT_EQ(o.status, 1);
  EXPECT_THAT(o.err, HasSubstr("host alpha lost: program '/no/such/program' does not exist"));
}

TEST(RemoteShell, SignalsAndExitsCrossIt) {
  const FakeShell shell(kRunHere);
  Process job(stormo_run(shell.options("alpha:1,beta:1"), {kWorker, "interruptible"}));
  ASSERT_TRUE(job.wait_for_output("ready", 2)) << job.err();
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), 143);
  EXPECT_EQ(count(job.out(), "saved"), 2);
}

TEST(RemoteShell, ItsDeathEndsTheJob) {
  const FakeShell shell(kRunHere);
  Process job(stormo_run(shell.options("alpha:1,beta:1"), {kWorker, "wait"}));
  ASSERT_TRUE(job.wait_for_output("ready", 2)) << job.err();
  const auto relatives = job.relatives();
  const auto agent = std::find_if(relatives.begin(), relatives.end(), [&](const auto& r) {
    return r.parent == job.pid() && r.command.ends_with("agent ");
  });
  ASSERT_NE(agent, relatives.end());
  ASSERT_EQ(::kill(agent->pid, SIGKILL), 0);
  EXPECT_EQ(job.wait(), 1);
  EXPECT_TRUE(job.wait_until_all_gone(kGenerous));
  EXPECT_THAT(job.err(), HasSubstr("lost: the remote shell was killed by signal 9"));
}

struct BadInput {
  Words options;
  Words program;
  const char* says;
};

TEST(BadInput, IsRefusedBeforeAnythingStarts) {
  const std::vector<BadInput> inputs{
      {{"-n", "0"}, {"hostname"}, "-n 0: the number of ranks must be 1 to 4096"},
      {{"-n", "-3"}, {"hostname"}, "-n -3"},
      {{"-n", "100000"}, {"hostname"}, "more than 4096 ranks are refused"},
      {{"-n", "two"}, {"hostname"}, "two"},
      {{}, {"hostname"}, "say how many ranks"},
      {{"-n", "2"}, {}, "no program to run"},
      {{"-n", "2"}, {"no-such-program"}, "'no-such-program' is in no folder of PATH"},
      {{"-n", "2"}, {"/etc/passwd"}, "not an executable file"},
      {{"-n", "3", "-H", "localhost:2"}, {"hostname"}, "2 slots of -H"},
      {{"-H", "a:x,b:0"}, {"hostname"}, "'b:0'"},
      {{"-H", "a:1", "--remote-shell", "ssh"}, {"hostname"}, "where the host goes"},
      {{"-n", "2", "--bind", "moon"}, {"hostname"}, "'moon'"},
      {{"-n", "2", "--ports", "9-1"}, {"hostname"}, "not a range of ports"},
      {{"-n", "2", "--heartbeat", "soon"}, {"hostname"}, "not a duration"},
      {{"-n", "2", "--interface", "nope0"}, {"hostname"}, "no network interface 'nope0'"},
      {{"-n", "2", "--hots", "a"}, {"hostname"}, "did you mean '--hosts'"},
  };
  for (const BadInput& bad : inputs) {
    const Outcome o = run_to_end(stormo_run(bad.options, bad.program));
    EXPECT_EQ(o.status, 2) << bad.says << o.err;
    EXPECT_THAT(o.err, HasSubstr(bad.says));
    EXPECT_THAT(o.out, IsEmpty());
  }
}

TEST(BadInput, AllProblemsAreListedAtOnce) {
  const Outcome o = run_to_end(stormo_run({"-n", "0", "-H", "a:x"}, {"no-such-program"}));
  EXPECT_EQ(o.status, 2);
  EXPECT_THAT(o.err, HasSubstr("'a:x'"));
  EXPECT_THAT(o.err, HasSubstr("no-such-program"));
}

TEST(Program, UnknownCommandsSuggestTheNearest) {
  const Outcome o = run_to_end({kStormo, "docter"});
  EXPECT_EQ(o.status, 2);
  EXPECT_THAT(o.err, HasSubstr("did you mean 'doctor'?"));
}

TEST(Program, ABuildWithoutLibtorchSaysThatItCannotTrain) {
  const std::string version = run_to_end({kStormo, "--version"}).out;
  const bool trains = version.find("libtorch   none") == std::string::npos;
  const Outcome o = run_to_end({kStormo, "train", "no-such-recipe.toml", "-n", "2"});
  EXPECT_EQ(o.status, 2);
  EXPECT_THAT(o.err, HasSubstr(trains ? "no-such-recipe.toml" : "built without libtorch"));
}

TEST(Program, TuneWritesASelectionThatOtherCommandsTake) {
  const std::string path =
      ::testing::TempDir() + "stormo-test-" + std::to_string(::getpid()) + ".selection";
  const Words quick{"--time", "300ms", "--max-bytes", "64KiB", "--out", path};
  Words argv{kStormo, "tune", "-n", "2"};
  argv.insert(argv.end(), quick.begin(), quick.end());
  const Outcome o = run_to_end(argv);
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.out, HasSubstr("all_to_all"));
  const Outcome used = run_to_end({kStormo, "bench", "all_reduce", "-n", "2", "--bytes", "8,64K",
                                   "--time", "10ms", "--selection", path});
  EXPECT_EQ(used.status, 0) << used.err;
  EXPECT_EQ(::unlink(path.c_str()), 0);
  const Outcome bad = run_to_end({kStormo, "tune", "--time", "x", "--out", "/no/such/folder/f",
                                  "--selection", path, "-n", "2"});
  EXPECT_EQ(bad.status, 2);
  for (const char* wrong : {"--time", "--out /no/such/folder/f", "cannot read the selection"}) {
    EXPECT_THAT(bad.err, HasSubstr(wrong));
  }
}

TEST(Program, VersionNamesTheBuild) {
  const Outcome o = run_to_end({kStormo, "--version"});
  EXPECT_EQ(o.status, 0);
  for (const char* fact :
       {"stormo 0.", "protocol", "git", "compiler", "build", "libtorch", "OpenSSL"})
    EXPECT_THAT(o.out, HasSubstr(fact));
}

TEST(Program, HelpStartsWithExamples) {
  const Outcome o = run_to_end({kStormo, "run", "--help"});
  EXPECT_EQ(o.status, 0);
  EXPECT_THAT(o.out, StartsWith("  stormo run -n 2 --"));
  EXPECT_THAT(o.out, HasSubstr("--remote-shell"));
}

TEST(Program, CompletionKnowsCommandsAndOptions) {
  const Outcome o = run_to_end(
      {"/bin/bash", "-c",
       "source <(\"$0\" completion bash); COMP_WORDS=(stormo run --rem); COMP_CWORD=2; _stormo; "
       "echo ${COMPREPLY[*]}; COMP_WORDS=(stormo doc); COMP_CWORD=1; _stormo; echo ${COMPREPLY[*]}",
       kStormo});
  EXPECT_EQ(o.out, "--remote-shell\ndoctor\n") << o.err;
}

TEST(Program, DoctorKnowsThisHost) {
  const Outcome o = run_to_end({kStormo, "doctor", "--json"});
  EXPECT_EQ(o.status, 0) << o.err;
  const auto facts = nlohmann::json::parse(o.out);
  EXPECT_GE(facts.at("usable_cores").get<int>(), 1);
  EXPECT_TRUE(facts.at("memfd").get<bool>());
  EXPECT_TRUE(facts.at("findings").is_array());
  EXPECT_EQ(run_to_end({kStormo, "doctor"}).status, 0);
}

}  // namespace
}  // namespace stormo::testing
