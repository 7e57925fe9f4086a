#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/observe/http/server.h>
#include <stormo/observe/metrics/metric_table.h>
#include <stormo/observe/metrics/run_status.h>

namespace stormo::observe {

/// What the host of a rank tells of its process.
struct RankProcess {
  int rank = 0;
  std::string host{};
  std::string state{};             ///< "running", "stopped"
  std::uint64_t memory_bytes = 0;  ///< in memory now, with what it shares with others
};

/// Shows a run over HTTP: /metrics for Prometheus, /json with the newest records, /end with those
/// at the end, /healthz.
class Monitor {
 public:
  /// Looks at the ranks of this host. Called on the thread of the server.
  using RankProcesses = std::function<std::vector<RankProcess>()>;

  /// Begins to answer. See HttpServer::start() for what can fail.
  /// `cost`: may be null; borrowed.
  static Result<std::unique_ptr<Monitor>> start(HttpOptions options, BuildFacts build,
                                                RankProcesses ranks = {},
                                                const CostMeter* cost = nullptr);

  /// Is told of the run that is shown.
  RunObserver& observer() { return status_; }
  /// "127.0.0.1:9464"
  const std::string& address() const { return server_->address(); }
  /// "http://127.0.0.1:9464/metrics"
  std::string url() const { return "http://" + server_->address() + "/metrics"; }

 private:
  Monitor(BuildFacts build, RankProcesses ranks, const CostMeter* cost)
      : build_(std::move(build)), ranks_(std::move(ranks)), cost_(cost) {}
  HttpResponse page(const HttpRequest& request) const;

  BuildFacts build_;
  RankProcesses ranks_;
  const CostMeter* cost_;
  StatusObserver status_;
  std::unique_ptr<HttpServer> server_;  // ends first
};

/// Version of the object on the page /json.
inline constexpr int kStatusSchema = 1;

/// Whether a run is well, for probes: 200, or 503 once it has failed.
HttpResponse health_page(const RunStatus& run, std::chrono::system_clock::time_point now);

/// State and newest records of a run, these as JsonObserver writes them, and the ranks of a host.
/// `version`: of Stormo.
std::string status_json(const RunStatus& run, std::chrono::system_clock::time_point now,
                        const std::string& version, const std::vector<RankProcess>& ranks);

}  // namespace stormo::observe
