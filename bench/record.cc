#include <bench/record.h>

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include <bench/step_record.h>
#include <bench/worker_record.h>

namespace stormo::bench {
namespace {

/// The records in `text`, one per line, each perhaps after a launcher's "[rank] ". `what`: for the
/// error about a line that is none; `read` may throw what its JSON throws.
template <class Record>
Result<std::vector<Record>> read_records(std::string_view text, std::string_view what,
                                         Record (*read)(const nlohmann::json& line)) {
  std::vector<Record> out;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.empty()) continue;
    if (const std::size_t end = line.find("] {"); line.front() == '[' && end != line.npos)
      line.remove_prefix(end + 2);
    try {
      out.push_back(read(nlohmann::json::parse(line, nullptr, false)));
    } catch (const nlohmann::json::exception&) {
      return Status(Code::kCorrupt, fmt::format("not {}: {}", what, line));
    }
  }
  return out;
}

/// A loss that is not finite is null in JSON.
double loss_of(const nlohmann::json& value) {
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

}  // namespace

std::string to_json(const Measurement& m) {
  nlohmann::ordered_json line = {{"op", m.operation},
                                 {"ranks", m.ranks},
                                 {"hosts", m.hosts},
                                 {"bytes", m.bytes},
                                 {"dtype", m.dtype}};
  if (!m.buffers.empty()) line["buffers"] = m.buffers;
  if (!m.algorithm.empty()) line["algorithm"] = m.algorithm;
  if (!m.transport.empty()) line["transport"] = m.transport;
  line["p50_s"] = m.p50_s;
  line["p90_s"] = m.p90_s;
  line["p99_s"] = m.p99_s;
  line["algbw"] = m.algbw;
  line["busbw"] = m.busbw;
  if (m.roofline) line["roofline"] = *m.roofline;
  line["cpu_s"] = m.cpu_s;
  line["switches"] = m.switches;
  line["verified"] = m.verified;
  line["iterations"] = m.iterations;
  return line.dump();
}

Result<std::vector<Measurement>> parse_measurements(std::string_view text) {
  return read_records<Measurement>(text, "a measurement", [](const nlohmann::json& in) {
    Measurement m{.operation = in.at("op"), .ranks = in.at("ranks"), .bytes = in.at("bytes")};
    m.hosts = in.value("hosts", 1);
    m.dtype = in.value("dtype", "");
    m.buffers = in.value("buffers", "");
    m.algorithm = in.value("algorithm", "");
    m.transport = in.value("transport", "");
    m.p50_s = in.at("p50_s");
    m.p90_s = in.at("p90_s");
    m.p99_s = in.at("p99_s");
    m.algbw = in.at("algbw");
    m.busbw = in.at("busbw");
    if (in.contains("roofline")) m.roofline = in["roofline"].get<double>();
    m.cpu_s = in.value("cpu_s", 0.0);
    m.switches = in.value("switches", 0.0);
    m.verified = in.at("verified");
    m.iterations = in.at("iterations");
    return m;
  });
}

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
  auto out = read_records<StepRecord>(text, "a record of training steps",
                                      [](const nlohmann::json& in) -> StepRecord {
                                        return {.rank = in.at("rank"),
                                                .host = in.at("host"),
                                                .p50_s = in.at("p50_s"),
                                                .p90_s = in.at("p90_s"),
                                                .steps = in.at("steps"),
                                                .pss = in.at("pss"),
                                                .peak_rss = in.at("peak_rss"),
                                                .first_loss = loss_of(in.at("first_loss")),
                                                .compared_loss = loss_of(in.at("compared_loss")),
                                                .last_loss = loss_of(in.at("last_loss"))};
                                      });
  if (out.ok()) std::ranges::sort(*out, {}, &StepRecord::rank);
  return out;
}

std::string to_json(const WorkerRecord& r) {
  const nlohmann::ordered_json line = {{"worker", r.worker},         {"workers", r.workers},
                                       {"times", r.times},           {"losses", r.losses},
                                       {"first_loss", r.first_loss}, {"last_loss", r.last_loss}};
  return line.dump();
}

Result<std::vector<WorkerRecord>> parse_worker_records(std::string_view text) {
  auto out = read_records<WorkerRecord>(
      text, "a record of workers", [](const nlohmann::json& in) -> WorkerRecord {
        WorkerRecord r{.worker = in.at("worker"),
                       .workers = in.at("workers"),
                       .times = in.at("times"),
                       .losses = {},
                       .first_loss = loss_of(in.at("first_loss")),
                       .last_loss = loss_of(in.at("last_loss"))};
        for (const auto& value : in.value("losses", nlohmann::json::array()))
          r.losses.push_back(loss_of(value));
        return r;
      });
  STORMO_RETURN_IF_ERROR(out.status());
  for (const WorkerRecord& r : *out) {
    if (r.times.size() < 2 || !std::ranges::is_sorted(r.times))
      return Status(Code::kCorrupt, "not times of steps: " + to_json(r));
    if (!r.losses.empty() && r.losses.size() != r.times.size())
      return Status(Code::kCorrupt, "not a loss for each step: " + to_json(r));
  }
  std::ranges::sort(*out, {}, &WorkerRecord::worker);
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
