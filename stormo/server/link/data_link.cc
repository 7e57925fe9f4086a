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
  call->payload = std::move(payload);
  call->sink = std::move(sink);
  call->place = std::move(place);
  {
    const std::lock_guard lock(mutex_);
    call->request.id = next_id_++;
    calls_.push_back(call);
  }
  loop_.wake();
  return call;
}

void DataLink::wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& is_over) {
  while (!changed_.wait_for(lock, kLookEvery, is_over)) {
    (void)servers_.front()->status_while_waiting();
  }
}

Status DataLink::wait_for(const std::shared_ptr<DataCall>& call, std::size_t bytes) {
  std::unique_lock lock(mutex_);
  wait(lock, [&] { return call->is_done || call->arrived >= bytes; });
  return call->is_done ? call->status : Status();
}

Result<std::string> DataLink::finish(const std::shared_ptr<DataCall>& call) {
  std::unique_lock lock(mutex_);
  wait(lock, [&] { return call->is_done; });
  STORMO_RETURN_IF_ERROR(call->status);
  return std::move(call->body);
}

std::optional<Status> DataLink::outcome(const std::shared_ptr<DataCall>& call) {
  const std::lock_guard lock(mutex_);
  return call->is_done ? std::optional(call->status) : std::nullopt;
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
  const bool has_work = has_calls();
  switch (stage_) {
    case Stage::kApart:
      if (has_work) due = next_dial_;
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
    case Stage::kReady: fd = socket_.get();
  }
  if (sending_) events |= POLLOUT;
  (void)loop_.wait(fd, events, due, kMaxPollMs);
  const TimePoint now = std::chrono::steady_clock::now();
  if (const Status status = find_server(now); !status.ok()) return fail_all(status);
  if (stage_ == Stage::kApart || stage_ == Stage::kDialing) dial(now);
  if (stage_ == Stage::kAttaching || stage_ == Stage::kReady) {
    if (!talk().ok()) disconnect(now);
  }
}

Status DataLink::find_server(TimePoint now) {
  const Status lost = control().status();
  if (lost.ok() || current_ + 1 == servers_.size()) {
    const Status first = servers_[0]->status();
    return lost.ok() || lost == first ? lost : lost.within(first.message() + "; and its backup");
  }
  ++current_;
  disconnect(now);
  next_dial_ = now;
  return {};
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
  Result<transport::Descriptor> socket = dialer_->take();
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

Status DataLink::talk() {
  if (stage_ == Stage::kAttaching) {
    STORMO_RETURN_IF_ERROR(attaching_->receive().status());
    STORMO_RETURN_IF_ERROR(take_attachment());
    if (stage_ == Stage::kAttaching) return attaching_->flush();
  }
  STORMO_RETURN_IF_ERROR(send_calls());
  return receive_replies();
}

Status DataLink::take_attachment() {
  STORMO_ASSIGN_OR_RETURN(const auto body, attaching_->next());
  if (!body) return {};
  STORMO_ASSIGN_OR_RETURN(const transport::Reply reply, decode<transport::Reply>(*body));
  STORMO_RETURN_IF_ERROR(outcome_of(reply).status());
  socket_ = attaching_->release();
  attaching_.reset();
  stage_ = Stage::kReady;
  return {};
}

Status DataLink::send_calls() {
  for (;;) {
    if (!sending_) {
      const std::lock_guard lock(mutex_);
      if (sent_calls_ == calls_.size()) return {};
      DataCall& call = *calls_[sent_calls_];
      sending_head_ = transport::frame(encode(call.request));
      sending_.emplace(call.payload);
      sending_->put_first(sending_head_.data(), sending_head_.size());
    }
    STORMO_ASSIGN_OR_RETURN(const bool has_sent, sending_->send(socket_.get()));
    if (!has_sent) return {};
    if (!sending_->done()) continue;
    sending_.reset();
    ++sent_calls_;
  }
}

Status DataLink::receive_replies() {
  for (;;) {
    const bool is_new = !reply_;
    if (is_new) {
      STORMO_ASSIGN_OR_RETURN(const bool is_complete, receive_head());
      if (!is_complete) return {};
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
      STORMO_ASSIGN_OR_RETURN(const bool has_received, call->sink.receive(socket_.get()));
      if (!has_received) return {};
      const std::lock_guard lock(mutex_);
      call->arrived = std::max(call->arrived, call->sink.moved());
      changed_.notify_all();
    }
    complete(*reply_);
    reply_.reset();
  }
}

/// True when reply_ has one.
Result<bool> DataLink::receive_head() {
  STORMO_ASSIGN_OR_RETURN(const auto head, heads_.receive(socket_.get()));
  if (!head) return false;
  STORMO_ASSIGN_OR_RETURN(reply_, decode<transport::Reply>(*head));
  return true;
}

void DataLink::complete(const transport::Reply& reply) {
  Result<std::string> outcome = transport::outcome_of(reply);
  const std::lock_guard lock(mutex_);
  DataCall& call = *calls_.front();
  if (outcome.ok()) {
    call.body = *std::move(outcome);
  } else {
    call.status = outcome.status();
  }
  call.is_done = true;
  calls_.pop_front();
  --sent_calls_;
  changed_.notify_all();
}

/// What has no reply is sent again, on the next connection.
void DataLink::disconnect(TimePoint now) {
  stage_ = Stage::kApart;
  dialer_.reset();
  attaching_.reset();
  socket_.reset();
  sending_.reset();
  heads_ = {kServerProtocol, kMaxControlBytes};
  reply_.reset();
  sent_calls_ = 0;
  next_dial_ = now + kPauseBeforeDial;
  const std::lock_guard lock(mutex_);
  for (const auto& call : calls_) call->sink.rewind();
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
