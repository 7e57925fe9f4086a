#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/http/http_post.h>
#include <stormo/observe/metrics/run_status.h>
#include <stormo/observe/otlp/otlp_json.h>

namespace stormo::observe {

/// What becomes of a request that was answered so.
enum class OtlpVerdict : std::uint8_t { kDone, kAgain, kRefused };
OtlpVerdict verdict_of(const http::HttpAnswer& answer);

/// When to try again, after so many failures in a row: what the collector asks for, else 1, 2, 4,
/// ... 60 s.
Duration pause_after(int failures, Duration retry_after);

/// Sends a run to a collector of OpenTelemetry: metrics every `interval` and at the end, and events
/// (all records but steps) as logs. A thread of its own sends; the training thread leaves its
/// records and goes on, whatever the collector does. Events wait for it in a bounded queue, metrics
/// are made anew each time; what is lost is counted.
class OtlpExporter final : public RunObserver {
 public:
  static constexpr std::size_t kMostEvents = 1024;
  using Post = std::function<http::HttpAnswer(const http::HttpRequest& request, Duration at_most,
                                              const std::atomic<bool>* given_up)>;

  struct Options {
    std::string endpoint{};              ///< "http://collector:4318": what is before /v1/metrics
    std::vector<std::string> headers{};  ///< of each request: "Name: value"
    OtlpAttributes resource{};
    BuildFacts build{};
    Duration interval = std::chrono::seconds(10);
    Post post{};                      ///< http::http_post
    const CostMeter* cost = nullptr;  ///< borrowed
    /// Called on the exporter's thread when a request fails after one that did not, and for what
    /// the collector refuses.
    std::function<void(std::string_view)> on_failure{};
  };
  explicit OtlpExporter(Options options);
  /// Ends a request that waits, within a second or so.
  ~OtlpExporter() override;

  /// Sends what there is, and waits for it until `by`. The number of events that were lost.
  std::int64_t finish(Deadline by);

  void on_start(const StartRecord& record) override;
  void on_sharding(const ShardingRecord& record) override;
  void on_step(const StepRecord& record) override { status_.on_step(record); }
  void on_progress(const StepRecord& record) override { status_.on_progress(record); }
  void on_eval(const EvalRecord& record) override;
  void on_save_failed(const SaveFailedRecord& record) override;
  void on_warning(const WarningRecord& record) override;
  void on_end(const EndRecord& record) override;
  void on_error(const ErrorRecord& record) override;

 private:
  /// One of the two kinds of requests.
  struct Line {
    std::string_view path{};
    int failures = 0;  ///< in a row
    TimePoint next{};  ///< not before
  };
  template <class Record>
  void note(void (RunObserver::*take)(const Record&), const Record& record);
  void run();
  TimePoint next_turn() const;
  void send_metrics();
  void send_events();
  OtlpVerdict send(Line& line, std::string body);
  void tell(std::string_view text) const;

  const Options options_;
  StatusObserver status_;
  // of the exporter's thread
  Line metrics_{"/v1/metrics"};
  Line events_line_{"/v1/logs"};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<OtlpEvent> events_;  ///< guarded by mutex_
  std::int64_t lost_ = 0;         ///< guarded by mutex_
  bool ending_ = false;           ///< guarded by mutex_: all is sent once more, then nothing
  bool ended_ = false;            ///< guarded by mutex_
  std::atomic<bool> given_up_{false};
  std::thread thread_;
};

}  // namespace stormo::observe
