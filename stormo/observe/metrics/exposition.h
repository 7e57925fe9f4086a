#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <stormo/observe/metrics/metric_table.h>

namespace stormo::observe {

/// The text forms that monitoring systems read: of Prometheus (0.0.4), and OpenMetrics 1.0.
enum class MetricFormat : std::uint8_t { kPrometheus, kOpenMetrics };

std::string_view content_type_of(MetricFormat format);

/// The one that a header `Accept` prefers; kPrometheus without one.
MetricFormat format_for(std::string_view accept);

/// All metrics that have values.
std::string metrics_text(const MetricInput& input, MetricFormat format);

}  // namespace stormo::observe
