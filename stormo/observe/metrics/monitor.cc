#include <stormo/observe/metrics/monitor.h>

#include <fmt/format.h>

#include <chrono>
#include <sstream>
#include <utility>

#include <stormo/base/printable.h>
#include <stormo/base/text.h>
#include <stormo/observe/json_lines.h>
#include <stormo/observe/metrics/exposition.h>

namespace stormo::observe {
namespace {

double seconds_since(std::chrono::system_clock::time_point then,
                     std::chrono::system_clock::time_point now) {
  return std::chrono::duration<double>(now - then).count();
}

/// The newest records, one in a line.
std::string record_lines(const RunStatus& run) {
  std::ostringstream lines;
  JsonObserver json(lines);
  if (run.start) json.on_start(*run.start);
  if (run.logged) json.on_step(*run.logged);
  const bool is_newer = run.step && (!run.logged || run.step->step > run.logged->step);
  if (is_newer) json.on_step(*run.step);
  for (const EvalRecord& e : run.evaluations) json.on_eval(e);
  if (run.save_failed) json.on_save_failed(*run.save_failed);
  if (run.warning) json.on_warning(*run.warning);
  json.on_slow_ranks(run.slow);
  if (run.end) json.on_end(*run.end);
  if (run.error) json.on_error(*run.error);
  return lines.str();
}

/// As a text of JSON.
std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : printable_line(text)) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

/// [{"rank":0,"host":"a","state":"running","memory_bytes":1}]
std::string ranks_json(const std::vector<RankProcess>& ranks) {
  std::string out = "[";
  for (const RankProcess& r : ranks) {
    out += fmt::format(R"({}{{"rank":{},"host":{},"state":{},"memory_bytes":{}}})",
                       out.size() > 1 ? "," : "", r.rank, quoted(r.host), quoted(r.state),
                       r.memory_bytes);
  }
  return out + "]";
}

}  // namespace

HttpResponse health_page(const RunStatus& run, std::chrono::system_clock::time_point now) {
  std::string text = run.state();
  if (run.step) {
    text += fmt::format(", step {} of {}, {:.1f} s ago", run.step->step, run.step->steps,
                        seconds_since(run.step_seen, now));
  }
  return {.status = run.error ? 503 : 200, .body = text + "\n"};
}

std::string status_json(const RunStatus& run, std::chrono::system_clock::time_point now,
                        const std::string& version, const std::vector<RankProcess>& ranks) {
  std::string out = fmt::format(R"({{"schema":{},"version":"{}","state":"{}","running_s":{:.3f},)",
                                kStatusSchema, version, run.state(), seconds_since(run.began, now));
  if (run.step) out += fmt::format(R"("last_step_s":{:.3f},)", seconds_since(run.step_seen, now));
  out += fmt::format(R"("ranks":{},)", ranks_json(ranks));
  out += "\"records\":[";
  const std::string lines = record_lines(run);
  const char* comma = "";
  for (const std::string_view line : split(lines, '\n')) {
    if (line.empty()) continue;
    out.append(std::exchange(comma, ",")).append(line);
  }
  return out + "]}\n";
}

Result<std::unique_ptr<Monitor>> Monitor::start(HttpOptions options, BuildFacts build,
                                                RankProcesses ranks, const CostMeter* cost) {
  std::unique_ptr<Monitor> monitor(new Monitor(std::move(build), std::move(ranks), cost));
  STORMO_ASSIGN_OR_RETURN(
      monitor->server_,
      HttpServer::start(std::move(options),
                        [m = monitor.get()](const HttpRequest& r) { return m->page(r); }));
  return monitor;
}

HttpResponse Monitor::page(const HttpRequest& request) const {
  const std::shared_ptr<const RunStatus> run = status_.status();
  const auto now = std::chrono::system_clock::now();
  if (request.path == "/healthz") return health_page(*run, now);
  if (request.path == "/json" || request.path == "/end") {
    return {.type = "application/json",
            .body = status_json(*run, now, build_.version,
                                ranks_ ? ranks_() : std::vector<RankProcess>()),
            .at_end = request.path == "/end"};
  }
  if (request.path == "/metrics") {
    const MetricFormat format = format_for(request.accept);
    const CostRecord cost = cost_ != nullptr ? cost_->record() : CostRecord();
    return {.type = std::string(content_type_of(format)),
            .body = metrics_text({*run, build_, std::chrono::steady_clock::now(),
                                  cost_ != nullptr ? &cost : nullptr},
                                 format)};
  }
  constexpr const char* kPages = "/metrics\n/json\n/end\n/healthz\n";
  return {.status = request.path == "/" ? 200 : 404, .body = kPages};
}

}  // namespace stormo::observe
