#include <stormo/observe/otlp/otlp_json.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include <stormo/base/json_depth.h>
#include <stormo/base/text.h>

namespace stormo::observe {
namespace {

using nlohmann::json;
using WallTime = std::chrono::system_clock::time_point;

// Numbers of enums: AggregationTemporality and SeverityNumber.
constexpr int kCumulative = 2;
constexpr int kInfo = 9, kWarn = 13, kError = 17;
constexpr const char* kScope = "stormo";

/// 64 bits are texts in JSON: programs that read numbers as double would lose digits.
template <class Number>
json whole(Number number) {
  return std::to_string(number);
}

json nanoseconds(WallTime when) {
  return whole(
      std::chrono::duration_cast<std::chrono::nanoseconds>(when.time_since_epoch()).count());
}

json number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

json attribute(std::string_view key, json value) {
  return {{"key", key}, {"value", std::move(value)}};
}

json text_value(std::string_view text) { return {{"stringValue", text}}; }

/// An AnyValue.
json any_value(const json& value) {
  switch (value.type()) {
    case json::value_t::string: return text_value(value.get<std::string>());
    case json::value_t::boolean: return {{"boolValue", value}};
    case json::value_t::number_integer: return {{"intValue", whole(value.get<std::int64_t>())}};
    case json::value_t::number_unsigned: {
      // an int64: what does not fit is a text
      const auto n = value.get<std::uint64_t>();
      return n >> 63 == 0 ? json{{"intValue", whole(n)}} : text_value(std::to_string(n));
    }
    case json::value_t::number_float: return {{"doubleValue", number(value.get<double>())}};
    case json::value_t::array: {
      json values = json::array();
      for (const json& v : value) values.push_back(any_value(v));
      return {{"arrayValue", {{"values", values}}}};
    }
    case json::value_t::object: {
      json values = json::array();
      for (const auto& [k, v] : value.items()) values.push_back(attribute(k, any_value(v)));
      return {{"kvlistValue", {{"values", values}}}};
    }
    default: return json::object();  // no value
  }
}

json resource_of(const OtlpAttributes& resource) {
  json attributes = json::array();
  for (const auto& [key, value] : resource) attributes.push_back(attribute(key, text_value(value)));
  return {{"attributes", attributes}};
}

json scope_of(const BuildFacts& build) { return {{"name", kScope}, {"version", build.version}}; }

/// Units as UCUM names them.
std::string_view unit_of(const MetricRow& row) {
  if (row.unit == "seconds") return "s";
  if (row.unit == "bytes") return "By";
  if (row.unit == "joules") return "J";
  return "1";
}

json labels(const MetricValues::Sample& sample) {
  json out = json::array();
  for (const auto& [key, value] : sample.labels) out.push_back(attribute(key, text_value(value)));
  return out;
}

json histogram_point(const StepTimes& times) {
  json counts = json::array();
  for (const std::uint64_t n : times.counts) counts.push_back(whole(n));
  return {{"count", whole(times.steps())},
          {"sum", number(times.seconds)},
          {"bucketCounts", counts},
          {"explicitBounds", StepTimes::kBounds}};
}

/// Null: it has no values.
json metric_of(const MetricRow& row, const MetricInput& input, WallTime now) {
  MetricValues values;
  row.values(input, values);
  json points = json::array();
  for (const auto& sample : values.samples)
    points.push_back({{"attributes", labels(sample)}, {"asDouble", number(sample.value)}});
  if (values.times != nullptr) points.push_back(histogram_point(*values.times));
  if (points.empty()) return {};
  const bool counts = row.kind == MetricKind::kCounter || row.kind == MetricKind::kHistogram;
  for (json& point : points) {
    point["timeUnixNano"] = nanoseconds(now);
    if (counts) point["startTimeUnixNano"] = nanoseconds(input.run.began);
  }
  json out = {{"name", row.name}, {"description", row.help}, {"unit", unit_of(row)}};
  json data = {{"dataPoints", points}};
  if (counts) data["aggregationTemporality"] = kCumulative;
  if (row.kind == MetricKind::kCounter) data["isMonotonic"] = true;
  const char* const kind = row.kind == MetricKind::kHistogram ? "histogram"
                           : row.kind == MetricKind::kCounter ? "sum"
                                                              : "gauge";
  out[kind] = std::move(data);
  return out;
}

std::pair<int, const char*> severity_of(const std::string& event) {
  if (event == "error") return {kError, "ERROR"};
  if (event == "warning" || event == "save_failed") return {kWarn, "WARN"};
  return {kInfo, "INFO"};
}

json log_of(const OtlpEvent& event) {
  json record = json::parse(event.line, nullptr, /*allow_exceptions=*/false);
  if (!record.is_object()) record = {{"event", "text"}, {"message", event.line}};
  const auto name = record.value("event", std::string("text"));
  const auto [severity, severity_text] = severity_of(name);
  json attributes = json::array();
  for (const auto& [key, value] : record.items())
    if (key != "event" && !value.is_null()) attributes.push_back(attribute(key, any_value(value)));
  const auto message = record.find("message");
  const bool says = message != record.end() && message->is_string();
  return {{"timeUnixNano", nanoseconds(event.when)},
          {"observedTimeUnixNano", nanoseconds(event.when)},
          {"severityNumber", severity},
          {"severityText", severity_text},
          {"eventName", fmt::format("{}.{}", kScope, name)},
          {"body", text_value(says ? message->get<std::string>() : name)},
          {"attributes", attributes}};
}

std::string text_of(const json& body) {
  return body.dump(-1, ' ', false, json::error_handler_t::replace);
}

/// A whole number, as JSON of OTLP has it: a text or a number.
std::int64_t whole_of(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return 0;
  if (found->is_number_integer()) return found->get<std::int64_t>();
  if (!found->is_string()) return 0;
  return number_in<std::int64_t>(found->get<std::string>()).value_or(0);
}

/// Without the escapes of URLs.
std::optional<std::string> unescaped(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    const auto code = number_in<unsigned>(text.substr(i + 1, 2), 16);
    if (!code || i + 2 >= text.size()) return std::nullopt;
    out += static_cast<char>(*code);
    i += 2;
  }
  return out;
}

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

}  // namespace

