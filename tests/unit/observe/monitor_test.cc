#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <atomic>
#include <string>
#include <thread>

#include <stormo/observe/metrics/monitor.h>

#include "tests/unit/observe/exposition_parser.h"
#include "tests/unit/observe/full_status.h"
#include "tests/unit/observe/http_client.h"

namespace stormo::observe {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::unique_ptr<Monitor> start() {
  return Monitor::start({.address = {"127.0.0.1", 0}}, {.version = "0.1.0", .git = "abc"})
      .take_or_throw();
}

std::string address_of(const Monitor& monitor) {
  const std::string url = monitor.url();
  const std::size_t begin = std::string("http://").size();
  return url.substr(begin, url.find('/', begin) - begin);
}

TEST(Monitor, ShowsTheSameRunInAllPages) {
  const auto monitor = start();
  const std::string at = address_of(*monitor);
  EXPECT_EQ(test::body_of(test::get(at, "/healthz")), "starting\n");
  test::tell_all(monitor->observer());
  const std::string plain = test::get(at, "/metrics");
  EXPECT_THAT(plain, HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  EXPECT_NO_THROW(test::ExpositionParser::parse(test::body_of(plain), false));
  const std::string open =
      test::get(at, "/metrics", "Accept: application/openmetrics-text;version=1.0.0\r\n");
  EXPECT_THAT(open, HasSubstr("Content-Type: application/openmetrics-text; version=1.0.0;"));
  EXPECT_NO_THROW(test::ExpositionParser::parse(test::body_of(open), true));
  EXPECT_THAT(test::body_of(test::get(at, "/healthz")), StartsWith("training, step 12 of 100, "));
  EXPECT_EQ(test::body_of(test::get(at, "/")), "/metrics\n/json\n/end\n/healthz\n");
  EXPECT_THAT(test::get(at, "/metrics/"), StartsWith("HTTP/1.1 404 "));
}

TEST(Monitor, JsonHasTheNewestRecordOfEachKind) {
  const auto monitor = start();
  const std::string at = address_of(*monitor);
  const auto json = [&] { return nlohmann::json::parse(test::body_of(test::get(at, "/json"))); };
  EXPECT_EQ(json()["state"], "starting");
  EXPECT_TRUE(json()["records"].empty());
  test::tell_all(monitor->observer());
  StepRecord later = test::full_step();
  later.step = 13;
  later.rank_shares.clear();
  monitor->observer().on_progress(later);
  const nlohmann::json all = json();
  EXPECT_EQ(all["schema"], 1);
  EXPECT_EQ(all["state"], "training");
  EXPECT_LT(all["last_step_s"].get<double>(), all["running_s"].get<double>() + 1e-3);
  std::vector<std::string> events;
  for (const auto& record : all["records"]) events.push_back(record["event"]);
  EXPECT_EQ(events, (std::vector<std::string>{"start", "step", "step", "eval", "save_failed",
                                              "warning", "slow_rank", "slow_rank"}));
  EXPECT_EQ(all["records"][1]["rank_shares"].size(), 2u);
  EXPECT_EQ(all["records"][2]["step"], 13);
  EXPECT_EQ(all["records"][3]["loss"], 2);
  EXPECT_EQ(all["records"][6]["rank"], 1);
  EXPECT_EQ(all["records"][7]["part"], "link");
}

TEST(Monitor, JsonHasTheRanksOfTheHost) {
  const auto monitor =
      Monitor::start({.address = {"127.0.0.1", 0}}, {.version = "0.1.0", .git = "abc"}, [] {
        return std::vector<RankProcess>{
            {.rank = 2, .host = "b", .state = "running", .memory_bytes = 7},
            {.rank = 3, .host = "a\"b", .state = "stopped", .memory_bytes = 1u << 20}};
      }).take_or_throw();
  const auto all = nlohmann::json::parse(test::body_of(test::get(address_of(*monitor), "/json")));
  EXPECT_EQ(all["version"], "0.1.0");
  EXPECT_EQ(all["ranks"], nlohmann::json::parse(R"([{"rank": 2, "host": "b",
                                                     "state": "running", "memory_bytes": 7},
                                                    {"rank": 3, "host": "a\"b",
                                                     "state": "stopped", "memory_bytes": 1048576}])"));
}

TEST(Monitor, TheEndIsShownToWhoWaitsForIt) {
  auto monitor = start();
  const test::Client client(address_of(*monitor));
  client.send("GET /end HTTP/1.0\r\n\r\n");
  test::get(address_of(*monitor), "/healthz");  // the server has both
  monitor->observer().on_error({.exit_code = 1, .message = "rank 1 was lost"});
  monitor.reset();
  const auto all = nlohmann::json::parse(test::body_of(client.rest()));
  EXPECT_EQ(all["state"], "failed");
  EXPECT_EQ(all["records"][0]["message"], "rank 1 was lost");
}

TEST(Monitor, HealthSaysHowTheRunEnded) {
  const auto done = start(), interrupted = start(), failed = start();
  done->observer().on_end({.steps = 5});
  interrupted->observer().on_end({.steps = 5, .interrupted = true});
  failed->observer().on_error({.exit_code = 1, .message = "rank 1 was lost"});
  EXPECT_THAT(test::get(address_of(*done), "/healthz"), StartsWith("HTTP/1.1 200 "));
  EXPECT_EQ(test::body_of(test::get(address_of(*done), "/healthz")), "done\n");
  EXPECT_EQ(test::body_of(test::get(address_of(*interrupted), "/healthz")), "interrupted\n");
  const std::string answer = test::get(address_of(*failed), "/healthz");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 503 "));
  EXPECT_EQ(test::body_of(answer), "failed\n");
  EXPECT_THAT(test::get(address_of(*failed), "/json"), HasSubstr("rank 1 was lost"));
}

TEST(Monitor, ReadersAndTrainingMeetInNoOrder) {
  const auto monitor = start();
  std::atomic<bool> stop = false;
  std::thread reader([&] {
    while (!stop) test::get(address_of(*monitor), "/metrics");
  });
  for (int i = 0; i < 300; ++i) test::tell_all(monitor->observer());
  stop = true;
  reader.join();
  const auto families = test::ExpositionParser::parse(
      test::body_of(test::get(address_of(*monitor), "/metrics")), false);
  EXPECT_GE(
      families.at("stormo_warnings_total").samples.at("stormo_warnings_total{kind=\"loss_grown\"}"),
      299);  // the last record may come in the moment of a read
}

}  // namespace
}  // namespace stormo::observe
