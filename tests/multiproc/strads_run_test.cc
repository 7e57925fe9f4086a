// `stormo strads`: ranks as processes, beside the same run in virtual time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include <stormo/base/temporary_folder.h>
#include <stormo/launch/process/available_memory.h>
#include <stormo/strads/npy_values.h>

#include "launch_program.h"
#include "process.h"
#include "tests/sanitized.h"

namespace stormo::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const Words kSmall{"--rows", "200", "--columns", "300", "--nonzeros", "20", "--group", "10"};

Words strads(const char* program, const Words& more) {
  Words argv{kStormo, "strads", program};
  argv.insert(argv.end(), more.begin(), more.end());
  return argv;
}

Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

void write(const std::string& path, const std::vector<std::int64_t>& shape,
           const std::vector<double>& values) {
  throw_if_error(strads::write_npy(path, shape, values));
}

/// Two ranks that torchrun has started on one host, which call it alpha and beta.
struct TorchrunJob {
  TorchrunJob(const Words& alpha, const Words& beta, const Words& variables = {})
      : zero(alpha, place(0, "alpha") + variables), one(beta, place(1, "beta") + variables) {}
  Words place(int rank, const std::string& host) const {
    const std::string r = std::to_string(rank), id = "strads-" + std::to_string(::getpid());
    return {"RANK=" + r,
            "LOCAL_RANK=" + r,
            "WORLD_SIZE=2",
            "MASTER_PORT=1",
            "LOCAL_WORLD_SIZE=2",
            "MASTER_ADDR=127.0.0.1",
            "TORCHELASTIC_RUN_ID=" + id,
            "STORMO_HOST=" + host};
  }
  Process zero, one;
};

/// The last line, which says how it ended.
nlohmann::json end_of(const Words& argv) {
  const Outcome o = run_to_end(argv + Words{"--json"});
  EXPECT_EQ(o.status, 0) << o.err;
  const auto lines = split_lines(o.out);
  return lines.empty() ? nlohmann::json() : nlohmann::json::parse(lines.back());
}

void expect_same(const nlohmann::json& a, const nlohmann::json& b) {
  for (const char* key : {"order", "values", "updates", "rounds", "objective", "end", "workers"}) {
    EXPECT_EQ(a.at(key), b.at(key)) << key;
  }
}

TEST(StradsRun, RanksAndVirtualTimeGiveTheSameOrderAndValues) {
  const Words numbers = kSanitized ? Words{"3"} : Words{"1", "2", "3"};
  for (const std::string& ranks : numbers) {
    for (const Words& how : {Words{}, Words{"--depth", "2"}, Words{"--no-priority"},
                             Words{"--no-check", "--round", "2"}, Words{"--cyclic"},
                             Words{"--seed", "5", "--threshold", "0.3"}}) {
      const Words flags = kSmall + how + Words{"--rounds", "400", "--every", "100"};
      expect_same(end_of(strads("lasso", flags + Words{"-n", ranks})),
                  end_of(strads("lasso", flags + Words{"--virtual", ranks, "--latency", "1ms"})));
    }
    expect_same(end_of(strads("factorise", {"-n", ranks})),
                end_of(strads("factorise", {"--virtual", ranks})));
  }
}

TEST(StradsRun, HostsGiveTheValuesOfOneHost) {
  const FakeShell shell(kRunHere);
  for (const Words& how : {Words{}, Words{"--depth", "2"}}) {
    const Words flags = kSmall + how + Words{"--rounds", "300"};
    expect_same(end_of(strads("lasso", flags + shell.options("alpha:2,beta:1"))),
                end_of(strads("lasso", flags + Words{"--virtual", "3"})));
  }
}

TEST(StradsRun, WorkersThatNeedNoTimeHaveNotWaited) {
  const Words words{"--virtual", "2", "--compute", "0us", "--latency", "0us", "--rounds", "10"};
  EXPECT_EQ(end_of(strads("lasso", kSmall + words)).at("waited"), 0);
}

