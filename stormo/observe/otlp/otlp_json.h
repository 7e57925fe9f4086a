#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/observe/metrics/metric_table.h>

namespace stormo::observe {

/// Name and value of what is said about who sends: "service.name", "host.name".
using OtlpAttributes = std::vector<std::pair<std::string, std::string>>;

/// A record of a run, as a line of JsonObserver.
struct OtlpEvent {
  std::chrono::system_clock::time_point when{};
  std::string line{};
  bool operator==(const OtlpEvent&) const = default;
};

// Bodies of requests of OTLP 1.x over HTTP, in JSON (opentelemetry.io/docs/specs/otlp).

/// Of /v1/metrics: all metrics that have values. Those that count do so since the start of the run.
std::string otlp_metrics(const MetricInput& input, const OtlpAttributes& resource,
                         std::chrono::system_clock::time_point now);
/// Of /v1/logs: one record each.
std::string otlp_logs(std::span<const OtlpEvent> events, const BuildFacts& build,
                      const OtlpAttributes& resource);

/// What an answer of 200 says was not taken ("partialSuccess"); zero and empty: all was.
struct OtlpRejection {
  std::int64_t count = 0;
  std::string message{};
  bool operator==(const OtlpRejection&) const = default;
};
OtlpRejection otlp_rejection(std::string_view answer);

/// "key=value,other=a%20b", the form of OTEL_RESOURCE_ATTRIBUTES and OTEL_EXPORTER_OTLP_HEADERS.
/// kInvalidArgument for an item without '=' or with a '%' that is no escape.
Result<OtlpAttributes> parse_otlp_attributes(std::string_view text);

}  // namespace stormo::observe
