#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/observe/cost.h>
#include <stormo/observe/metrics/run_status.h>

namespace stormo::observe {

/// The build that runs.
struct BuildFacts {
  std::string version{};
  std::string git{};
};

enum class MetricKind : std::uint8_t { kCounter, kGauge, kHistogram, kInfo };

/// What a metric says at a moment: a value for each set of labels; of a histogram its times.
struct MetricValues {
  struct Sample {
    std::vector<std::pair<std::string_view, std::string>> labels;
    double value = 0;
  };
  std::vector<Sample> samples{};
  const StepTimes* times = nullptr;

  void add(double value) { samples.push_back({{}, value}); }
  void add(std::string_view label, std::string text, double value) {
    samples.push_back({{{label, std::move(text)}}, value});
  }
};

/// What metrics are made of.
struct MetricInput {
  const RunStatus& run;
  const BuildFacts& build;
  TimePoint now;
  const CostRecord* cost = nullptr;  ///< null: it is not measured
};

/// One metric that a run can show. `values` adds nothing when it is not known.
struct MetricRow {
  std::string_view name{};  ///< of its samples, with "_total" of a counter and "_info" of an info
  MetricKind kind = MetricKind::kGauge;
  std::string_view unit{};  ///< "seconds", "bytes", "ratio": the end of the name, before "_total"
  std::string_view help{};
  void (*values)(const MetricInput& input, MetricValues& out) = nullptr;
};

/// All metrics, in the order in which they are shown.
std::span<const MetricRow> metric_table();

}  // namespace stormo::observe
