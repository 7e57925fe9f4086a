#include <stormo/observe/otlp/otlp_exporter.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/observe/full_status.h"

namespace stormo::observe {
namespace {

using http::HttpAnswer;
using http::HttpRequest;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace std::chrono_literals;

constexpr Duration kLong = 30s;

HttpAnswer answer(int code, std::string body = "{}") {
  HttpAnswer out;
  out.code = code;
  out.body = std::move(body);
  return out;
}

/// A collector that answers as the test says, and keeps what it was sent.
class Collector {
 public:
  using Answer = std::function<HttpAnswer(const HttpRequest& request)>;
  explicit Collector(Answer how) : answer_(std::move(how)) {}

  OtlpExporter::Options options(Duration interval = 1h) {
    OtlpExporter::Options out;
    out.endpoint = "http://collector:4318";
    out.interval = interval;
    out.post = [this](const HttpRequest& r, Duration, const std::atomic<bool>*) {
      {
        const std::lock_guard lock(mutex_);
        requests_.push_back(r);
      }
      changed_.notify_all();
      return answer_(r);
    };
    out.on_failure = [this](std::string_view text) {
      const std::lock_guard lock(mutex_);
      failures_.emplace_back(text);
    };
    return out;
  }
  /// Until it was sent so many requests to `path`.
  bool wait_for(const std::string& path, std::size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kLong, [&] { return count_of(path) >= count; });
  }
  std::vector<std::string> events() {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> out;
    for (const HttpRequest& r : requests_) {
      if (!r.url.ends_with("/v1/logs")) continue;
      const json body = json::parse(r.body);
      for (const json& record : body["resourceLogs"][0]["scopeLogs"][0]["logRecords"])
        out.push_back(record["eventName"]);
    }
    return out;
  }
  std::vector<std::string> failures() {
    const std::lock_guard lock(mutex_);
    return failures_;
  }
  std::size_t requests(const std::string& path) {
    const std::lock_guard lock(mutex_);
    return count_of(path);
  }