TEST(StradsRun, OneOfTheMostVirtualWorkersMayBeSlow) {
  const Words words{"--virtual", "1024", "--rows", "1024", "--columns", "20", "--rounds", "2"};
  const auto alike = end_of(strads("lasso", words));
  const auto slow = end_of(strads("lasso", words + Words{"--stragglers", "1:1000x"}));
  EXPECT_GT(slow.at("virtual_s").get<double>(), 2 * alike.at("virtual_s").get<double>());
}

TEST(StradsRun, OptionsWithoutEffectAreRefused) {
  using Both = std::pair<Words, Words>;
  for (const auto& [one, other] :
       {Both{{"--cyclic"}, {"--round", "4"}}, Both{{"--cyclic"}, {"--threshold", "0.2"}},
        Both{{"--cyclic"}, {"--base-weight", "1"}}, Both{{"--cyclic"}, {"--no-priority"}},
        Both{{"--cyclic"}, {"--no-check"}}, Both{{"--no-priority"}, {"--base-weight", "1"}},
        Both{{"--no-check"}, {"--threshold", "0.2"}}}) {
    const Outcome o = run_to_end(strads("lasso", kSmall + one + other));
    EXPECT_EQ(o.status, 2) << o.out << o.err;
    EXPECT_THAT(o.err, AllOf(HasSubstr(one[0]), HasSubstr(other[0])));
  }
}

TEST(StradsRun, ADryRunPrintsThePlanAndStartsNothing) {
  for (const Words& where : {Words{"-n", "3"}, Words{"--virtual", "3"}}) {
    const Outcome o = run_to_end(
        strads("lasso", kSmall + where + Words{"--depth", "2", "--every", "70", "--dry-run"}));
    EXPECT_EQ(o.status, 0) << o.err;
    EXPECT_THAT(o.out, AllOf(StartsWith("step_plan v2 one_device+mirrored+choose\nmesh dp=3\n"),
                             HasSubstr(" b elements=300 "), HasSubstr(": choose\n"),
                             HasSubstr(": update 0-0 delay 2 "), HasSubstr(": agree every 70\n")));
  }
  const Outcome wrong = run_to_end(strads("factorise", {"--rank", "0", "--dry-run"}));
  EXPECT_EQ(wrong.status, 2);
  EXPECT_EQ(wrong.out, "");
}

TEST(StradsRun, SeedsDiffer) {
  const auto one = end_of(strads("lasso", kSmall + Words{"--rounds", "50"}));
  const auto two = end_of(strads("lasso", kSmall + Words{"--rounds", "50", "--seed", "2"}));
  EXPECT_NE(one.at("order"), two.at("order"));
}

TEST(StradsRun, ConvergesAndWritesTheCoefficients) {
  const TemporaryFolder folder = TemporaryFolder::create("strads-run").take_or_throw();
  const auto path = [&](const char* name) { return (folder.path() / name).string(); };
  // columns that do not overlap: each coefficient is known
  const std::vector<double> x{1, 0, 0, 0, 2, 0, 0, 0, 0.5, 0, 0, 0}, y{3, -1, 0.1, 9};
  throw_if_error(strads::write_npy(path("x.npy"), std::vector<std::int64_t>{4, 3}, x));
  throw_if_error(strads::write_npy(path("y.npy"), std::vector<std::int64_t>{4}, y));
  const auto end = end_of(
      strads("lasso", {"--x", path("x.npy"), "--y", path("y.npy"), "--lambda", "0.1", "--rounds",
                       "2000", "--tolerance", "1e-12", "-n", "2", "--out", path("b.npy")}));
  EXPECT_EQ(end.at("end"), "converged");
  const auto b = strads::read_npy(path("b.npy")).take_or_throw();
  // lambda is 0.1 of |x_0 . y| = 3
  EXPECT_EQ(b.shape, (std::vector<std::int64_t>{3}));
  EXPECT_NEAR(b.values[0], 3 - 0.3, 1e-12);
  EXPECT_NEAR(b.values[1], -(2 - 0.3) / 4, 1e-12);
  EXPECT_EQ(b.values[2], 0);
}