std::string otlp_metrics(const MetricInput& input, const OtlpAttributes& resource, WallTime now) {
  json metrics = json::array();
  for (const MetricRow& row : metric_table())
    if (json metric = metric_of(row, input, now); !metric.is_null())
      metrics.push_back(std::move(metric));
  const json scope = {{"scope", scope_of(input.build)}, {"metrics", metrics}};
  return text_of({{"resourceMetrics", json::array({{{"resource", resource_of(resource)},
                                                    {"scopeMetrics", json::array({scope})}}})}});
}

std::string otlp_logs(std::span<const OtlpEvent> events, const BuildFacts& build,
                      const OtlpAttributes& resource) {
  json records = json::array();
  for (const OtlpEvent& event : events) records.push_back(log_of(event));
  const json scope = {{"scope", scope_of(build)}, {"logRecords", records}};
  return text_of({{"resourceLogs", json::array({{{"resource", resource_of(resource)},
                                                 {"scopeLogs", json::array({scope})}}})}});
}

OtlpRejection otlp_rejection(std::string_view answer) {
  if (!json_nests_within(answer)) return {};
  const json parsed = json::parse(answer, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return {};
  const auto part = parsed.find("partialSuccess");
  if (part == parsed.end() || !part->is_object()) return {};
  OtlpRejection out;
  out.count = std::max<std::int64_t>(
      0, whole_of(*part, "rejectedDataPoints") + whole_of(*part, "rejectedLogRecords"));
  const auto message = part->find("errorMessage");
  if (message != part->end() && message->is_string()) out.message = message->get<std::string>();
  return out;
}

Result<OtlpAttributes> parse_otlp_attributes(std::string_view text) {
  OtlpAttributes out;
  for (const std::string_view item : split(text, ',')) {
    if (trimmed(item).empty()) continue;
    const std::size_t equal = item.find('=');
    const auto value =
        equal == std::string_view::npos ? std::nullopt : unescaped(trimmed(item.substr(equal + 1)));
    const std::string_view key = trimmed(item.substr(0, equal));
    // it may be a password
    if (!value || key.empty())
      return invalid_argument(
          "write key=value,key=value, with other characters as %20; one item "
          "is not so");
    out.emplace_back(key, *value);
  }
  return out;
}

}  // namespace stormo::observe
