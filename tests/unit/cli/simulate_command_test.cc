// What `stormo simulate` makes of its words, and what it says of what came out.
#include <cli/plot/losses.h>
#include <cli/simulate/options.h>
#include <cli/simulate/report.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace stormo::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

SimulateOptions options_of(const SimulateArguments& a) {
  std::vector<std::string> wrong;
  SimulateOptions options = to_simulate_options(a, wrong);
  EXPECT_THAT(wrong, IsEmpty());
  return options;
}

std::vector<std::string> wrong_with(const SimulateArguments& a) {
  std::vector<std::string> wrong;
  (void)to_simulate_options(a, wrong);
  return wrong;
}

TEST(SimulateOptions, Defaults) {
  const SimulateOptions o = options_of({});
  EXPECT_EQ(o.cluster.workers, 8);
  EXPECT_EQ(o.cluster.compute, milliseconds(10));
  EXPECT_EQ(o.cluster.latency, std::chrono::microseconds(100));
  EXPECT_THAT(o.cluster.slowness, ElementsAre(1, 1, 1, 1, 1, 1, 1, 1));
  EXPECT_THAT(o.policies, IsEmpty());
}

TEST(SimulateOptions, StragglersAreTheLastWorkers) {
  const SimulateOptions o =
      options_of({.workers = 6, .time = {.stragglers = {"2:10x", "1:2.5x", "1:0.5x"}}});
  EXPECT_THAT(o.cluster.slowness, ElementsAre(1, 1, 0.5, 2.5, 10, 10));
  const SimulateOptions all = options_of({.workers = 2, .time = {.stragglers = {"2:3x"}}});
  EXPECT_THAT(all.cluster.slowness, ElementsAre(3, 3));
}

TEST(SimulateOptions, CrashesAndPolicies) {
  const SimulateOptions o =
      options_of({.policies = {"ssp", "sync", "ssp"}, .crashes = {"7:250ms", "0:2s"}});
  ASSERT_EQ(o.cluster.crashes.size(), 2u);
  EXPECT_EQ(o.cluster.crashes[0].worker, 7);
  EXPECT_EQ(o.cluster.crashes[0].at, milliseconds(250));
  EXPECT_THAT(o.policies, ElementsAre("ssp", "sync"));
  EXPECT_THAT(options_of({.policies = {"ssp", "all"}}).policies,
              ElementsAre("ssp", "sync", "async", "n_softsync", "backup_workers",
                          "parameter_averaging", "elastic_averaging"));
  EXPECT_THAT(options_of({.policies = {"downpour"}}).policies, ElementsAre("downpour"));
}

TEST(SimulateOptions, LossesOfMessagesAndServers) {
  const SimulateOptions o = options_of({.loss = 0.02,
                                        .timeout = "30ms",
                                        .server_crashes = {"1:250ms", "3:2s"},
                                        .server_backups = true});
  EXPECT_EQ(o.cluster.loss, 0.02);
  EXPECT_EQ(o.cluster.timeout, milliseconds(30));
  ASSERT_EQ(o.cluster.server_crashes.size(), 2u);
  EXPECT_EQ(o.cluster.server_crashes[1].server, 3);
  EXPECT_EQ(o.cluster.server_crashes[1].at, seconds(2));
  EXPECT_TRUE(o.cluster.backups);
  EXPECT_THAT(wrong_with({.loss = 0.95, .timeout = "0s", .server_crashes = {"one:1s"}}),
              ElementsAre("--loss: 0.95 is not from 0 to 0.9", HasSubstr("--timeout"),
                          HasSubstr("--server-crash: 'one:1s' is not SERVER:TIME")));
}

TEST(SimulateOptions, TimesOfDecadesAreRefused) {
  EXPECT_THAT(wrong_with({.time = {.compute = "1000000000s", .latency = "1000000000s"}}),
              ElementsAre("--compute: 1000000000s is over 30 years",
                          "--latency: 1000000000s is over 30 years"));
}