TEST(StradsRun, FactorsMultiplyToTheRatings) {
  const TemporaryFolder folder = TemporaryFolder::create("strads-run").take_or_throw();
  const auto path = [&](const char* name) { return (folder.path() / name).string(); };
  std::vector<double> ratings;  // of the matrix (i + 1)(j + 1), without a few
  for (int i = 0; i < 6; ++i) {
    for (int j = 0; j < 5; ++j) {
      if ((i + 2 * j) % 5 == 0) continue;
      for (const int number : {i, j, (i + 1) * (j + 1)}) ratings.push_back(number);
    }
  }
  const std::vector<std::int64_t> shape{std::ssize(ratings) / 3, 3};
  throw_if_error(strads::write_npy(path("ratings.npy"), shape, ratings));
  (void)end_of(strads("factorise", {"--ratings", path("ratings.npy"), "--rank", "1", "--lambda",
                                    "1e-9", "--passes", "300", "-n", "3", "--out", path("new/")}));
  const auto w = strads::read_npy(path("new/W.npy")).take_or_throw();
  const auto h = strads::read_npy(path("new/H.npy")).take_or_throw();
  ASSERT_EQ(w.shape, (std::vector<std::int64_t>{6, 1}));
  ASSERT_EQ(h.shape, (std::vector<std::int64_t>{5, 1}));
  for (std::size_t i = 0; i < 6; ++i) {
    for (std::size_t j = 0; j < 5; ++j) {
      EXPECT_NEAR(w.values[i] * h.values[j], static_cast<double>((i + 1) * (j + 1)), 1e-5);
    }
  }
}

TEST(StradsRun, UpdatesThatDivergeEndWithAFailureAndWriteNothing) {
  const TemporaryFolder folder = TemporaryFolder::create("strads-run").take_or_throw();
  const std::string out = folder.path() / "b.npy";
  write(out, {1}, {7});  // of a run before
  const Words naive{"--rows",     "400",           "--columns", "200",
                    "--no-check", "--no-priority", "--out",     out};
  for (const Words& where : {Words{}, Words{"--virtual", "2"}, Words{"-n", "2"}}) {
    const Outcome o = run_to_end(strads("lasso", naive + where));
    EXPECT_EQ(o.status, 1) << o.err;
    EXPECT_THAT(o.out, HasSubstr("\ndiverged: "));
    EXPECT_EQ(strads::read_npy(out).take_or_throw().values, std::vector<double>{7});
  }
}

TEST(StradsRun, RanksWithOtherDataOrOptionsAreRefusedByName) {
  const TemporaryFolder folder = TemporaryFolder::create("strads-run").take_or_throw();
  const auto path = [&](const char* name) { return (folder.path() / name).string(); };
  write(path("x.npy"), {4, 2}, {1, 2, 3, 4, 5, 6, 7, 9});
  write(path("x2.npy"), {4, 2}, {1, 2, 3, 4, 5, 6, 9, 7});
  write(path("y.npy"), {4}, {1, 2, 3, 4});
  write(path("y2.npy"), {4}, {1, 2, 3, 5});
  write(path("r.npy"), {3, 3}, {0, 0, 1, 1, 1, 2, 2, 0, 1});
  write(path("r2.npy"), {3, 3}, {0, 0, 1, 1, 0, 2, 2, 1, 1});
  write(path("bad.npy"), {1, 3}, {0, 0.5, 1});
  const auto refused = [&](const Words& alpha, const Words& beta, const std::string& says) {
    TorchrunJob job(alpha, beta);
    EXPECT_EQ(job.zero.wait(), 2) << says;
    EXPECT_EQ(job.one.wait(), 2) << says;
    EXPECT_THAT(job.zero.err(), HasSubstr(says));
    EXPECT_EQ(job.zero.out() + job.one.out() + job.one.err(), "") << "once on a host";
    EXPECT_FALSE(std::filesystem::exists(path("b.npy")));
  };
  const auto lasso = [&](const char* x, const char* y) {
    return strads("lasso", {"--x", path(x), "--y", path(y), "--out", path("b.npy")});
  };
  const auto factorise = [&](const char* r) { return strads("factorise", {"--ratings", path(r)}); };
  refused(lasso("x.npy", "y.npy"), lasso("x.npy", "y2.npy"),
          "the ranks disagree, so nothing was started; give all of them the same");
  refused(lasso("x.npy", "y.npy"), lasso("x.npy", "y2.npy"), "  1     beta  y      hash ");
  refused(lasso("x2.npy", "y.npy"), lasso("x.npy", "y.npy"),
          "  1     beta  X      4 rows and 2 columns, hash ");
  refused(factorise("r.npy"), factorise("r2.npy"), "  1     beta  ratings  3 of ");
  refused(factorise("r.npy"), factorise("bad.npy"), "rank 1 (host beta): --ratings: line 0 of ");
  refused(strads("lasso", {"--depth", "3", "--seed", "9"}), strads("lasso", {}),
          "  rank  host  field    has  rank 0 has\n"
          "  1     beta  --depth  0    3\n"
          "  1     beta  --seed   1    9\n");
  refused(strads("lasso", {}), strads("factorise", {}), "  1     beta  program  ");
}

