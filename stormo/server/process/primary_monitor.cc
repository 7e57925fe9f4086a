#include <stormo/server/process/primary_monitor.h>

#include <utility>

#include <stormo/server/intervals.h>

namespace stormo::server {

Status PrimaryMonitor::admit(const WorkerHello& hello) {
  if (is_over_) return Status(Code::kPeerLost, "its successor has taken its part over");
  if (token_ == hello.token) return {};
  if (token_ != 0) return Status(Code::kExhausted, "another process is the predecessor");
  token_ = hello.token;
  timeout_ = Duration(hello.timeout_ns);
  if (Place::own().is_same_host(hello.place)) process_.emplace(hello.place.process);
  return {};
}

Status PrimaryMonitor::check(const Attachment& attachment) const {
  if (!is_over_ && token_ != 0 && attachment.token == token_) return {};
  return io_error("it has to say hello first");
}

void PrimaryMonitor::attach(transport::Channel socket,
                            std::function<void(const Status&)> on_nonsense) {
  if (!remote_) remote_.emplace(copy_, RemoteWorker::kPrimary, timeout_);
  remote_->attach(std::move(socket), std::move(on_nonsense));
}

void PrimaryMonitor::watch(bool is_connected, TimePoint now, Duration pause) {
  if (token_ == 0) return;
  heard_ += pause;
  if (process_ && !is_connected) process_->wait(Duration::zero());
  const bool has_ended = process_ && !is_connected && process_->is_gone();
  const bool is_apart = !is_connected && now - heard_ > kLongestApart;
  is_silent_ = has_ended || is_apart || now - heard_ > timeout_;
}

void PrimaryMonitor::end() {
  is_over_ = true;
  remote_.reset();
}

}  // namespace stormo::server