TEST(SimulateOptions, EverythingWrongIsListedTogether) {
  const std::vector<std::string> wrong =
      wrong_with({.workers = 3,
                  .policies = {"sync", "asynch"},
                  .time = {.compute = "0s",
                           .jitter = 1,
                           .latency = "1 day",
                           .stragglers = {"2", "x:2x", "1:0x", "0:2x", "1:nanx", "2:10", "4:2x"}},
                  .crashes = {"3:1s", "1", "-1:1s", "1:1x"}});
  EXPECT_EQ(wrong.size(), 15u);
  std::string text;
  for (const std::string& line : wrong) text += line + "\n";
  for (const char* part :
       {"'2' is not COUNT:FACTORx", "'x:2x'", "'1:0x'", "'0:2x'", "'1:nanx'", "'2:10'",
        "4 stragglers among 3 workers",
        "'asynch' is no policy; write sync, async, ssp, n_softsync, backup_workers, "
        "parameter_averaging, elastic_averaging, downpour or all",
        "--compute", "--jitter: 1 is not", "--latency: '1 day'",
        "there is no worker 3; they are 0 to 2", "'1' is not WORKER:TIME", "no worker -1",
        "'1:1x'"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(wrong_with({.workers = 0}), ElementsAre("--workers: 0 is not from 1 to 512"));
  EXPECT_THAT(wrong_with({.workers = 513}), ElementsAre(HasSubstr("from 1 to 512")));
  EXPECT_THAT(wrong_with({.workers = 2, .crashes = {"0:1s", "1:1s"}}),
              ElementsAre("--crash: no worker is left"));
  EXPECT_THAT(wrong_with({.time = {.jitter = std::numeric_limits<double>::quiet_NaN()}}),
              ElementsAre(HasSubstr("--jitter")));
}

LossPoint point(int s, double loss, double samples = 1) {
  return {.at = seconds(s), .loss = loss, .samples = samples};
}

std::vector<double> losses_of(const std::vector<LossPoint>& points) {
  std::vector<double> out;
  for (const LossPoint& p : points) out.push_back(p.loss);
  return out;
}

TEST(Losses, RunningMeansAreOverSamples) {
  const std::vector<LossPoint> points = {point(1, 6), point(2, 3, 2), point(3, 1), point(4, 0)};
  EXPECT_THAT(losses_of(running_means(points, 2)), ElementsAre(4, 7.0 / 3, 0.5));
  EXPECT_THAT(losses_of(running_means(points, 1)), ElementsAre(6, 3, 1, 0));
  EXPECT_THAT(losses_of(running_means(points, 9)), ElementsAre(13.0 / 5));
  EXPECT_THAT(running_means({}, 3), IsEmpty());
  EXPECT_EQ(first_at_most(points, 3), seconds(2));
  EXPECT_EQ(first_at_most(points, -1), std::nullopt);
}

TEST(Losses, BinsAreEqualPartsOfTime) {
  const std::vector<LossPoint> points = {point(1, 8), point(2, 2, 3), point(3, 1), point(10, 5)};
  const std::vector<LossPoint> bins = binned(points, 5);
  ASSERT_EQ(bins.size(), 3u);  // nothing between 4 and 8
  EXPECT_THAT(losses_of(bins), ElementsAre(3.5, 1, 5));
  EXPECT_EQ(bins[0].at, seconds(2));
  EXPECT_EQ(bins[2].at, seconds(10));
  EXPECT_EQ(binned(points, 1).at(0).samples, 6);
  EXPECT_THAT(binned({}, 4), IsEmpty());
}

SimulatedPolicy policy(const std::string& name, int end, double loss, int first_half) {
  SimulatedPolicy p{.policy = name, .time = seconds(end), .updates = 7};
  p.losses = {point(first_half, 1), point(end, loss)};
  p.means = running_means(p.losses, 1);
  return p;
}

TEST(TimeToEqualLoss, NamesWhoIsClearlyFirst) {
  // async reaches 0.5 at 10 s, sync at 40 s
  EXPECT_EQ(time_to_equal_loss({policy("sync", 40, 0.5, 4), policy("async", 10, 0.4, 1)}),
            "First to a train loss of 0.5000, the worst final one, was async: async after 10.0 s, "
            "sync after 40.0 s.");
  EXPECT_THAT(time_to_equal_loss({policy("sync", 40, 0.5, 4), policy("async", 10, 0.4, 1),
                                  policy("ssp", 10, 0.3, 1)}),
              HasSubstr("were async and ssp: async after 10.0 s, ssp after 10.0 s, sync after"));
}

TEST(TimeToEqualLoss, IsSilentWhereThereIsNoNews) {
  const SimulatedPolicy sync = policy("sync", 40, 0.5, 4);
  EXPECT_EQ(time_to_equal_loss({}), "");
  EXPECT_EQ(time_to_equal_loss({sync}), "");
  EXPECT_EQ(time_to_equal_loss({sync, policy("async", 39, 0.4, 1)}), "") << "hardly earlier";
  EXPECT_EQ(time_to_equal_loss({sync, policy("async", 80, 0.4, 1)}), "") << "the worst is first";
  SimulatedPolicy diverged = policy("async", 10, 0.4, 1);
  diverged.diverged = true;
  EXPECT_EQ(time_to_equal_loss({sync, diverged}), "");
}

Simulation two_policies() {
  Simulation s{.name = "a<b", .global_batch = 64, .cluster = {.workers = 2, .steps = 10}};
  s.cluster.slowness = {1, 3};
  s.policies = {policy("sync", 40, 0.5, 4), policy("async", 10, 0.4, 1)};
  s.policies[0].staleness.add(0);
  s.policies[0].staleness.add(2);
  s.policies[0].score = {.split = "test", .loss = 0.6, .accuracy = 0.912};
  s.policies[1].diverged = true;
  return s;
}

TEST(SimulateReport, SaysWhatIsSimulated) {
  const std::string text = heading(two_policies());
  EXPECT_THAT(text,
              HasSubstr("a<b: 2 workers, 10 steps each, global batch 64; a step computes 10.0 "
                        "ms +- 10 %, a message takes 100.0 us; stragglers: 1 (3x)"));
  Simulation slow = two_policies();
  slow.cluster.slowness = {1, 2, 2, 1, 10, 10.5, 10.5, 10.5};
  EXPECT_THAT(heading(slow), HasSubstr("; stragglers: 1-2 (2x), 4 (10x), 5-7 (10.5x)"));
  slow.cluster.loss = 0.025;
  slow.cluster.server_crashes = {{.server = 1, .at = seconds(2)}};
  slow.cluster.backups = true;
  EXPECT_THAT(heading(slow), HasSubstr("; 2.5 % of messages are lost, and sent again after 100.0 "
                                       "ms; server 1 crashes at 2.0 s; servers have backups"));
  EXPECT_EQ(final_numbers(two_policies().policies[0]),
            "40.0 s, train loss 0.5000, test accuracy 91.20 %");
  EXPECT_EQ(final_numbers(two_policies().policies[1]), "diverged at 10.0 s");
}

TEST(SimulateReport, TableHasOneRowForEachPolicy) {
  ::testing::internal::CaptureStdout();
  print_simulation(two_policies());
  std::fflush(stdout);
  const std::string text = ::testing::internal::GetCapturedStdout();
  EXPECT_THAT(text, HasSubstr("policy  virtual time  updates  dropped  staleness  max  waited  "
                              "train loss          test accuracy\n"));
  EXPECT_THAT(text, HasSubstr("sync    40.0 s        7        0        1.00       2    0.0 %   "
                              "0.5000              91.20 %\n"));
  EXPECT_THAT(text, HasSubstr("diverged at 10.0 s  -\n"));
}

TEST(SimulateReport, SaysWhoseLossEndedARun) {
  Simulation s = two_policies();
  s.policies[0].lost = "worker 3";
  ::testing::internal::CaptureStdout();
  print_simulation(s);
  std::fflush(stdout);
  EXPECT_THAT(::testing::internal::GetCapturedStdout(),
              HasSubstr("\nsync: the run ended after 40.0 s, when worker 3 was lost.\n"));
  EXPECT_EQ(nlohmann::json::parse(policy_json(s, s.policies[0]))["lost"], "worker 3");
  EXPECT_FALSE(nlohmann::json::parse(policy_json(s, s.policies[1])).contains("lost"));
}

TEST(SimulateReport, JsonHasTheSame) {
  const Simulation s = two_policies();
  const auto sync = nlohmann::json::parse(policy_json(s, s.policies[0]));
  EXPECT_EQ(sync["policy"], "sync");
  EXPECT_EQ(sync["virtual_s"], 40);
  EXPECT_EQ(sync["staleness"]["histogram"], nlohmann::json({1, 0, 1}));
  EXPECT_EQ(sync["test"]["accuracy"], 0.912);
  EXPECT_EQ(sync["train_loss"], 0.5);
  EXPECT_EQ(sync["curve"].size(), 2u);
  const auto async = nlohmann::json::parse(policy_json(s, s.policies[1]));
  EXPECT_EQ(async["diverged"], true);
  EXPECT_FALSE(async.contains("train_loss"));
}

TEST(SimulatePicture, HasALineForEachPolicy) {
  Simulation s = two_policies();
  const std::string svg = svg_losses(s);
  std::size_t lines = 0;
  for (std::size_t at = svg.find("<polyline"); at != std::string::npos;
       at = svg.find("<polyline", at + 1)) {
    ++lines;
  }
  EXPECT_EQ(lines, 2u);
  for (const char* part : {"virtual time (s)", "train loss", "a&lt;b", "sync: 40.0 s, train loss",
                           "async: diverged at 10.0 s", ">40</text>"}) {
    EXPECT_THAT(svg, HasSubstr(part));
  }
  // what has no losses, or only equal or huge ones, is a picture too
  s.policies[0].losses = {point(1, 1), point(2, 1e300)};
  s.policies[1].losses = {};
  for (const std::string& text : {svg_losses(s), svg_losses({.name = "none"})}) {
    EXPECT_THAT(text, HasSubstr("</svg>"));
    EXPECT_THAT(text, Not(HasSubstr("nan")));
    EXPECT_LT(text.size(), 10000u);
  }
}

}  // namespace
}  // namespace stormo::cli