TEST(StradsRun, StallFlagsCountUnderAForeignLauncher) {
  const Words argv =
      strads("lasso", kSmall + Words{"--stall-warning", "200ms", "--rounds", "100000000",
                                     "--tolerance", "1e-300", "--json", "--every", "50"});
  TorchrunJob job(argv, argv, {"STORMO_HEARTBEAT=0s"});  // a stopped rank is not judged dead
  ASSERT_TRUE(job.zero.wait_for_output("\"rounds\":100,")) << job.zero.err();
  job.one.signal(SIGSTOP);
  const auto by = std::chrono::steady_clock::now() + 8s;  // the default is 10s
  while (job.zero.err().find("warning: rank 1") == std::string::npos &&
         std::chrono::steady_clock::now() < by) {
    (void)job.zero.wait(100ms);
  }
  EXPECT_THAT(job.zero.err(), HasSubstr("warning: rank 1 (host beta"));
}

TEST(StradsRun, WhenRankZeroCannotWriteTheOthersSayItsCause) {
  const TemporaryFolder folder = TemporaryFolder::create("strads-run").take_or_throw();
  const std::filesystem::path out = folder.path() / "out";
  std::filesystem::create_directory(out);
  const Words argv =
      strads("lasso", kSmall + Words{"--rounds", "1000", "--every", "20", "--json", "--tolerance",
                                     "1e-300", "--out", out / "b.npy"});
  TorchrunJob job(argv, argv);
  ASSERT_TRUE(job.zero.wait_for_output("\"rounds\":0,")) << job.zero.err();
  std::filesystem::remove(out);
  EXPECT_EQ(job.zero.wait(), 1);
  EXPECT_EQ(job.one.wait(), 1);
  for (const Process* rank : {&job.zero, &job.one}) {
    EXPECT_THAT(rank->err(), HasSubstr("cannot write '" + (out / "b.npy").string() + "'"));
  }
}

TEST(StradsRun, MemoryIsThatOfARankTimesTheRanksOfAHost) {
  const double elements = 0.75 * static_cast<double>(launch::available_memory()) / 48;
  const std::string columns = std::to_string(static_cast<std::int64_t>(elements / 1000));
  const Words argv = strads("lasso", {"--columns", columns});
  const FakeShell shell(kRunHere);
  // the launcher knows nothing of host alpha, whose ranks find out
  for (const Words& where : {Words{"-n", "2"}, shell.options("alpha:2")}) {
    const Outcome o = run_to_end(argv + where);
    EXPECT_EQ(o.status, 2) << o.out << o.err;
    EXPECT_EQ(count(o.err, " GB of memory are available"), 1) << o.err;
  }
}

