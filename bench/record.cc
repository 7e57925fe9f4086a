#include <bench/record.h>

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace stormo::bench {

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
  std::vector<Measurement> out;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.empty()) continue;
    const auto in = nlohmann::json::parse(line, nullptr, false);
    try {
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
      out.push_back(std::move(m));
    } catch (const nlohmann::json::exception&) {
      return Status(Code::kCorrupt, fmt::format("not a measurement: {}", line));
    }
  }
  return out;
}

}  // namespace stormo::bench
