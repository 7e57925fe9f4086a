// What a program does whose standard output is full, closed or not read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include <stormo/base/clock.h>

#include "launch_program.h"
#include "process.h"

namespace stormo::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

/// `words` with their output given to the rest of a shell command line.
Outcome with_output(const std::string& rest, const Words& words) {
  Words all{"/bin/bash", "-c", "\"$@\" " + rest, "bash"};
  all.insert(all.end(), words.begin(), words.end());
  return run_to_end(all);
}

TEST(FullDisk, EveryCommandSaysSoAndFails) {
  const std::string file = ::testing::TempDir() + "stormo-test-" + std::to_string(::getpid());
  const std::vector<Words> commands{
      {"--version"},
      {"--help"},
      {"run", "--help"},
      {"completion", "bash"},
      {"doctor"},
      {"doctor", "--json"},
      {"plan", "list"},
      {"plan", "show", "ring_all_reduce", "--ranks", "4"},
      {"run", "-n", "2", "--", "echo", "hello"},
      {"run", "-n", "2", "--json", "--", "true"},
      {"run", "-n", "2", "--output", "raw", "--", "echo", "hello"},
      {"bench", "all_reduce", "-n", "2", "--bytes", "8", "--time", "10ms"},
      {"tune", "-n", "2", "--time", "100ms", "--max-bytes", "1KiB", "--out", file},
  };
  for (Words words : commands) {
    std::string name;
    for (const std::string& word : words) name += " " + word;
    words.insert(words.begin(), kStormo);
    const Outcome o = with_output("> /dev/full", words);
    EXPECT_EQ(o.status, 1) << name << ": " << o.err;
    EXPECT_THAT(o.err, HasSubstr("standard output: No space left on device")) << name;
    EXPECT_EQ(with_output("> /dev/null", words).status, 0) << name;
  }
  ::unlink(file.c_str());
}

TEST(FullDisk, UnderStandardErrorIsNoCrash) {
  for (const Words& words :
       {Words{kStormo, "plan", "show", "nonsense"}, Words{kStormo, "nonsense"},
        stormo_run({"-n", "2"}, {"false"}), stormo_run({"-n", "2"}, {"sh", "-c", "echo x >&2"})}) {
    const Outcome o = with_output("2> /dev/full", words);
    EXPECT_THAT(o.status, ::testing::AnyOf(1, 2)) << words[1];
  }
}

TEST(FullDisk, IsSaidOnceAndTheJobGoesOn) {
  const Outcome o =
      with_output("> /dev/full", stormo_run({"-n", "2"}, {kWorker, "flood", "300000"}));
  EXPECT_EQ(o.status, 1);
  EXPECT_EQ(count(o.err, "No space left on device"), 1) << o.err;
  EXPECT_EQ(count(o.err, "flooded"), 2) << o.err;
}

TEST(FullDisk, ALimitOfFileSizesIsNoDeath) {
  const std::string file = ::testing::TempDir() + "stormo-test-" + std::to_string(::getpid());
  const Words words = stormo_run({"-n", "2"}, {kWorker, "flood", "300000"});
  const Outcome o = with_output(
      "> " + file, {"/bin/bash", "-c", "ulimit -f 8; exec \"$@\"", "bash", words[0], words[1],
                    words[2], words[3], words[4], words[5], words[6], words[7]});
  EXPECT_EQ(o.status, 1);
  EXPECT_THAT(o.err, HasSubstr("standard output: File too large"));
  EXPECT_EQ(count(o.err, "flooded"), 2) << o.err;
  EXPECT_EQ(::unlink(file.c_str()), 0);
}

TEST(ClosedReader, TheJobGoesOnAndTheExitCodeTells) {
  for (const char* mode : {"prefix", "raw"}) {
    const Outcome o =
        with_output("| head -1; exit ${PIPESTATUS[0]}",
                    stormo_run({"-n", "2", "--output", mode}, {kWorker, "flood", "300000"}));
    EXPECT_EQ(o.status, 1) << mode;
    EXPECT_EQ(split_lines(o.out).size(), 1u);
    EXPECT_EQ(count(o.err, "standard output: its reader has gone"), 1) << o.err;
    EXPECT_EQ(count(o.err, "flooded"), 2) << o.err;
  }
}

TEST(ClosedReader, EndsWhatOnlyPrintsAsItDoesOtherPrograms) {
  const char* script =
      "f=$(mktemp -u); mkfifo $f; exec 3<>$f 4>$f 3<&-; rm $f; \"$@\" >&4; exit $?";
  const Outcome o = run_to_end({"/bin/bash", "-c", script, "bash", kStormo, "plan", "list"});
  EXPECT_EQ(o.status, 128 + SIGPIPE);
  EXPECT_EQ(o.err, "");
}