TEST(StradsRun, JudgesWhenEachColumnHasHadAnUpdateOnAverage) {
  const auto judged = [](const Words& how) {
    std::vector<nlohmann::json> all;
    const Outcome o = run_to_end(
        strads("lasso", how + Words{"--columns", "200", "--tolerance", "1e-300", "--json"}));
    for (const std::string& line : split_lines(o.out)) all.push_back(nlohmann::json::parse(line));
    return all;
  };
  // at most 4 columns of 4 groups fit into a round
  const auto lines = judged({"--rounds", "500"});
  ASSERT_GT(lines.size(), 3u);
  for (std::size_t i = 1; i + 2 < lines.size(); ++i) {
    const std::int64_t updates =
        lines[i].at("updates").get<std::int64_t>() - lines[i - 1].at("updates").get<std::int64_t>();
    EXPECT_GE(updates, 200);
    EXPECT_LT(updates, 220);
  }
  // with rounds in flight judgements, for which those are drained, are not so near to each other
  const auto deep = judged({"--rounds", "1000", "--depth", "9"});
  ASSERT_GT(deep.size(), 3u);
  EXPECT_GE(deep[1].at("rounds").get<std::int64_t>(), 200);
}

TEST(StradsRun, AKilledRankEndsTheJobWithItsCause) {
  for (const char* depth : {"0", "3"}) {
    Process job(strads("lasso", {"-n", "2", "--rounds", "1000000000", "--tolerance", "1e-300",
                                 "--json", "--depth", depth, "--every", "50", "--rows", "300"}));
    ASSERT_TRUE(job.wait_for_output("\"rounds\":100,")) << job.err();
    const pid_t victim = job.rank(1, kStormo);
    ASSERT_GT(victim, 0);
    ASSERT_EQ(::kill(victim, SIGKILL), 0);
    EXPECT_EQ(job.wait(), 1);
    EXPECT_TRUE(job.wait_until_all_gone(kGenerous));
    const std::string first = job.err().substr(job.err().find("stormo: rank"));
    EXPECT_THAT(
        first.substr(0, first.find('\n')),
        AllOf(StartsWith("stormo: rank 1 (host "), HasSubstr("killed by signal 9 (SIGKILL)")));
  }
}

