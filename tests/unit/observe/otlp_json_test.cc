// Names of fields, and which numbers are texts: opentelemetry-proto 1.x and the OTLP specification,
// "JSON Protobuf Encoding".
#include <stormo/observe/otlp/otlp_json.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "tests/unit/observe/full_status.h"

namespace stormo::observe {
namespace {

using nlohmann::json;
using std::chrono::seconds;
using ::testing::HasSubstr;

const BuildFacts kBuild{.version = "0.1.0", .git = "abc"};
const OtlpAttributes kResource = {{"service.name", "stormo"}, {"host.name", "a"}};
const std::chrono::system_clock::time_point kNow{seconds(2'000'000'000)};

json metrics_of(const StatusObserver& observer) {
  const auto run = observer.status();
  const CostRecord cost = test::full_cost();
  return json::parse(
      otlp_metrics({*run, kBuild, std::chrono::steady_clock::now(), &cost}, kResource, kNow));
}

/// By name, of the one scope of the one resource.
std::map<std::string, json> by_name(const json& body) {
  EXPECT_EQ(body["resourceMetrics"].size(), 1u);
  const json& scopes = body["resourceMetrics"][0]["scopeMetrics"];
  EXPECT_EQ(scopes.size(), 1u);
  EXPECT_EQ(scopes[0]["scope"], (json{{"name", "stormo"}, {"version", "0.1.0"}}));
  std::map<std::string, json> out;
  for (const json& metric : scopes[0]["metrics"]) out[metric["name"]] = metric;
  return out;
}

/// All names of fields, at whatever depth; not those of a user's attributes, which are values.
void collect_keys(const json& value, std::set<std::string>& keys) {
  if (value.is_object()) {
    for (const auto& [key, v] : value.items()) {
      keys.insert(key);
      collect_keys(v, keys);
    }
  } else if (value.is_array()) {
    for (const json& v : value) collect_keys(v, keys);
  }
}

TEST(OtlpMetrics, EveryMetricOfTheTableIsThere) {
  StatusObserver observer;
  test::tell_all(observer);
  const auto metrics = by_name(metrics_of(observer));
  EXPECT_EQ(metrics.size(), metric_table().size());
  for (const MetricRow& row : metric_table()) {
    ASSERT_TRUE(metrics.contains(std::string(row.name))) << row.name;
    EXPECT_EQ(metrics.at(std::string(row.name))["description"], row.help);
  }
}

TEST(OtlpMetrics, FieldsAreThoseOfTheProtocol) {
  StatusObserver observer;
  test::tell_all(observer);
  const json body = metrics_of(observer);
  std::set<std::string> keys;
  collect_keys(body, keys);
  const std::set<std::string> known = {"resourceMetrics",
                                       "resource",
                                       "attributes",
                                       "key",
                                       "value",
                                       "stringValue",
                                       "scopeMetrics",
                                       "scope",
                                       "name",
                                       "version",
                                       "metrics",
                                       "description",
                                       "unit",
                                       "gauge",
                                       "sum",
                                       "histogram",
                                       "dataPoints",
                                       "timeUnixNano",
                                       "startTimeUnixNano",
                                       "asDouble",
                                       "count",
                                       "bucketCounts",
                                       "explicitBounds",
                                       "aggregationTemporality",
                                       "isMonotonic"};
  EXPECT_EQ(keys, known);
  EXPECT_EQ(body["resourceMetrics"][0]["resource"]["attributes"][0],
            json::parse(R"({"key": "service.name", "value": {"stringValue": "stormo"}})"));
}

TEST(OtlpMetrics, KindsAndNumbersAreThoseOfTheProtocol) {
  StatusObserver observer;
  test::tell_all(observer);
  const auto metrics = by_name(metrics_of(observer));
  const json& steps = metrics.at("stormo_steps_total");
  EXPECT_EQ(steps["unit"], "1");
  EXPECT_EQ(steps["sum"]["aggregationTemporality"], 2);  // cumulative
  EXPECT_EQ(steps["sum"]["isMonotonic"], true);
  const json& point = steps["sum"]["dataPoints"][0];
  EXPECT_EQ(point["asDouble"], 12);
  EXPECT_EQ(point["timeUnixNano"], "2000000000000000000");
  EXPECT_TRUE(point["startTimeUnixNano"].is_string());

  const json& loss = metrics.at("stormo_loss");
  EXPECT_EQ(loss["gauge"]["dataPoints"][0]["asDouble"], 1.25);
  EXPECT_FALSE(loss["gauge"]["dataPoints"][0].contains("startTimeUnixNano"));
  EXPECT_EQ(metrics.at("stormo_wire_bytes_total")["unit"], "By");
  EXPECT_EQ(metrics.at("stormo_phase_seconds_total")["unit"], "s");
  EXPECT_EQ(metrics.at("stormo_energy_joules_total")["unit"], "J");
  EXPECT_EQ(metrics.at("stormo_ranks")["gauge"]["dataPoints"][0]["attributes"],
            json::parse(R"([{"key": "state", "value": {"stringValue": "active"}}])"));

  const json& times = metrics.at("stormo_step_duration_seconds")["histogram"];
  EXPECT_EQ(times["aggregationTemporality"], 2);
  const json& bins = times["dataPoints"][0];
  EXPECT_EQ(bins["count"], "4");
  EXPECT_EQ(bins["bucketCounts"].size(), bins["explicitBounds"].size() + 1);
  EXPECT_EQ(bins["bucketCounts"][3], "0");
  EXPECT_EQ(bins["bucketCounts"][4], "1");  // up to 2.5 ms
  EXPECT_EQ(bins["explicitBounds"][4], 0.0025);
  EXPECT_DOUBLE_EQ(bins["sum"].get<double>(), 0.002 + 0.8 + 500);
}

TEST(OtlpMetrics, WhatIsNoNumberIsAText) {
  StatusObserver observer;
  StepRecord step = test::full_step();
  step.loss = std::numeric_limits<double>::quiet_NaN();
  step.gradient_norm = std::numeric_limits<double>::infinity();
  observer.on_step(step);
  const auto metrics = by_name(metrics_of(observer));
  EXPECT_EQ(metrics.at("stormo_loss")["gauge"]["dataPoints"][0]["asDouble"], "NaN");
  EXPECT_EQ(metrics.at("stormo_gradient_norm")["gauge"]["dataPoints"][0]["asDouble"], "Infinity");
  EXPECT_FALSE(metrics.contains("stormo_ranks"));  // has no value
}

TEST(OtlpLogs, AnEventIsARecord) {
  const std::vector<OtlpEvent> events = {
      {kNow, R"({"event":"warning","kind":"loss_grown","step":12,"message":"the loss has grown"})"},
      {kNow, R"({"event":"eval","loss":0.5,"accuracy":null,"classes":["a"],"interrupted":false})"},
      {kNow, R"({"event":"error","exit_code":1,"message":"gone"})"}};
  const json body = json::parse(otlp_logs(events, kBuild, kResource));
  const json& records = body["resourceLogs"][0]["scopeLogs"][0]["logRecords"];
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0], json::parse(R"({
    "timeUnixNano": "2000000000000000000", "observedTimeUnixNano": "2000000000000000000",
    "severityNumber": 13, "severityText": "WARN", "eventName": "stormo.warning",
    "body": {"stringValue": "the loss has grown"},
    "attributes": [{"key": "kind", "value": {"stringValue": "loss_grown"}},
                   {"key": "message", "value": {"stringValue": "the loss has grown"}},
                   {"key": "step", "value": {"intValue": "12"}}]})"));
  EXPECT_EQ(records[1]["severityNumber"], 9);
  EXPECT_EQ(records[1]["body"]["stringValue"], "eval");
  EXPECT_EQ(records[1]["attributes"], json::parse(R"([
    {"key": "classes", "value": {"arrayValue": {"values": [{"stringValue": "a"}]}}},
    {"key": "interrupted", "value": {"boolValue": false}},
    {"key": "loss", "value": {"doubleValue": 0.5}}])"));
  EXPECT_EQ(records[2]["severityNumber"], 17);
}

TEST(OtlpAnswer, SaysWhatWasNotTaken) {
  EXPECT_EQ(otlp_rejection(""), OtlpRejection{});
  EXPECT_EQ(otlp_rejection("{}"), OtlpRejection{});
  EXPECT_EQ(otlp_rejection("<html>"), OtlpRejection{});
  EXPECT_EQ(otlp_rejection(std::string(10000, '[')), OtlpRejection{});
  EXPECT_EQ(
      otlp_rejection(R"({"partialSuccess":{"rejectedLogRecords":"3","errorMessage":"too old"}})"),
      (OtlpRejection{3, "too old"}));
  EXPECT_EQ(otlp_rejection(R"({"partialSuccess":{"rejectedDataPoints":2}})"),
            (OtlpRejection{2, ""}));
}

TEST(OtlpAttributes, AreReadAsTheVariablesHaveThem) {
  EXPECT_EQ(parse_otlp_attributes("").value(), OtlpAttributes{});
  EXPECT_EQ(parse_otlp_attributes("a=b").value(), (OtlpAttributes{{"a", "b"}}));
  EXPECT_EQ(parse_otlp_attributes("Authorization=Basic%20eA==, x = ,").value(),
            (OtlpAttributes{{"Authorization", "Basic eA=="}, {"x", ""}}));
  for (const char* wrong : {"a", "=b", "a=%", "a=%4", "a=%zz"}) {
    const auto read = parse_otlp_attributes(wrong);
    ASSERT_FALSE(read.ok()) << wrong;
    EXPECT_EQ(read.status().code(), Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace stormo::observe
