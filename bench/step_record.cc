#include <bench/step_record.h>

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include <bench/record_lines.h>

namespace stormo::bench {

std::string to_json(const StepRecord& r) {
  const nlohmann::ordered_json line = {{"rank", r.rank},
                                       {"host", r.host},
                                       {"p50_s", r.p50_s},
                                       {"p90_s", r.p90_s},
                                       {"steps", r.steps},
                                       {"pss", r.pss},
                                       {"peak_rss", r.peak_rss},
                                       {"first_loss", r.first_loss},
                                       {"compared_loss", r.compared_loss},
                                       {"last_loss", r.last_loss}};
  return line.dump();
}

Result<std::vector<StepRecord>> parse_step_records(std::string_view text) {
  std::vector<StepRecord> out;
  for (const std::string_view line : record_lines(text)) {
    // a loss that is not finite is null in JSON
    const auto loss = [](const nlohmann::json& value) {
      return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
    };
    const auto in = nlohmann::json::parse(line, nullptr, false);
    try {
      out.push_back({.rank = in.at("rank"),
                     .host = in.at("host"),
                     .p50_s = in.at("p50_s"),
                     .p90_s = in.at("p90_s"),
                     .steps = in.at("steps"),
                     .pss = in.at("pss"),
                     .peak_rss = in.at("peak_rss"),
                     .first_loss = loss(in.at("first_loss")),
                     .compared_loss = loss(in.at("compared_loss")),
                     .last_loss = loss(in.at("last_loss"))});
    } catch (const nlohmann::json::exception&) {
      return Status(Code::kCorrupt, fmt::format("not a record of training steps: {}", line));
    }
  }
  std::sort(out.begin(), out.end(),
            [](const StepRecord& a, const StepRecord& b) { return a.rank < b.rank; });
  return out;
}

}  // namespace stormo::bench
