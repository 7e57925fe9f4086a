#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <vector>

#include <stormo/base/rng.h>
#include <stormo/observe/trace.h>
#include <stormo/observe/trace_sink.h>

namespace stormo::observe {
namespace {

Event event(Lane lane, std::string_view name, std::int64_t start_ns, std::int64_t end_ns) {
  return {.lane = lane,
          .name = name,
          .step = 2,
          .bytes = 64,
          .start = TimePoint(Duration(start_ns)),
          .end = TimePoint(Duration(end_ns))};
}

RankTrace two_events(Rank rank) {
  return {.rank = rank,
          .host = "h" + std::to_string(rank),
          .begin = {0, 1000 * rank},
          .end = {13000, 3000 * rank},
          .dropped = static_cast<std::uint64_t>(rank),
          .names = {"forward", "all_reduce \"x\""},
          .events = {{Lane::kCompute, 0, 7, 0, 3, 2, 5000, 1500},
                     {Lane::kWait, 1, -1, 9, -1, -1, 6500, 1}}};
}

TEST(RankTrace, RoundTripsThroughBytes) {
  for (const Rank rank : {0, 1, 1023}) {
    const Result<RankTrace> parsed = parse_rank_trace(serialize(two_events(rank)));
    ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
    EXPECT_EQ(*parsed, two_events(rank));
  }
  const Result<RankTrace> empty = parse_rank_trace(serialize(RankTrace{}));
  ASSERT_TRUE(empty.ok());
  EXPECT_EQ(*empty, RankTrace{});
}

TEST(RankTrace, RefusesEveryTruncationAndExtension) {
  const std::string whole = serialize(two_events(3));
  for (std::size_t n = 0; n < whole.size(); ++n) {
    EXPECT_EQ(parse_rank_trace(whole.substr(0, n)).status().code(), Code::kCorrupt) << n;
  }
  EXPECT_FALSE(parse_rank_trace(whole + "x").ok());
}

TEST(RankTrace, SurvivesMutatedBytes) {
  const std::string whole = serialize(two_events(3));
  Rng rng(1, "trace mutations");
  for (int i = 0; i < 5000; ++i) {
    std::string bytes = whole;
    for (std::uint64_t k = 0; k <= rng.below(4); ++k) {
      bytes[rng.below(bytes.size())] = static_cast<char>(rng.next_u32());
    }
    const Result<RankTrace> parsed = parse_rank_trace(bytes);
    if (!parsed.ok()) continue;
    std::ostringstream out;
    write_chrome_trace(out, std::span(&*parsed, 1));
    EXPECT_TRUE(nlohmann::json::accept(out.str()));
  }
}

TEST(ChromeTrace, PutsRanksAndLanesOnOneTimeAxis) {
  const std::vector<RankTrace> traces = {two_events(0), two_events(1)};
  std::ostringstream out;
  write_chrome_trace(out, traces);
  const nlohmann::json trace = nlohmann::json::parse(out.str());
  EXPECT_EQ(trace["otherData"]["dropped_events"], 1);
  std::vector<nlohmann::json> complete;
  int metadata = 0;
  for (const nlohmann::json& e : trace["traceEvents"]) {
    if (e["ph"] == "X") complete.push_back(e);
    if (e["ph"] == "M") ++metadata;
  }
  EXPECT_EQ(metadata, 2 * (2 + 2 * kNumLanes));
  ASSERT_EQ(complete.size(), 4u);
  EXPECT_EQ(complete[0], nlohmann::json::parse(
                             R"({"ph":"X","pid":0,"tid":0,"cat":"compute","name":"forward",
                                 "ts":0.0,"dur":1.5,
                                 "args":{"step":7,"bytes":0,"weights":3,"staleness":2}})"));
  EXPECT_EQ(complete[1]["args"].size(), 2u) << complete[1];
  // Rank 0's clock was 1 us ahead of rank 1's, and is 2 us ahead at the event, 6.5 us later.
  EXPECT_EQ(complete[3]["pid"], 1);
  EXPECT_EQ(complete[3]["tid"], static_cast<int>(Lane::kWait));
  EXPECT_EQ(complete[3]["ts"], 3.5);
  EXPECT_EQ(complete[3]["dur"], 0.001);
  EXPECT_EQ(complete[3]["name"], "all_reduce \"x\"");
}

TEST(ChromeTrace, NamesRanksLanesAndHosts) {
  std::ostringstream out;
  const RankTrace trace{.rank = 5, .host = "node-a"};
  write_chrome_trace(out, std::span(&trace, 1));
  EXPECT_NE(out.str().find(R"("name":"rank 5 on node-a")"), std::string::npos);
  for (const char* lane : {"compute", "communication", "wait", "data"}) {
    EXPECT_NE(out.str().find(std::string(R"("args":{"name":")") + lane), std::string::npos);
  }
}

TEST(TraceSink, KeepsTheNewestEventsAndCountsTheRest) {
  TraceSink sink(1, "h", 4);
  for (int i = 0; i < 10; ++i) sink.record(event(Lane::kCompute, "forward", i, i + 1));
  const RankTrace trace = sink.snapshot();
  EXPECT_EQ(trace.dropped, 6u);
  ASSERT_EQ(trace.events.size(), 4u);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(trace.events[i].start_ns, 6 + i);
}

TEST(TraceSink, StoresEachNameOnceAndNotTheirAddress) {
  TraceSink sink(0, "h");
  std::string name = "all_reduce";
  sink.record(event(Lane::kCommunication, name, 0, 10));
  name.assign("xxxxxxxxxx");
  sink.record(event(Lane::kCommunication, "all_reduce", 10, 30));
  const RankTrace trace = sink.snapshot();
  EXPECT_EQ(trace.names, std::vector<std::string>{"all_reduce"});
  EXPECT_EQ(trace.events[1].duration_ns, 20);
  EXPECT_EQ(trace.events[1].bytes, 64u);
  EXPECT_EQ(trace.events[1].step, 2);
}

TEST(TraceSink, BoundsTheNumberOfNames) {
  TraceSink sink(0, "h");
  for (int i = 0; i < 10000; ++i) {
    sink.record(event(Lane::kData, "name " + std::to_string(i), i, i));
  }
  const RankTrace trace = sink.snapshot();
  EXPECT_LE(trace.names.size(), 4096u);
  EXPECT_EQ(trace.events.size(), 10000u);
  for (const TraceEvent& e : trace.events) EXPECT_LT(e.name, trace.names.size());
  EXPECT_EQ(trace.names[trace.events.back().name], "other");
}

TEST(TraceSink, TakesEventsFromManyThreads) {
  TraceSink sink(0, "h");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&sink] {
      for (int i = 0; i < 1000; ++i) sink.record(event(Lane::kWait, "wait", i, i + 1));
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(sink.snapshot().events.size(), 4000u);
}

}  // namespace
}  // namespace stormo::observe
