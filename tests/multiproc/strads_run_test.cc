// `stormo strads`: ranks as processes, beside the same run in virtual time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include <stormo/base/temporary_folder.h>
#include <stormo/strads/npy_values.h>

#include "launch_program.h"
#include "process.h"

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
  for (const char* ranks : {"1", "2", "3"}) {
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
                                    "1e-9", "--passes", "300", "-n", "3", "--out", folder.path()}));
  const auto w = strads::read_npy(path("W.npy")).take_or_throw();
  const auto h = strads::read_npy(path("H.npy")).take_or_throw();
  ASSERT_EQ(w.shape, (std::vector<std::int64_t>{6, 1}));
  ASSERT_EQ(h.shape, (std::vector<std::int64_t>{5, 1}));
  for (std::size_t i = 0; i < 6; ++i) {
    for (std::size_t j = 0; j < 5; ++j) {
      EXPECT_NEAR(w.values[i] * h.values[j], static_cast<double>((i + 1) * (j + 1)), 1e-5);
    }
  }
}

TEST(StradsRun, UpdatesThatDivergeEndWithAFailure) {
  const Words naive{"--rows", "400", "--columns", "200", "--no-check", "--no-priority"};
  for (const Words& where : {Words{}, Words{"--virtual", "2"}}) {
    const Outcome o = run_to_end(strads("lasso", naive + where));
    EXPECT_EQ(o.status, 1) << o.err;
    EXPECT_THAT(o.out, HasSubstr("\ndiverged: "));
  }
}

TEST(StradsRun, AKilledRankEndsTheJobWithItsCause) {
  for (const char* depth : {"0", "3"}) {
    Process job(strads("lasso", {"-n", "2", "--rounds", "1000000000", "--tolerance", "1e-300",
                                 "--json", "--depth", depth, "--every", "50", "--rows", "300"}));
    ASSERT_TRUE(job.wait_for_output("\"rounds\":100,")) << job.err();
    const pid_t victim = job.rank(1, kStormo);
    ASSERT_GT(victim, 0);
    ASSERT_EQ(::kill(victim, SIGKILL), 0);
    EXPECT_EQ(job.wait(5s), 1);
    EXPECT_TRUE(job.wait_until_all_gone(1s));
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
       {"1e+12 elements need 4.8e+04 GB on all ranks, but "}},
      {"factorise", {"--rows", "2000000000", "--known", "500"}, {"1e+12 elements need"}},
      {"lasso", {"--virtual", "2", "-n", "2"}, {"--virtual: workers are simulated in one process"}},
      {"lasso", {"--virtual", "0"}, {"--virtual: 0 is not from 1 to 1024"}},
      {"lasso", {"--cyclic", "--depth", "1"}, {"--depth: a cycle"}},
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
       {"--rank: 0", "--inner: 0", "--passes: 0", "--lambda: 0", "--known: 501", "--out "}},
      {"factorise", {"--ratings", path("x.npy")}, {"rows of three numbers"}},
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
