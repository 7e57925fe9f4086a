#include <stormo/server/link/data_link.h>

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include <stormo/server/intervals.h>
#include <stormo/transport/store/frame.h>

namespace stormo::server {
namespace {

constexpr Duration kPauseBeforeDial =
    std::chrono::milliseconds(20);  ///< after a connection that broke

}  // namespace

DataLink::DataLink(std::vector<std::shared_ptr<ServerLink>> servers, int part, bool coordinates)
    : servers_(std::move(servers)),
      part_(part),
      coordinates_(coordinates),
      wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  thread_ = std::thread([this] { run(); });
}

DataLink::~DataLink() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  wake();
  thread_.join();
}

void DataLink::wake() {
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
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
  wake();
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

void DataLink::run() {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (is_stopping_) break;
    }
    turn();
  }
  fail_all(Status(Code::kCancelled, "the worker has closed its session"));
}

bool DataLink::has_calls() {
  const std::lock_guard lock(mutex_);
  return !calls_.empty();
}

/// Waits for something to do, and does it.
void DataLink::turn() {
  TimePoint now = std::chrono::steady_clock::now();
  std::array<pollfd, 2> fds{pollfd{wake_.get(), POLLIN, 0}, pollfd{-1, POLLIN, 0}};
  TimePoint due = TimePoint::max();
  const bool has_work = has_calls();
  switch (stage_) {
    case Stage::kApart:
      if (has_work) due = next_dial_;
      break;
    case Stage::kDialing:
      fds[1] = {dialer_->fd(), dialer_->poll_events(), 0};
      due = dialer_->wake_at();
      break;
    case Stage::kAttaching: fds[1] = {attaching_->fd(), attaching_->poll_events(), 0}; break;
    case Stage::kReady: fds[1] = {socket_.get(), POLLIN, 0};
  }
  if (sending_) fds[1].events |= POLLOUT;
  (void)::poll(fds.data(), fds.size(), transport::poll_timeout(now, due, kMaxPollMs));
  if (fds[0].revents != 0) {
    std::uint64_t count = 0;
    (void)!::read(wake_.get(), &count, sizeof count);
  }
  now = std::chrono::steady_clock::now();
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
    const ServerLink::Options& options = control().options();
    auto addresses = transport::resolve(options.server);
    if (!addresses.ok() || addresses->empty()) return disconnect(now);
    transport::Hello hello;
    hello.purpose = transport::Purpose::kServer;
    hello.from = options.hello.worker;
    dialer_ = std::make_unique<transport::Dialer>(
        transport::Dialer::Options{std::move(*addresses), options.secret, hello});
    stage_ = Stage::kDialing;
  }
  if (!dialer_->step(now)) return;
  Result<transport::Descriptor> socket = dialer_->take();
  if (!socket.ok()) return disconnect(now);
  const WorkerHello& hello = control().options().hello;
  attaching_.emplace(std::move(*socket));
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
    STORMO_RETURN_IF_ERROR(attaching_->receive());
    STORMO_RETURN_IF_ERROR(take_attachment());
    if (stage_ == Stage::kAttaching) return attaching_->flush();
  }
  STORMO_RETURN_IF_ERROR(send_calls());
  return receive_replies();
}

Status DataLink::take_attachment() {
  STORMO_ASSIGN_OR_RETURN(const auto body, attaching_->next());
  if (!body) return {};
  STORMO_ASSIGN_OR_RETURN(const ServerReply reply, decode_server_reply(*body));
  if (reply.code != Code::kOk) return Status(reply.code, std::string(reply.body));
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

/// True when head_ has a head.
Result<bool> DataLink::receive_head() {
  for (;;) {
    if (!receiving_) {
      receiving_.emplace();
      receiving_->add(&head_length_, transport::kFrameLengthBytes);
      has_length_ = false;
    }
    if (!receiving_->done()) {
      STORMO_ASSIGN_OR_RETURN(const bool has_received, receiving_->receive(socket_.get()));
      if (!has_received) return false;
      continue;
    }
    if (has_length_) break;
    if (head_length_ > kMaxControlBytes)
      return Status(Code::kCorrupt, "server protocol: long head");
    has_length_ = true;
    head_.resize(head_length_);
    receiving_.emplace();
    receiving_->add(head_.data(), head_.size());
  }
  receiving_.reset();
  STORMO_ASSIGN_OR_RETURN(reply_, decode_data_reply(head_));
  return true;
}

void DataLink::complete(const DataReply& reply) {
  const std::lock_guard lock(mutex_);
  DataCall& call = *calls_.front();
  if (reply.code != Code::kOk) call.status = Status(reply.code, std::string(reply.body));
  call.body = reply.body;
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
  receiving_.reset();
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
