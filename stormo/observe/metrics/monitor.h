#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include <stormo/base/status.h>
#include <stormo/observe/http/server.h>
#include <stormo/observe/metrics/metric_table.h>
#include <stormo/observe/metrics/run_status.h>

namespace stormo::observe {

/// Shows a run over HTTP: /metrics for Prometheus, /json with the newest records, /healthz.
class Monitor {
 public:
  /// Begins to answer. See HttpServer::start() for what can fail.
  static Result<std::unique_ptr<Monitor>> start(HttpOptions options, BuildFacts build);

  /// Is told of the run that is shown.
  RunObserver& observer() { return status_; }
  /// "http://127.0.0.1:9464/metrics"
  std::string url() const { return "http://" + server_->address() + "/metrics"; }

 private:
  explicit Monitor(BuildFacts build) : build_(std::move(build)) {}
  HttpResponse page(const HttpRequest& request) const;

  BuildFacts build_;
  StatusObserver status_;
  std::unique_ptr<HttpServer> server_;  // ends first
};

/// Whether a run is well, for probes: 200, or 503 once it has failed.
HttpResponse health_page(const RunStatus& run, std::chrono::system_clock::time_point now);

/// State and newest records of a run, these as JsonObserver writes them.
std::string status_json(const RunStatus& run, std::chrono::system_clock::time_point now);

}  // namespace stormo::observe
