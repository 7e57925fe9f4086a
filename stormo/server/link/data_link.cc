#include <stormo/server/link/data_link.h>

#include <poll.h>

#include <algorithm>
#include <utility>

#include <stormo/server/intervals.h>

namespace stormo::server {
namespace {

constexpr Duration kPauseBeforeDial =
    std::chrono::milliseconds(20);  ///< after a connection that broke

}  // namespace

DataLink::DataLink(std::vector<std::shared_ptr<ServerLink>> servers, int part, bool coordinates)
    : servers_(std::move(servers)), part_(part), coordinates_(coordinates) {
  loop_.start([this] { turn(); });
}

DataLink::~DataLink() {
  loop_.stop();
  fail_all(Status(Code::kCancelled, "the worker has closed its session"));
}

std::shared_ptr<DataCall> DataLink::start(DataRequest request, ByteRanges payload, ByteRanges sink,
                                          decltype(DataCall::place) place) {
  auto call = std::make_shared<DataCall>();
  call->request = std::move(request);
  call->bytes = std::move(payload);
  call->sink = std::move(sink);
  call->place = std::move(place);
  {
    const std::lock_guard lock(mutex_);
    call->request.id = next_id_++;
    call->bytes.set_head(encode(call->request));
    calls_.push_back(call);
  }
  loop_.wake();
  return call;
}

Status DataLink::wait(const DataCall& call, std::size_t bytes) {
  std::unique_lock lock(mutex_);
  const auto is_over = [&] { return call.is_done || call.arrived >= bytes; };
  while (!changed_.wait_for(lock, kLookEvery, is_over)) {
    (void)servers_.front()->status_while_waiting();
  }
  return call.is_done ? call.status : Status();
}

std::optional<Status> DataLink::outcome(const DataCall& call) {
  const std::lock_guard lock(mutex_);
  return call.is_done ? std::optional(call.status) : std::nullopt;
}

bool DataLink::has_calls() {
  const std::lock_guard lock(mutex_);
  return !calls_.empty();
}

/// Waits for something to do, and does it.
void DataLink::turn() {
  int fd = -1;
  short events = POLLIN;
  TimePoint due = TimePoint::max();
  switch (stage_) {
    case Stage::kApart:
      if (has_calls()) due = next_dial_;
      break;
    case Stage::kDialing:
      fd = dialer_->fd();
      events = dialer_->poll_events();
      due = dialer_->wake_at();
      break;
    case Stage::kAttaching:
      fd = attaching_->fd();
      events = attaching_->poll_events();
      break;
    case Stage::kReady:
      fd = socket_.fd();
      if (is_blocked_) events |= POLLOUT;
  }
  (void)loop_.wait(fd, events, due, kMaxPollMs);
  const TimePoint now = std::chrono::steady_clock::now();
  if (const Status lost = control().status(); !lost.ok()) return leave_server(now, lost);
  if (stage_ == Stage::kApart || stage_ == Stage::kDialing) dial(now);
  Status status;
  if (stage_ == Stage::kAttaching) status = attach();
  if (stage_ == Stage::kReady) {
    status = send_calls();
    if (status.ok()) status = receive_replies();
  }
  if (!status.ok()) disconnect(now);
}

void DataLink::leave_server(TimePoint now, const Status& lost) {
  if (current_ + 1 == servers_.size()) {
    const Status first = servers_[0]->status();
    return fail_all(lost == first ? lost : lost.within(first.message() + "; and its backup"));
  }
  ++current_;
  disconnect(now);
  next_dial_ = now;
}

void DataLink::dial(TimePoint now) {
  if (stage_ == Stage::kApart) {
    if (now < next_dial_ || !has_calls()) return;
    auto dialer = ServerLink::dial(control().options());
    if (!dialer.ok()) return disconnect(now);
    dialer_ = *std::move(dialer);
    stage_ = Stage::kDialing;
  }
  if (!dialer_->step(now)) return;
  Result<transport::Channel> socket = dialer_->take();
  if (!socket.ok()) return disconnect(now);
  const WorkerHello& hello = control().options().hello;
  attaching_.emplace(std::move(*socket), control_frames());
  attaching_->send(encode(ServerRequest{.op = ServerOp::kAttach,
                                        .id = 1,
                                        .body = encode(Attachment{.worker = hello.worker,
                                                                  .part = part_,
                                                                  .token = hello.token,
                                                                  .coordinates = coordinates_})}));
  stage_ = Stage::kAttaching;
}

Status DataLink::attach() {
  STORMO_RETURN_IF_ERROR(attaching_->receive().status());
  STORMO_ASSIGN_OR_RETURN(const auto body, attaching_->next());
  if (!body) return attaching_->flush();
  STORMO_ASSIGN_OR_RETURN(const transport::Reply reply, decode<transport::Reply>(*body));
  STORMO_RETURN_IF_ERROR(outcome_of(reply).status());
  socket_ = attaching_->release();
  attaching_.reset();
  stage_ = Stage::kReady;
  return {};
}

Status DataLink::send_calls() {
  is_blocked_ = false;
  for (;; ++sent_calls_) {
    std::shared_ptr<DataCall> call;
    {
      const std::lock_guard lock(mutex_);
      if (sent_calls_ == calls_.size()) return {};
      call = calls_[sent_calls_];
    }
    while (!call->bytes.done()) {
      STORMO_ASSIGN_OR_RETURN(const bool has_sent, call->bytes.send(socket_));
      is_blocked_ = !has_sent;
      if (is_blocked_) return {};
    }
  }
}

Status DataLink::receive_replies() {
  for (;;) {
    const bool is_new = !reply_;
    if (is_new) {
      STORMO_ASSIGN_OR_RETURN(const auto head, heads_.receive(socket_));
      if (!head) return {};
      STORMO_ASSIGN_OR_RETURN(reply_, decode<transport::Reply>(*head));
    }
    std::shared_ptr<DataCall> call;
    {
      const std::lock_guard lock(mutex_);
      if (sent_calls_ == 0 || calls_.front()->request.id != reply_->id) {
        return Status(Code::kCorrupt, "server protocol: a reply to another request");
      }
      call = calls_.front();
    }
    if (is_new && call->place && reply_->code == Code::kOk) {
      STORMO_ASSIGN_OR_RETURN(call->sink, call->place(reply_->body));
    }
    while (reply_->code == Code::kOk && !call->sink.done()) {
      STORMO_ASSIGN_OR_RETURN(const bool has_received, call->sink.receive(socket_));
      if (!has_received) return {};
      const std::lock_guard lock(mutex_);
      call->arrived = std::max(call->arrived, call->sink.moved());
      changed_.notify_all();
    }
    Result<std::string> outcome = transport::outcome_of(*reply_);
    reply_.reset();
    const std::lock_guard lock(mutex_);
    call->status = outcome.status();
    if (outcome.ok()) call->body = *std::move(outcome);
    call->is_done = true;
    calls_.pop_front();
    --sent_calls_;
    changed_.notify_all();
  }
}

/// What has no reply is sent again, on the next connection.
void DataLink::disconnect(TimePoint now) {
  stage_ = Stage::kApart;
  dialer_.reset();
  attaching_.reset();
  socket_.reset();
  is_blocked_ = false;
  heads_ = {kServerProtocol, kMaxControlBytes};
  reply_.reset();
  sent_calls_ = 0;
  next_dial_ = now + kPauseBeforeDial;
  const std::lock_guard lock(mutex_);
  for (const auto& call : calls_) {
    call->bytes.rewind();
    call->sink.rewind();
  }
}

void DataLink::fail_all(const Status& why) {
  disconnect(std::chrono::steady_clock::now());
  const std::lock_guard lock(mutex_);
  for (const auto& call : calls_) {
    call->status = why;
    call->is_done = true;
  }
  calls_.clear();
  changed_.notify_all();
}

}  // namespace stormo::server
