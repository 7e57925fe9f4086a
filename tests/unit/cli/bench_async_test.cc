// What `stormo bench async` makes of flags, and of what workers measured.
#include <bench/worker_record.h>
#include <cli/bench/async/options.h>
#include <cli/bench/async/table.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace stormo::cli {
namespace {

using bench::WorkerRecord;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(BenchAsyncOptions, ListsEverythingWrong) {
  AsyncArguments a;
  a.models = {"mpl", "cnn"};
  a.strategies = {"parameter_server:asinc", "ddp"};
  a.against = {"torch_rcp", "fast_workers"};
  a.slow = "1:3";
  a.launch.hosts = "a:1,b:1";
  const std::string text = to_async_options(a).status().message();
  for (const char* part : {"'mpl'", "did you mean mlp?", "'parameter_server:asinc'",
                           "did you mean parameter_server:async?",
                           "parameter_server:backup_workers", "host_shared", "'torch_rcp'",
                           "no_communication, fast_workers, torch_rpc, tensorflow_ps, "
                           "tensorflow_mirrored",
                           "--against fast_workers", "--slow: '1:3' is not", "--hosts"})
    EXPECT_THAT(text, HasSubstr(part));
  EXPECT_THAT(text, Not(HasSubstr("'cnn'")));
}

TEST(BenchAsyncOptions, EveryPolicyIsAStrategy) {
  AsyncArguments a;
  a.models = {"mlp", "wide"};
  a.strategies = {"parameter_server:ssp", "ddp",      "parameter_server:ssp",
                  "parameter_averaging",  "downpour", "elastic_averaging"};
  a.steps = 7;
  const auto options = to_async_options(a).take_or_throw();
  ASSERT_EQ(options.strategies.size(), 5u);
  EXPECT_THAT(options.strategies[0]->recipe,
              ElementsAre("strategy.kind=parameter_server", "strategy.policy=ssp"));
  EXPECT_THAT(
      async_strategy("diloco").recipe,
      ElementsAre("strategy.kind=parameter_averaging",
                  "strategy.period=" + std::to_string(kMeetingPeriod), "strategy.outer=nesterov"));
  ASSERT_EQ(options.jobs.size(), 2u);
  EXPECT_TRUE(options.jobs[0].plain_sgd);
  EXPECT_EQ(options.jobs[1].batch, 16);
  EXPECT_EQ(options.jobs[1].steps, 7);
  EXPECT_FALSE(options.slow.any());
}

TEST(BenchAsyncOptions, SaysWhichWorkerIsSlow) {
  AsyncArguments a;
  a.launch.ranks = 3;
  a.slow = "1:2.5x";
  SlowWorker slow = to_async_options(a).take_or_throw().slow;
  for (int step = 0; step < 3; ++step) {
    EXPECT_EQ(slowness(slow, 0, 3, step), 1);
    EXPECT_EQ(slowness(slow, 1, 3, step), 2.5);
  }
  EXPECT_TRUE(slow.spares(0));
  EXPECT_FALSE(slow.spares(1));
  a.slow = "turns:3x";
  slow = to_async_options(a).take_or_throw().slow;
  for (int step = 0; step < 4; ++step) {
    double sum = 0;
    for (int worker = 0; worker < 3; ++worker) sum += slowness(slow, worker, 3, step);
    EXPECT_EQ(sum, 5) << "one worker in each step";
  }
  EXPECT_NE(slowness(slow, 0, 3, 0), slowness(slow, 0, 3, 1));
  for (const char* text : {"3:2x", "1:1x", "1:0.5x", "-1:2x", "x:2x", "1:x", ":", "1"}) {
    a.slow = text;
    EXPECT_THAT(to_async_options(a).status().message(), HasSubstr("--slow: ")) << text;
  }
}

WorkerRecord worker(int number, std::vector<double> times, double last_loss = 1) {
  return {.worker = number,
          .workers = 1,
          .times = std::move(times),
          .first_loss = 2,
          .last_loss = last_loss};
}

TEST(WorkerRecords, SurviveTheirText) {
  const std::string text =
      "[1] " + to_json(worker(1, {1, 2.5})) + "\n" + to_json(worker(0, {0.125, 4, 5})) + "\n";
  const auto back = bench::parse_worker_records(text).take_or_throw();
  ASSERT_EQ(back.size(), 2u);
  EXPECT_EQ(back[0].worker, 0);
  EXPECT_THAT(back[0].times, ElementsAre(0.125, 4, 5));
  EXPECT_EQ(back[1].last_loss, 1);
  EXPECT_FALSE(bench::parse_worker_records("[W] a warning\n").ok());
  EXPECT_FALSE(bench::parse_worker_records(to_json(worker(0, {1}))).ok()) << "no step";
  EXPECT_FALSE(bench::parse_worker_records(to_json(worker(0, {2, 1}))).ok()) << "backwards";
}

TEST(WorkerRecords, MayHaveTheLossOfEachStep) {
  WorkerRecord record = worker(0, {1, 2});
  record.losses = {0.5, std::numeric_limits<double>::infinity()};
  const auto back = bench::parse_worker_records(to_json(record)).take_or_throw();
  EXPECT_EQ(back[0].losses[0], 0.5);
  EXPECT_TRUE(std::isnan(back[0].losses[1])) << "what is not finite is null";
  record.losses.pop_back();
  EXPECT_FALSE(bench::parse_worker_records(to_json(record)).ok()) << "not one for each step";
  EXPECT_TRUE(bench::parse_worker_records(R"({"worker":0,"workers":1,"times":[1,2],"first_loss":2,)"
                                          R"("last_loss":1})")
                  .take_or_throw()[0]
                  .losses.empty());
}

TEST(WorkerRecords, RatesAreThoseWhileAllTrain) {
  // worker 0 makes a step per second from 0 to 10, worker 1 one in 3 seconds from 2 to 17
  std::vector<double> fast, slow;
  for (int i = 0; i <= 10; ++i) fast.push_back(i);
  for (int i = 0; i <= 5; ++i) slow.push_back(2 + 3 * i);
  const std::vector<WorkerRecord> both = {worker(0, fast), worker(1, slow)};
  const auto all = [](int) { return true; };
  EXPECT_DOUBLE_EQ(bench::steps_per_second(both, all), (8 + 2) / 8.0);
  EXPECT_DOUBLE_EQ(bench::steps_per_second(both, [](int w) { return w == 0; }), 1);
  EXPECT_EQ(bench::steps_per_second(std::vector{worker(0, {0, 1}), worker(1, {1, 2})}, all), 0);
}

/// Two workers that make a step in each of `fast` and `slow` seconds.
std::vector<WorkerRecord> round_of(double fast, double slow) {
  std::vector<WorkerRecord> records = {worker(0, {}), worker(1, {})};
  for (int i = 0; i <= 60; ++i) {
    records[0].times.push_back(i * fast);
    records[1].times.push_back(i * slow);
  }
  return records;
}

TEST(AsyncPicture, HasTheLossesOfAllOverStepsAndOverTime) {
  std::vector<WorkerRecord> records = round_of(1, 3);
  for (WorkerRecord& r : records) r.losses.assign(r.times.size(), 0.25);
  records[1].times.front() = 5;  // it has begun last: what was before does not count
  std::ranges::sort(records[1].times);
  AsyncRow row{.job = {.model = &step_models()[0], .batch = 64, .steps = 60},
               .workers = 2,
               .slow = {.factor = 3, .worker = 1}};
  row.ours = {"async & co", summarize_workers({records}, row.slow).take_or_throw()};
  row.against = {{"silent", summarize_workers({round_of(1, 1)}, row.slow).take_or_throw()}};
  const std::vector<LossPoint>& losses = row.ours.summary.losses;
  ASSERT_FALSE(losses.empty());
  EXPECT_EQ(losses.front().at, Duration::zero());
  EXPECT_TRUE(std::ranges::is_sorted(losses, {}, &LossPoint::at));
  const std::string svg = async_picture(row);
  std::size_t lines = 0;
  for (std::size_t at = svg.find("<polyline"); at != std::string::npos;
       at = svg.find("<polyline", at + 1)) {
    ++lines;
  }
  EXPECT_EQ(lines, 4u) << "two contenders, twice";
  for (const char* part : {"steps of all workers", "time (s)", "async &amp; co: ", "1:3x",
                           "silent: ", "losses of steps are not known"}) {
    EXPECT_THAT(svg, HasSubstr(part));
  }
}

TEST(AsyncTable, ComparesRatesRoundByRound) {
  const SlowWorker slow{.factor = 3, .worker = 1};
  const auto ours = summarize_workers({round_of(1, 3), round_of(2, 6), round_of(4, 12)}, slow);
  const auto theirs = summarize_workers({round_of(3, 3), round_of(3, 3), round_of(3, 3)}, slow);
  StepJob job{.model = &step_models()[0],
              .strategy = &async_strategies()[0],
              .batch = 64,
              .steps = 60,
              .plain_sgd = true};
  AsyncRow row{.job = job,
               .workers = 2,
               .slow = slow,
               .ours = {"parameter_server:async", ours.value()},
               .against = {{"ddp", theirs.value()}},
               .absent = {{"torch_rpc", "no torch"}}};
  const auto json = nlohmann::json::parse(async_json(row));
  EXPECT_EQ(json["slow"], "1:3x");
  EXPECT_THAT(json["steps_per_s"].get<double>(), DoubleNear(4.0 / 3 / 2, 1e-9));
  EXPECT_THAT(json["samples_per_s"].get<double>(), DoubleNear(64 * 4.0 / 3 / 2, 1e-6));
  EXPECT_THAT(json["step_s"].get<double>(), DoubleNear(2, 1e-9)) << "of worker 0";
  EXPECT_EQ(json["verified"], true);
  const auto& ddp = json["against"]["ddp"];
  EXPECT_THAT(ddp["steps_per_s"].get<double>(), DoubleNear(2.0 / 3, 1e-9));
  EXPECT_THAT(ddp["ratio"].get<double>(), DoubleNear(1, 1e-9)) << "ours over theirs: 2, 1, 0.5";
  EXPECT_THAT(ddp["ratio_max"].get<double>(), DoubleNear(2, 1e-9));
  EXPECT_THAT(ddp["step_ratio"].get<double>(), DoubleNear(1.5, 1e-9)) << "theirs over ours";
  EXPECT_EQ(json["not_available"]["torch_rpc"], "no torch");
  const std::string text = async_table(row);
  EXPECT_THAT(text, HasSubstr("on purpose"));
  EXPECT_THAT(text, HasSubstr("not available: no torch"));
  EXPECT_THAT(text, Not(HasSubstr("DOES NOT LEARN")));
}

TEST(AsyncTable, ComparesLossesAtEqualTime) {
  // losses 16, 15, ..., one step a second; the other one makes a step in two seconds
  const auto losses = [](double every_s) {
    std::vector<LossPoint> out;
    for (int i = 0; i < 16; ++i) {
      const std::chrono::duration<double> at(i * every_s);
      out.push_back({.at = std::chrono::duration_cast<Duration>(at), .loss = 16.0 - i});
    }
    return out;
  };
  AsyncRow row;
  row.ours.summary.losses = losses(1);
  AsyncResult other{.name = "other", .summary = {}};
  EXPECT_FALSE(equal_time(row, other)) << "its losses are not known";
  other.summary.losses = losses(2);
  const auto then = equal_time(row, other);
  ASSERT_TRUE(then);
  EXPECT_EQ(then->at, std::chrono::seconds(15));
  EXPECT_DOUBLE_EQ(then->first_loss, 4.5) << "of the last 8 steps, 1 to 8";
  EXPECT_DOUBLE_EQ(then->other_loss, 12.5) << "steps 0 to 7 at 15 s: 16 to 9";
}

TEST(AsyncTable, LossesMustFallInEveryRound) {
  std::vector<WorkerRecord> worse = round_of(1, 1);
  worse[1].last_loss = 2.5;
  EXPECT_TRUE(summarize_workers({round_of(1, 1)}, {}).value().trained);
  EXPECT_FALSE(summarize_workers({round_of(1, 1), worse}, {}).value().trained);
  std::vector<WorkerRecord> apart = {worker(0, {0, 1}), worker(1, {2, 3})};
  EXPECT_THAT(summarize_workers({apart}, {}).status().message(), HasSubstr("--steps"));
}

}  // namespace
}  // namespace stormo::cli
