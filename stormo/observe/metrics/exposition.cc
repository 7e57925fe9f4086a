#include <stormo/observe/metrics/exposition.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include <stormo/base/printable.h>
#include <stormo/base/text.h>

namespace stormo::observe {
namespace {

using Labels = std::span<const std::pair<std::string_view, std::string>>;

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : printable_line(text)) {
    if (c == '\\' || c == '"') out += '\\';
    out += c;
  }
  return out;
}

std::string labels_text(Labels labels) {
  std::string out;
  for (const auto& [name, value] : labels) {
    out += fmt::format("{}{}=\"{}\"", out.empty() ? "{" : ",", name, escaped(value));
  }
  return out.empty() ? out : out + "}";
}

std::string_view type_name(MetricKind kind, MetricFormat format) {
  switch (kind) {
    case MetricKind::kCounter: return "counter";
    case MetricKind::kGauge: return "gauge";
    case MetricKind::kHistogram: return "histogram";
    case MetricKind::kInfo: return format == MetricFormat::kOpenMetrics ? "info" : "gauge";
  }
  return "unknown";
}

/// OpenMetrics names a family without the ending of its samples.
std::string_view family_name(const MetricRow& row, MetricFormat format) {
  std::string_view name = row.name;
  if (format == MetricFormat::kPrometheus) return name;
  for (const std::string_view ending : {"_total", "_info"}) {
    if (name.ends_with(ending)) name.remove_suffix(ending.size());
  }
  return name;
}

/// Bounds are part of the identity of a bucket: both formats have the same, with a point.
std::string bound_text(double bound) {
  std::string out = fmt::format("{}", bound);
  return out.find_first_of(".e") == std::string::npos ? out + ".0" : out;
}

void add_histogram(std::string& out, std::string_view name, const StepTimes& times) {
  std::uint64_t so_far = 0;
  for (std::size_t i = 0; i < StepTimes::kBounds.size(); ++i) {
    so_far += times.counts[i];
    out +=
        fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name, bound_text(StepTimes::kBounds[i]), so_far);
  }
  out += fmt::format("{0}_bucket{{le=\"+Inf\"}} {1}\n{0}_sum {2}\n{0}_count {1}\n", name,
                     times.steps(), number(times.seconds));
}

/// "text/plain", and its weight: 1 unless "q=" says otherwise; 0 for a weight that is no number.
std::pair<std::string, double> media_range(std::string_view text) {
  const std::vector<std::string_view> parts = split(text, ';');
  const auto trimmed = [](std::string_view part) {
    const std::size_t first = std::min(part.find_first_not_of(" \t"), part.size());
    part.remove_prefix(first);
    return part.substr(0, part.find_last_not_of(" \t") + 1);
  };
  double weight = 1;
  for (std::string_view part : parts) {
    part = trimmed(part);
    if (part.starts_with("q=")) weight = number_in<double>(part.substr(2)).value_or(0);
  }
  return {lower_case(trimmed(parts.empty() ? "" : parts.front())), weight};
}

}  // namespace

std::string_view content_type_of(MetricFormat format) {
  return format == MetricFormat::kOpenMetrics
             ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
             : "text/plain; version=0.0.4; charset=utf-8";
}

MetricFormat format_for(std::string_view accept) {
  double open_metrics = 0, plain = 0;
  for (const std::string_view range : split(accept, ',')) {
    const auto [type, weight] = media_range(range);
    if (type == "application/openmetrics-text") open_metrics = std::max(open_metrics, weight);
    if (type == "text/plain") plain = std::max(plain, weight);
  }
  return open_metrics > 0 && open_metrics >= plain ? MetricFormat::kOpenMetrics
                                                   : MetricFormat::kPrometheus;
}

std::string metrics_text(const MetricInput& input, MetricFormat format) {
  std::string out;
  for (const MetricRow& row : metric_table()) {
    MetricValues values;
    row.values(input, values);
    if (values.samples.empty() && values.times == nullptr) continue;
    const std::string_view family = family_name(row, format);
    out += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", family, row.help,
                       type_name(row.kind, format));
    const bool has_unit = format == MetricFormat::kOpenMetrics && !row.unit.empty();
    if (has_unit) out += fmt::format("# UNIT {} {}\n", family, row.unit);
    for (const auto& sample : values.samples) {
      out += fmt::format("{}{} {}\n", row.name, labels_text(sample.labels), number(sample.value));
    }
    if (values.times != nullptr) add_histogram(out, row.name, *values.times);
  }
  if (format == MetricFormat::kOpenMetrics) out += "# EOF\n";
  return out;
}

}  // namespace stormo::observe
