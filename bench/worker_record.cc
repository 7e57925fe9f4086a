#include <bench/worker_record.h>

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include <bench/record_lines.h>

namespace stormo::bench {

std::string to_json(const WorkerRecord& r) {
  const nlohmann::ordered_json line = {{"worker", r.worker},         {"workers", r.workers},
                                       {"times", r.times},           {"losses", r.losses},
                                       {"first_loss", r.first_loss}, {"last_loss", r.last_loss}};
  return line.dump();
}

Result<std::vector<WorkerRecord>> parse_worker_records(std::string_view text) {
  std::vector<WorkerRecord> out;
  // a loss that is not finite is null in JSON
  const auto loss = [](const nlohmann::json& value) {
    return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
  };
  for (const std::string_view line : record_lines(text)) {
    const auto in = nlohmann::json::parse(line, nullptr, false);
    try {
      out.push_back({.worker = in.at("worker"),
                     .workers = in.at("workers"),
                     .times = in.at("times"),
                     .losses = {},
                     .first_loss = loss(in.at("first_loss")),
                     .last_loss = loss(in.at("last_loss"))});
      for (const auto& value : in.value("losses", nlohmann::json::array())) {
        out.back().losses.push_back(loss(value));
      }
    } catch (const nlohmann::json::exception&) {
      return Status(Code::kCorrupt, fmt::format("not a record of workers: {}", line));
    }
    if (out.back().times.size() < 2 || !std::ranges::is_sorted(out.back().times))
      return Status(Code::kCorrupt, fmt::format("not times of steps: {}", line));
    if (!out.back().losses.empty() && out.back().losses.size() != out.back().times.size())
      return Status(Code::kCorrupt, fmt::format("not a loss for each step: {}", line));
  }
  std::ranges::sort(out, {}, &WorkerRecord::worker);
  return out;
}

double steps_per_second(std::span<const WorkerRecord> records,
                        const std::function<bool(int worker)>& counts) {
  double begin = -std::numeric_limits<double>::infinity();
  double end = std::numeric_limits<double>::infinity();
  for (const WorkerRecord& r : records) {
    begin = std::max(begin, r.times.front());
    end = std::min(end, r.times.back());
  }
  if (begin >= end) return 0;
  std::ptrdiff_t steps = 0;
  for (const WorkerRecord& r : records) {
    if (!counts(r.worker)) continue;
    steps += std::ranges::upper_bound(r.times, end) - std::ranges::upper_bound(r.times, begin);
  }
  return static_cast<double>(steps) / (end - begin);
}

}  // namespace stormo::bench
