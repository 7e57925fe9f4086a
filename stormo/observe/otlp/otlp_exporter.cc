#include <stormo/observe/otlp/otlp_exporter.h>

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include <stormo/base/printable.h>
#include <stormo/observe/json_lines.h>

namespace stormo::observe {
namespace {

constexpr Duration kRequestTime = std::chrono::seconds(10);
constexpr Duration kFirstPause = std::chrono::seconds(1);
constexpr Duration kLongestPause = std::chrono::seconds(60);
constexpr std::size_t kEventsOfRequest = 128;

}  // namespace

OtlpVerdict verdict_of(const http::HttpAnswer& answer) {
  if (!answer.exchange.ok()) return OtlpVerdict::kAgain;
  if (answer.code >= 200 && answer.code < 300) return OtlpVerdict::kDone;
  // those that the specification names
  for (const int code : {429, 502, 503, 504})
    if (answer.code == code) return OtlpVerdict::kAgain;
  return OtlpVerdict::kRefused;
}

Duration pause_after(int failures, Duration retry_after) {
  if (retry_after > Duration::zero()) return retry_after;
  constexpr int kDoublings = 6;  // reach the longest pause
  return std::min(kFirstPause * (1 << std::clamp(failures - 1, 0, kDoublings)), kLongestPause);
}

OtlpExporter::OtlpExporter(Options options)
    : options_(std::move(options)), thread_([this] { run(); }) {}

OtlpExporter::~OtlpExporter() {
  given_up_ = true;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::int64_t OtlpExporter::finish(Deadline by) {
  std::unique_lock lock(mutex_);
  ending_ = true;
  changed_.notify_all();
  changed_.wait_until(lock, by.when(), [this] { return ended_; });
  given_up_ = true;
  return lost_ + static_cast<std::int64_t>(events_.size());
}

template <class Record>
void OtlpExporter::note(void (RunObserver::*take)(const Record&), const Record& record) {
  (status_.*take)(record);
  std::ostringstream line;
  JsonObserver json(line);
  (json.*take)(record);
  {
    const std::lock_guard lock(mutex_);
    if (events_.size() == kMostEvents) {  // the newest say what is wrong now
      events_.pop_front();
      ++lost_;
    }
    events_.push_back({std::chrono::system_clock::now(), line.str()});
  }
  changed_.notify_all();
}

void OtlpExporter::on_start(const StartRecord& r) { note(&RunObserver::on_start, r); }
void OtlpExporter::on_sharding(const ShardingRecord& r) { note(&RunObserver::on_sharding, r); }
void OtlpExporter::on_eval(const EvalRecord& r) { note(&RunObserver::on_eval, r); }
void OtlpExporter::on_save_failed(const SaveFailedRecord& r) {
  note(&RunObserver::on_save_failed, r);
}
void OtlpExporter::on_warning(const WarningRecord& r) { note(&RunObserver::on_warning, r); }
void OtlpExporter::on_end(const EndRecord& r) { note(&RunObserver::on_end, r); }
void OtlpExporter::on_error(const ErrorRecord& r) { note(&RunObserver::on_error, r); }

TimePoint OtlpExporter::next_turn() const {
  return events_.empty() ? metrics_.next : std::min(metrics_.next, events_line_.next);
}

void OtlpExporter::run() {
  metrics_.next = RealClock().now() + options_.interval;
  std::unique_lock lock(mutex_);
  while (!ending_) {
    const TimePoint turn = next_turn();
    if (RealClock().now() < turn) {
      changed_.wait_until(lock, turn);
      continue;
    }
    const bool has_events = !events_.empty();
    lock.unlock();
    const TimePoint now = RealClock().now();
    if (has_events && now >= events_line_.next) send_events();
    if (now >= metrics_.next) send_metrics();
    lock.lock();
  }
  // once more, whatever the pauses say: afterwards there is nobody to send it
  for (std::size_t left = events_.size() + 1; !events_.empty() && events_.size() < left;) {
    left = events_.size();
    lock.unlock();
    send_events();
    lock.lock();
  }
  lock.unlock();
  send_metrics();
  lock.lock();
  ended_ = true;
  changed_.notify_all();
}

void OtlpExporter::send_metrics() {
  const std::shared_ptr<const RunStatus> run = status_.status();
  const CostRecord cost = options_.cost != nullptr ? options_.cost->record() : CostRecord();
  const std::string body = otlp_metrics(
      {*run, options_.build, RealClock().now(), options_.cost != nullptr ? &cost : nullptr},
      options_.resource, std::chrono::system_clock::now());
  // they are made anew, so what is refused now is not lost
  if (send(metrics_, body) != OtlpVerdict::kAgain)
    metrics_.next = RealClock().now() + options_.interval;
}

void OtlpExporter::send_events() {
  std::vector<OtlpEvent> batch;
  {
    const std::lock_guard lock(mutex_);
    const std::size_t count = std::min(events_.size(), kEventsOfRequest);
    batch.assign(events_.begin(), events_.begin() + static_cast<std::ptrdiff_t>(count));
  }
  const OtlpVerdict verdict =
      send(events_line_, otlp_logs(batch, options_.build, options_.resource));
  if (verdict == OtlpVerdict::kAgain) return;
  const std::lock_guard lock(mutex_);
  // some of them may have been dropped meanwhile for newer ones
  for (const OtlpEvent& event : batch) {
    if (events_.empty() || events_.front() != event) continue;
    events_.pop_front();
    lost_ += verdict == OtlpVerdict::kRefused ? 1 : 0;
  }
}

OtlpVerdict OtlpExporter::send(Line& line, std::string body) {
  if (given_up_) return OtlpVerdict::kAgain;
  const http::HttpAnswer answer = options_.post({.url = options_.endpoint + std::string(line.path),
                                                 .body = std::move(body),
                                                 .authorization = {},
                                                 .headers = options_.headers},
                                                kRequestTime, &given_up_);
  const OtlpVerdict verdict = verdict_of(answer);
  if (verdict == OtlpVerdict::kDone) {
    line.failures = 0;
    const OtlpRejection rejected = otlp_rejection(answer.body);
    if (rejected.count == 0 && rejected.message.empty()) return verdict;
    tell(fmt::format("{}: the collector did not take {} of what was sent: {}", line.path,
                     rejected.count, rejected.message));
    if (&line == &events_line_) {
      const std::lock_guard lock(mutex_);
      lost_ += rejected.count;
    }
    return verdict;
  }
  const std::string why =
      answer.exchange.ok() ? fmt::format("HTTP {}", answer.code) : answer.exchange.message();
  if (line.failures++ == 0) tell(fmt::format("{}{}: {}", options_.endpoint, line.path, why));
  if (verdict == OtlpVerdict::kAgain)
    line.next = RealClock().now() + pause_after(line.failures, answer.retry_after);
  return verdict;
}

void OtlpExporter::tell(std::string_view text) const {
  if (options_.on_failure && !given_up_) options_.on_failure(printable_line(text));
}

}  // namespace stormo::observe