TEST(StoppedReader, ASignalStillEndsTheJob) {
  for (const auto& [mode, ranks] : {std::pair("prefix", 2), std::pair("raw", 1)}) {
    Process job(stormo_run({"-n", std::to_string(ranks), "--output", mode}, {kWorker, "chatter"}));
    ASSERT_TRUE(job.wait_until_full()) << mode;
    job.signal(SIGTERM);
    EXPECT_EQ(job.wait_unread(8s), 143) << mode;
    EXPECT_EQ(count(job.err(), "saved"), ranks) << job.err();
    EXPECT_THAT(job.err(), HasSubstr("standard output: its reader does not read"));
    EXPECT_TRUE(job.wait_until_all_gone(0s));
  }
}

/// The lines of chatter that each rank says it has written, and those that came, in order; what is
/// no line of a rank, or was cut, is listed in `wrong`.
struct Chatter {
  std::map<int, int> said, came;
  std::string wrong;
};

void note(Chatter& seen, int rank, const std::string& text) {
  int number = 0;
  if (std::sscanf(text.c_str(), "saved after %d lines", &number) == 1) {
    seen.said[rank] = number;
  } else if (std::sscanf(text.c_str(), "line %d", &number) == 1) {
    const bool is_whole = text.ends_with(" " + std::string(90, 'x'));
    if (!is_whole || number != seen.came[rank]++) seen.wrong += text + "\n";
  }
}

Chatter chatter_in(const Process& job, bool is_json) {
  Chatter seen;
  if (!job.out().ends_with('\n')) seen.wrong = "the last line was cut\n";
  for (const std::string& line : split_lines(job.out())) {
    if (!is_json) {
      note(seen, 0, line);
      continue;
    }
    const auto record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!record.is_object()) {
      seen.wrong += line + "\n";
    } else if (record.value("event", "") == "output") {
      note(seen, record["rank"], record["text"]);
    }
  }
  for (const std::string& line : split_lines(job.err())) note(seen, 0, line);
  return seen;
}

/// Of a job whose ranks could not write any more for want of a reader, when it was interrupted.
void read_late(const Words& options, bool is_json, int ranks) {
  Process job(stormo_run(options, {kWorker, "chatter"}));
  ASSERT_TRUE(job.wait_until_full());
  const pid_t rank = job.rank(0, kWorker);
  constexpr int kStays = 100;  // full: nobody reads it any more
  for (int i = 0; i < kStays; ++i) {
    ASSERT_TRUE(job.wait_until_full(rank));
    ::poll(nullptr, 0, 1);
  }
  job.signal(SIGTERM);
  while (::kill(rank, 0) == 0) {  // it writes on meanwhile
    job.read_a_page();
    ::poll(nullptr, 0, 1);
  }
  EXPECT_EQ(job.wait(), 143) << job.err();
  const Chatter seen = chatter_in(job, is_json);
  EXPECT_EQ(seen.wrong, "");
  EXPECT_EQ(seen.said.size(), static_cast<std::size_t>(ranks));
  EXPECT_EQ(seen.came, seen.said);
}

TEST(LateReader, GetsAllThatRanksHadWritten) {
  read_late({"-n", "2", "--json"}, /*is_json=*/true, 2);
  read_late({"-n", "1", "--output", "raw"}, /*is_json=*/false, 1);
}

TEST(LateReader, GetsThatOfOtherHostsToo) {
  const FakeShell shell(kRunHere);
  Words options = shell.options("alpha:1,beta:1");
  options.emplace_back("--json");
  read_late(options, /*is_json=*/true, 2);
}

TEST(StoppedReader, GetsNoLineThatIsCut) {
  for (const bool is_json : {false, true}) {
    const Words one = is_json ? Words{"-n", "1", "--json"} : Words{"-n", "1", "--output", "raw"};
    Process job(stormo_run(one, {kWorker, "chatter"}));
    ASSERT_TRUE(job.wait_until_full());
    job.signal(SIGTERM);
    EXPECT_EQ(job.wait_unread(8s), 143);
    const Chatter seen = chatter_in(job, is_json);
    EXPECT_EQ(seen.wrong, "");
    EXPECT_GT(seen.came.at(0), 0);
  }
}

TEST(StoppedReader, ASignalEndsTheWaitForItAfterTheRanks) {
  Process job(stormo_run({"-n", "1"}, {kWorker, "flood", "300000"}));
  ASSERT_TRUE(job.wait_until_full());
  const auto ranks_are_gone = [&] {
    for (const auto& r : job.relatives())
      if (r.command.find("flood") != std::string::npos && r.pid != job.pid()) return false;
    return true;
  };
  const Deadline by = Deadline::after(kGenerous);
  while (!ranks_are_gone()) ASSERT_FALSE(by.expired());
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait_unread(8s), 1);
  EXPECT_THAT(job.err(), HasSubstr("its reader does not read"));
}

}  // namespace
}  // namespace stormo::testing