 private:
  std::size_t count_of(const std::string& path) const {
    std::size_t count = 0;
    for (const HttpRequest& r : requests_)
      count += r.url == "http://collector:4318" + path ? 1u : 0u;
    return count;
  }
  const Answer answer_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<HttpRequest> requests_;
  std::vector<std::string> failures_;
};

TEST(Otlp, EventsAreSentAtOnceAndMetricsAtTheEnd) {
  Collector collector([](const HttpRequest&) { return answer(200); });
  OtlpExporter exporter(collector.options());
  test::tell_all(exporter);
  ASSERT_TRUE(collector.wait_for("/v1/logs", 1));
  exporter.on_end({.steps = 12});
  EXPECT_EQ(exporter.finish(Deadline::after(kLong)), 0);
  EXPECT_THAT(collector.events(),
              ElementsAre("stormo.start", "stormo.eval", "stormo.eval", "stormo.save_failed",
                          "stormo.warning", "stormo.end"));
  EXPECT_EQ(collector.requests("/v1/metrics"), 1u);
  EXPECT_THAT(collector.failures(), IsEmpty());
}

TEST(Otlp, MetricsAreSentAgainAndAgain) {
  Collector collector([](const HttpRequest&) { return answer(200); });
  OtlpExporter exporter(collector.options(1ms));
  EXPECT_TRUE(collector.wait_for("/v1/metrics", 3));
}

TEST(Otlp, ACollectorThatIsAwayLosesCountedEventsAndIsToldOnceOnly) {
  Collector collector(
      [](const HttpRequest&) { return HttpAnswer{.exchange = io_error("refused")}; });
  OtlpExporter exporter(collector.options());
  const auto more = static_cast<std::int64_t>(OtlpExporter::kMostEvents) + 10;
  for (std::int64_t i = 0; i < more; ++i) exporter.on_eval({.split = "test", .step = i});
  EXPECT_EQ(exporter.finish(Deadline::after(kLong)), more);
  // of events, and of metrics at the end
  for (const std::string& line : collector.failures()) EXPECT_THAT(line, HasSubstr("refused"));
  EXPECT_LE(collector.failures().size(), 2u);
}

TEST(Otlp, WhatIsRefusedIsNotSentAgain) {
  Collector collector([](const HttpRequest&) { return answer(400); });
  OtlpExporter exporter(collector.options());
  exporter.on_warning({.kind = "loss_grown"});
  ASSERT_TRUE(collector.wait_for("/v1/logs", 1));
  EXPECT_EQ(exporter.finish(Deadline::after(kLong)), 1);
  EXPECT_EQ(collector.requests("/v1/logs"), 1u);
}

TEST(Otlp, WhatMayBeSentAgainIs) {
  std::atomic<int> asked = 0;
  Collector collector([&asked](const HttpRequest& r) {
    if (!r.url.ends_with("/v1/logs") || ++asked > 1) return answer(200);
    HttpAnswer busy = answer(503);
    busy.retry_after = 1ms;
    return busy;
  });
  OtlpExporter exporter(collector.options());
  exporter.on_warning({.kind = "loss_grown"});
  EXPECT_TRUE(collector.wait_for("/v1/logs", 2));
  EXPECT_EQ(exporter.finish(Deadline::after(kLong)), 0);
}

TEST(Otlp, WhatACollectorDoesNotTakeIsCounted) {
  Collector collector([](const HttpRequest& r) {
    return r.url.ends_with("/v1/logs")
               ? answer(200,
                        R"({"partialSuccess":{"rejectedLogRecords":"1","errorMessage":"old"}})")
               : answer(200);
  });
  OtlpExporter exporter(collector.options());
  exporter.on_warning({.kind = "loss_grown"});
  EXPECT_EQ(exporter.finish(Deadline::after(kLong)), 1);
  EXPECT_THAT(collector.failures(), ElementsAre(HasSubstr("did not take 1 of what was sent: old")));
}

/// Records are left while a request hangs, and the end does not wait for it.
TEST(Otlp, ACollectorThatHangsHoldsUpNobody) {
  std::mutex mutex;
  std::condition_variable changed;
  bool released = false;
  Collector collector([&](const HttpRequest&) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return released; });
    return HttpAnswer{.exchange = Status(Code::kCancelled, "given up")};
  });
  OtlpExporter exporter(collector.options());
  exporter.on_warning({.kind = "loss_grown"});
  ASSERT_TRUE(collector.wait_for("/v1/logs", 1));
  exporter.on_warning({.kind = "at_chance"});
  EXPECT_EQ(exporter.finish(Deadline::after(1ms)), 2);
  {
    const std::lock_guard lock(mutex);
    released = true;
  }
  changed.notify_all();
}

TEST(OtlpVerdict, FollowsTheSpecification) {
  for (const int code : {200, 202, 204}) EXPECT_EQ(verdict_of(answer(code)), OtlpVerdict::kDone);
  for (const int code : {429, 502, 503, 504})
    EXPECT_EQ(verdict_of(answer(code)), OtlpVerdict::kAgain);
  for (const int code : {301, 400, 401, 404, 413, 500, 501})
    EXPECT_EQ(verdict_of(answer(code)), OtlpVerdict::kRefused);
  EXPECT_EQ(verdict_of({.exchange = io_error("no route")}), OtlpVerdict::kAgain);
}

TEST(OtlpPause, IsWhatTheCollectorAsksForOrGrows) {
  EXPECT_EQ(pause_after(1, 7s), Duration(7s));
  EXPECT_EQ(pause_after(1, 0s), Duration(1s));
  EXPECT_EQ(pause_after(2, 0s), Duration(2s));
  EXPECT_EQ(pause_after(6, 0s), Duration(32s));
  EXPECT_EQ(pause_after(7, 0s), Duration(60s));
  EXPECT_EQ(pause_after(1'000'000, 0s), Duration(60s));
}

}  // namespace
}  // namespace stormo::observe
