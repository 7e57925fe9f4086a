#include <cli/bench/table.h>

#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>

#include <stormo/base/units.h>

namespace stormo::cli {

std::string short_time(double seconds) {
  const auto digits = [](double value, const char* unit) {
    return fmt::format("{:.{}f} {}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, unit);
  };
  if (seconds < 999.5e-6) return digits(seconds * 1e6, "us");
  if (seconds < 999.5e-3) return digits(seconds * 1e3, "ms");
  return digits(seconds, "s");
}

std::string bench_heading(const BenchOptions& options, int ranks, int hosts) {
  const std::string name(bench::facts_of(options.operation).name);
  const bool barrier = options.operation == bench::Operation::kBarrier;
  return fmt::format("{}{}, {} rank{} on {} host{}{}\n", name,
                     barrier ? "" : fmt::format(" of {}", to_string(options.dtype)), ranks,
                     ranks == 1 ? "" : "s", hosts, hosts == 1 ? "" : "s",
                     barrier                   ? ""
                     : options.private_buffers ? ", private buffers"
                                               : ", buffers in the Arena");
}

std::string bench_columns(bool shaped) {
  return fmt::format("{:>10}  {:>9}  {:>9}  {:>9}  {:>8}  {:>8}  {:>8}  {:>10}  {:<5}{}  {}",
                     "bytes", "p50", "p90", "p99", "alg GB/s", "bus GB/s", "roofline", "iterations",
                     "", shaped ? "   line" : "", "algorithm");
}

std::string bench_line(const bench::Measurement& m, double line) {
  return fmt::format("{:>10}  {:>9}  {:>9}  {:>9}  {:>8.3f}  {:>8.3f}  {:>8}  {:>10}  {:<5}{}  {}",
                     format_bytes(m.bytes), short_time(m.p50_s), short_time(m.p90_s),
                     short_time(m.p99_s), m.algbw / 1e9, m.busbw / 1e9,
                     m.roofline ? fmt::format("{:.2f}", *m.roofline) : "", m.iterations,
                     m.verified ? "ok" : "WRONG", line > 0 ? fmt::format("  {:.3f}", line) : "",
                     m.algorithm);
}

std::string bench_table(const std::vector<BenchRow>& rows) {
  if (rows.empty()) return {};
  std::string out = bench_columns(rows.front().line > 0);
  const auto end = std::back_inserter(out);
  for (const BenchRow& row : rows) fmt::format_to(end, "\n{}", bench_line(row.ours, row.line));
  for (std::size_t i = 0; i < rows.front().against.size(); ++i) {
    fmt::format_to(end, "\n\n{:>10}  {:>9}  {:>9}  {:>7}  {:>7}  {:>7}  {}", "bytes", "stormo",
                   rows.front().against[i].name, "ratio", "min", "max", "rounds");
    for (const BenchRow& row : rows) {
      const Versus& v = row.against[i];
      fmt::format_to(end, "\n{:>10}  {:>9}  {:>9}  {:>7.2f}  {:>7.2f}  {:>7.2f}  {}{}",
                     format_bytes(row.ours.bytes), short_time(row.ours.p50_s),
                     short_time(v.theirs.p50_s), v.ratio.median, v.ratio.min, v.ratio.max,
                     row.rounds, v.theirs.verified ? "" : "  THEIRS WRONG");
    }
  }
  return out;
}

std::string row_json(const BenchRow& row) {
  auto line = nlohmann::ordered_json::parse(to_json(row.ours));
  line["rounds"] = row.rounds;
  if (row.line > 0) line["line"] = row.line;
  if (row.against.empty()) return line.dump();
  for (const Versus& v : row.against) {
    auto& out = line["against"][v.name];
    bench::add_spread(out, "ratio", v.ratio);
    out.update({{"p50_s", v.theirs.p50_s},
                {"p90_s", v.theirs.p90_s},
                {"p99_s", v.theirs.p99_s},
                {"busbw", v.theirs.busbw},
                {"cpu_s", v.theirs.cpu_s},
                {"switches", v.theirs.switches},
                {"verified", v.theirs.verified}});
  }
  return line.dump();
}

}  // namespace stormo::cli