TEST(StradsRun, WhatIsWrongIsSaidTogetherBeforeAnythingRuns) {
  struct Case {
    const char* program;
    Words flags;
    std::vector<std::string> says;
  };
  const TemporaryFolder folder = TemporaryFolder::create("strads-run").take_or_throw();
  const auto path = [&](const char* name) { return (folder.path() / name).string(); };
  const std::vector<double> six{1, 2, 3, 4, 5, 6};
  throw_if_error(strads::write_npy(path("x.npy"), std::vector<std::int64_t>{3, 2}, six));
  throw_if_error(strads::write_npy(path("y.npy"), std::vector<std::int64_t>{6}, six));
  const std::vector<double> fraction{0, 0.5, 1};
  throw_if_error(strads::write_npy(path("r.npy"), std::vector<std::int64_t>{1, 3}, fraction));
  write(path("far.npy"), {1, 3}, {0, 2147483646, 1});  // a matrix of so many columns
  std::filesystem::create_directories(path("full/H.npy"));
  const FakeShell shell(kRunHere);
  const std::vector<Case> cases = {
      {"lasso",
       {"--threshold",   "1.5", "--round",    "0",   "--depth", "-1", "--lambda",    "1",
        "--base-weight", "0",   "--rounds",   "0",   "--every", "0",  "--tolerance", "-1",
        "--correlation", "2",   "--nonzeros", "1001"},
       {"--threshold: 1.5 is not above 0 and at most 1", "--round: 0", "--depth: -1", "--lambda: 1",
        "--base-weight: 0", "--rounds: 0", "--every: 0", "--tolerance: -1", "--correlation: 2",
        "--nonzeros: 1001 is not from 1 to 1000"}},
      {"lasso", {"--seed", "-1"}, {"--seed"}},
      {"lasso", {"--threshold", "nan"}, {"--threshold: nan"}},
      {"lasso",
       {"--rows", "3", "-n", "4"},
       {"no rows are left for a rank: there are 3 for 4 ranks"}},
      {"lasso",
       {"--rows", "3", "--virtual", "4", "--stragglers", "5:2x", "--jitter", "1", "--compute", "x"},
       {"no rows are left for a rank", "--stragglers: 5 stragglers among 4 workers", "--jitter: 1",
        "--compute: "}},
      {"lasso",
       {"--rows", "1000000", "--columns", "1000000"},
       {"1e+12 elements need 4.8e+04 GB on this host, but "}},
      {"lasso",
       {"--rows", "1000000", "--columns", "1000000", "-H", "localhost:8"},
       {"1e+12 elements need 3.84e+05 GB on this host, but "}},
      {"factorise", {"--rows", "2000000000", "--known", "500"}, {"1e+12 known elements and 8"}},
      {"factorise",
       {"--virtual", "1024", "--columns", "10000000", "--rows", "1024", "--known", "1"},
       {"1.02e+03 known elements and 8 factors need 1.31e+03 GB on this host"}},
      {"factorise",
       {"--ratings", path("far.npy"), "--rank", "100"},
       {"100 factors of 1 rows and 2147483647 columns need 3.44e+03 GB"}},
      {"lasso", {"--virtual", "2", "-n", "2"}, {"--virtual: workers are simulated in one process"}},
      {"lasso", {"--virtual", "0"}, {"--virtual: 0 is not from 1 to 1024"}},
      {"lasso", {"--virtual", "2000000000"}, {"--virtual: 2000000000 is not from 1 to 1024"}},
      {"lasso", {"--cyclic", "--depth", "1"}, {"--depth: a cycle"}},
      {"lasso",
       {"--virtual", "1", "--compute", "1000000000s", "--latency", "1000000000s", "--base-weight",
        "1e101"},
       {"--compute: 1000000000s is over 30 years", "--latency: 1000000000s is over",
        "--base-weight: 1e+101 is above 1e+100"}},
      {"lasso",
       Words{"--rows", "5"} + shell.options("alpha:4,beta:4"),
       {"no rows are left for a rank: there are 5 for 8 ranks"}},
      {"lasso", {"--x", path("x.npy")}, {"--x and --y: give both"}},
      {"lasso",
       {"--x", path("none.npy"), "--y", path("x.npy")},
       {"none.npy", "'" + path("x.npy") + "' has 2 dimensions, not 1"}},
      {"lasso",
       {"--x", path("x.npy"), "--y", path("y.npy"), "--out", path("no") + "/b.npy"},
       {"--y: it has 6 rows, and --x 3", "--out "}},
      {"factorise",
       {"--rank", "0", "--inner", "0", "--passes", "0", "--lambda", "0", "--known", "501", "--out",
        path("no")},
       {"--rank: 0", "--inner: 0", "--passes: 0", "--lambda: 0", "--known: 501"}},
      {"factorise", {"--ratings", path("x.npy")}, {"rows of three numbers"}},
      {"factorise", {"--out", path("full")}, {"--out " + path("full/H.npy") + ": cannot write"}},
      {"factorise", {"--out", path("x.npy")}, {"x.npy: it is a file; give the path of a folder"}},
      {"factorise", {"--out", path("no/where")}, {"--out " + path("no/where")}},
      {"factorise", {"--ratings", path("r.npy")}, {"line 0 of '" + path("r.npy") + "'"}},
      {"factorise",
       {"--rows", "2", "-n", "3"},
       {"no rows are left for a rank: there are 2 for 3 ranks"}},
      {"lasso", {"--treshold", "1"}, {"--threshold"}},
      {"laso", {}, {"lasso"}},
  };
  for (const Case& c : cases) {
    const Outcome o = run_to_end(strads(c.program, c.flags));
    EXPECT_EQ(o.status, 2) << o.out << o.err;
    EXPECT_EQ(o.out, "");
    EXPECT_THAT(o.err, StartsWith("stormo"));
    for (const std::string& text : c.says) EXPECT_THAT(o.err, HasSubstr(text));
  }
}

}  // namespace
}  // namespace stormo::testing
