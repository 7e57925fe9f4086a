#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>

#include <stormo/observe/metrics/exposition.h>

#include "tests/unit/observe/exposition_parser.h"
#include "tests/unit/observe/full_status.h"

namespace stormo::observe {
namespace {

using test::ExpositionParser;
using Families = ExpositionParser::Families;

const BuildFacts kBuild{.version = "0.1.0", .git = "abc"};

std::string text_of(const StatusObserver& observer, MetricFormat format, Duration later = {}) {
  const auto run = observer.status();
  const CostRecord cost = test::full_cost();
  return metrics_text(
      {*run, kBuild, std::chrono::steady_clock::now() + later, run->start ? &cost : nullptr},
      format);
}

Families families_of(const StatusObserver& observer, MetricFormat format) {
  return ExpositionParser::parse(text_of(observer, format), format == MetricFormat::kOpenMetrics);
}

TEST(Exposition, EveryMetricOfTheTableIsShownInBothFormats) {
  StatusObserver observer;
  test::tell_all(observer);
  const Families plain = families_of(observer, MetricFormat::kPrometheus);
  const Families open = families_of(observer, MetricFormat::kOpenMetrics);
  EXPECT_EQ(plain.size(), metric_table().size());
  EXPECT_EQ(open.size(), metric_table().size());
  for (const MetricRow& row : metric_table()) {
    ASSERT_TRUE(plain.contains(std::string(row.name))) << row.name;
    EXPECT_EQ(plain.at(std::string(row.name)).help, row.help);
  }
  EXPECT_EQ(open.at("stormo_wire_bytes").unit, "bytes");
  EXPECT_EQ(open.at("stormo_build").type, "info");
}

TEST(Exposition, ValuesAreThoseOfTheRecords) {
  StatusObserver observer;
  test::tell_all(observer);
  const Families all = families_of(observer, MetricFormat::kPrometheus);
  const auto value = [&](const std::string& family, const std::string& labels = "") {
    return all.at(family).samples.at(family + labels);
  };
  EXPECT_EQ(value("stormo_steps_total"), 12);
  EXPECT_EQ(value("stormo_samples_total"), 384);
  EXPECT_EQ(value("stormo_loss"), 1.25);
  EXPECT_EQ(value("stormo_learning_rate"), 1e-5);
  EXPECT_EQ(value("stormo_gradient_norm"), 0.75);
  EXPECT_EQ(value("stormo_ranks", "{state=\"active\"}"), 2);
  EXPECT_EQ(value("stormo_phase_seconds_total", "{phase=\"communication\"}"), 2);
  EXPECT_EQ(value("stormo_phase_ratio", "{phase=\"compute\",over_ranks=\"min\"}"), 0.5);
  EXPECT_EQ(value("stormo_phase_ratio", "{phase=\"compute\",over_ranks=\"mean\"}"), 0.625);
  EXPECT_EQ(value("stormo_phase_ratio", "{phase=\"compute\",over_ranks=\"max\"}"), 0.75);
  EXPECT_EQ(value("stormo_slowest_rank"), 1);
  EXPECT_EQ(value("stormo_slow_ranks"), 2);
  EXPECT_EQ(value("stormo_slow_rank", "{phase=\"data\"}"), 1);
  EXPECT_EQ(value("stormo_slow_rank", "{phase=\"link\"}"), 0);
  EXPECT_EQ(value("stormo_slowness_ratio", "{phase=\"data\"}"), 3);
  EXPECT_EQ(value("stormo_step_without_slow_rank_ratio", "{phase=\"link\"}"), 0.75);
  EXPECT_EQ(value("stormo_evaluation_loss", "{split=\"validation\"}"), 2);
  EXPECT_EQ(value("stormo_warnings_total", "{kind=\"loss_grown\"}"), 1);
  EXPECT_EQ(value("stormo_checkpoint_failures_total"), 1);
  EXPECT_EQ(value("stormo_replica_mismatches_total"), 0);
  const auto& times = all.at("stormo_step_duration_seconds").samples;
  EXPECT_EQ(times.at("stormo_step_duration_seconds_bucket{le=\"0.001\"}"), 0);
  EXPECT_EQ(times.at("stormo_step_duration_seconds_bucket{le=\"0.0025\"}"), 1);
  EXPECT_EQ(times.at("stormo_step_duration_seconds_bucket{le=\"0.5\"}"), 3);
  EXPECT_EQ(times.at("stormo_step_duration_seconds_bucket{le=\"100.0\"}"), 3);
  EXPECT_EQ(times.at("stormo_step_duration_seconds_bucket{le=\"+Inf\"}"), 4);
  EXPECT_DOUBLE_EQ(times.at("stormo_step_duration_seconds_sum"), 500.802);
}

TEST(Exposition, WrongBitsAreCounted) {
  StatusObserver observer;
  observer.on_start({.ranks = 3});
  for (const std::int64_t step : {2, 5}) {
    observer.on_warning({.kind = "replica_mismatch", .step = step, .message = "rank 1"});
  }
  const Families all = families_of(observer, MetricFormat::kPrometheus);
  const std::string name = "stormo_replica_mismatches_total";
  EXPECT_EQ(all.at(name).samples.at(name), 2);
}

TEST(Exposition, ATextInALabelIsEscaped) {
  StatusObserver observer;
  test::tell_all(observer);
  const std::string text = text_of(observer, MetricFormat::kPrometheus);
  EXPECT_THAT(text, testing::HasSubstr(R"(recipe="a \"quoted\\ name\\nof \\xff two lines")"));
}

TEST(Exposition, WhatIsNotKnownIsNotShown) {
  StatusObserver observer;
  EXPECT_EQ(families_of(observer, MetricFormat::kOpenMetrics).size(), 2u);  // build, start
  observer.on_start({.recipe = "small", .strategy = "ddp"});                // one rank, no folder
  observer.on_step({.step = 1, .loss = std::numeric_limits<double>::quiet_NaN()});
  const Families all = families_of(observer, MetricFormat::kPrometheus);
  for (const char* name :
       {"stormo_wire_bytes_total", "stormo_gradient_norm", "stormo_checkpoint_age_seconds",
        "stormo_checkpoint_failures_total", "stormo_phase_ratio", "stormo_slowest_rank",
        "stormo_slow_ranks", "stormo_slow_rank", "stormo_slowness_ratio", "stormo_evaluation_loss",
        "stormo_replica_mismatches_total", "stormo_warnings_total"}) {
    EXPECT_FALSE(all.contains(name)) << name;
  }
  EXPECT_TRUE(std::isnan(all.at("stormo_loss").samples.at("stormo_loss")));
}

TEST(Exposition, TheAgeOfACheckpointGrowsUntilThereIsAnother) {
  StatusObserver observer;
  test::tell_all(observer);
  const auto age = [&] {
    const std::string text =
        text_of(observer, MetricFormat::kPrometheus, std::chrono::seconds(100));
    return ExpositionParser::parse(text, false)
        .at("stormo_checkpoint_age_seconds")
        .samples.at("stormo_checkpoint_age_seconds");
  };
  const double first = age();
  EXPECT_GE(first, 100);
  StepRecord next = test::full_step();
  observer.on_progress(next);
  EXPECT_GE(age(), first);  // the same one
  next.checkpoint = "run/step-00000012";
  const auto before = std::chrono::steady_clock::now();
  observer.on_progress(next);
  const double since =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
  const double second = age();
  EXPECT_GE(second, 100);
  EXPECT_LT(since, second);
  EXPECT_EQ(observer.status()->checkpoint, "run/step-00000012");
  EXPECT_GE(observer.status()->checkpoint_seen, before);
}

TEST(Exposition, TheReaderChoosesTheFormat) {
  const auto open = [](std::string_view accept) {
    return format_for(accept) == MetricFormat::kOpenMetrics;
  };
  // Prometheus 2.42 and 2.20, curl, a browser
  EXPECT_TRUE(
      open("application/openmetrics-text;version=1.0.0,application/openmetrics-text;"
           "version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"));
  EXPECT_FALSE(open("text/plain;version=0.0.4;q=1,*/*;q=0.1"));
  EXPECT_FALSE(open("*/*"));
  EXPECT_FALSE(open(""));
  EXPECT_TRUE(open("Application/OpenMetrics-Text ; version=1.0.0"));
  EXPECT_FALSE(open("application/openmetrics-text;q=0"));
  EXPECT_FALSE(open("application/openmetrics-text;q=0.3, text/plain;q=0.5"));
  EXPECT_FALSE(open("application/openmetrics-text;q=x"));
}

TEST(Exposition, PromtoolFindsNothingToSay) {
  if (std::system("promtool --version >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "set-up: promtool is not there";
  }
  StatusObserver observer;
  test::tell_all(observer);
  const std::string file = testing::TempDir() + "/stormo_metrics.txt";
  std::ofstream(file) << text_of(observer, MetricFormat::kPrometheus);
  EXPECT_EQ(std::system(("promtool check metrics < " + file).c_str()), 0);
  std::remove(file.c_str());
}

/// The reader of the test itself.
TEST(ExpositionParser, RefusesWhatTheFormatsDoNotAllow) {
  const std::string head = "# HELP a_total x\n# TYPE a_total counter\n";
  EXPECT_NO_THROW(ExpositionParser::parse(head + "a_total 1\n", false));
  for (const std::string& wrong :
       {std::string("a_total 1\n"), head, head + "a_total 1", head + "a_total -1\n",
        head + "a_total 1\na_total 1\n", head + "a_total{b=\"\n\"} 1\n",
        head + "a_total{b=\"c\"d\"} 1\n", head + "a_total{b=\"\\c\"} 1\n", head + "a_total nan\n",
        head + "b 1\n", head + "a_total 1\n# EOF\n",
        std::string("# TYPE a_total counter\na_total 1\n"),
        std::string("# HELP a x\n# TYPE a counter\na 1\n"),
        head + "a_total 1\n# HELP b x\n# TYPE b gauge\nb 1\n" + head + "a_total{c=\"d\"} 1\n"}) {
    EXPECT_THROW(ExpositionParser::parse(wrong, false), std::runtime_error) << wrong;
  }
  const std::string buckets = "# HELP h x\n# TYPE h histogram\n";
  EXPECT_NO_THROW(ExpositionParser::parse(
      buckets + "h_bucket{le=\"1.0\"} 1\nh_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 2\n", false));
  for (const char* wrong :
       {"h_bucket{le=\"1.0\"} 3\nh_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 2\n",
        "h_bucket{le=\"+Inf\"} 1\nh_sum 3\nh_count 2\n", "h_sum 3\nh_count 2\n"}) {
    EXPECT_ANY_THROW(ExpositionParser::parse(buckets + wrong, false)) << wrong;
  }
}

}  // namespace
}  // namespace stormo::observe
