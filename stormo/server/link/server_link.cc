#include <stormo/server/link/server_link.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <stormo/base/wait_until.h>
#include <stormo/server/intervals.h>

namespace stormo::server {
namespace {

constexpr std::uint32_t kHelloId = 3;
constexpr Duration kShortestBeat = std::chrono::milliseconds(5);
constexpr Duration kLongestBeat = std::chrono::milliseconds(250);  // a stall is seen from beats
/// With backups: verdicts about servers come with beats.
constexpr Duration kLongestBeatOfBackups = std::chrono::milliseconds(100);
/// After a hello that came too early, and after a connection that broke.
constexpr Duration kPause = std::chrono::milliseconds(50);

}  // namespace

Result<std::unique_ptr<ServerLink>> ServerLink::begin(Options options) {
  std::unique_ptr<ServerLink> link(new ServerLink(std::move(options), /*may_start_later=*/false));
  STORMO_RETURN_IF_ERROR(link->start());
  return link;
}

Result<std::unique_ptr<ServerLink>> ServerLink::connect(Options options, Deadline by) {
  std::unique_ptr<ServerLink> link(new ServerLink(std::move(options), /*may_start_later=*/true));
  STORMO_RETURN_IF_ERROR(link->start());
  std::unique_lock lock(link->mutex_);
  (void)wait_until(link->changed_, lock, by,
                   [&] { return link->was_greeted_ || !link->refused_.ok(); });
  const std::string name = transport::to_string(link->options_.server);
  if (!link->refused_.ok()) return link->refused_.within("server " + name);
  if (!link->was_greeted_ && !link->busy_.empty()) {
    return Status(Code::kDeadlineExceeded, link->busy_).within("server " + name);
  }
  if (!link->was_greeted_) {
    return Status(Code::kDeadlineExceeded,
                  fmt::format("cannot reach the server at {}: {}; check that it runs and that the "
                              "address is right",
                              name, link->last_failure_));
  }
  lock.unlock();
  return link;
}

Status ServerLink::start() {
  timeout_ = Duration(options_.hello.timeout_ns);
  STORMO_RETURN_IF_ERROR(loop_.status());
  heard_ = last_turn_ = std::chrono::steady_clock::now();
  loop_.start([this] { turn(); });
  return {};
}

Result<std::string> ServerLink::ask(ServerOp op, std::string body, Deadline by) {
  std::unique_lock lock(mutex_);
  const std::uint32_t id = next_id_++;
  question_ =
      Question{.id = id, .request = encode(ServerRequest{.op = op, .id = id, .body = body})};
  loop_.wake();
  (void)wait_until(changed_, lock, by,
                   [&] { return question_->answer || options_.health->failed(); });
  std::optional<Result<std::string>> answer = std::move(question_->answer);
  question_.reset();
  if (answer) return *std::move(answer);
  STORMO_RETURN_IF_ERROR(options_.health->status());
  return Status(Code::kDeadlineExceeded, fmt::format("the server at {} has not answered in time",
                                                     transport::to_string(options_.server)));
}

/// Waits for something to do, and does it.
void ServerLink::turn() {
  const bool is_lost = options_.health->failed();
  int fd = -1;
  short events = 0;
  TimePoint due = is_lost && !options_.on_answer ? TimePoint::max() : next_dial_;
  if (connection_) {
    fd = connection_->fd();
    events = connection_->poll_events();
    due = next_beat_;
  } else if (dialer_) {
    fd = dialer_->fd();
    events = dialer_->poll_events();
    due = dialer_->wake_at();
  }
  (void)loop_.wait(fd, events, due, kMaxPollMs);
  if (is_lost) {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
    if (!options_.on_answer) return;
  }
  const TimePoint now = std::chrono::steady_clock::now();
  if (!connection_) dial(now);
  if (connection_) {
    if (const Status status = talk(now); !status.ok()) disconnect(now, status);
  }
  if (!is_lost) look_whether_lost(now);
}

Result<std::unique_ptr<transport::Dialer>> ServerLink::dial(const Options& options) {
  STORMO_ASSIGN_OR_RETURN(auto addresses, transport::resolve(options.server));
  if (addresses.empty()) return io_error("it has no address");
  transport::Hello hello;
  hello.purpose = transport::Purpose::kServer;
  hello.from = options.hello.worker;
  return std::make_unique<transport::Dialer>(
      transport::Dialer::Options{std::move(addresses), options.secret, hello});
}

void ServerLink::dial(TimePoint now) {
  if (now < next_dial_) return;
  if (!dialer_) {
    auto dialer = dial(options_);
    if (!dialer.ok()) return disconnect(now, dialer.status());
    dialer_ = *std::move(dialer);
  }
  const bool is_finished = dialer_->step(now);
  if (!is_finished) {
    const std::lock_guard lock(mutex_);
    last_failure_ = dialer_->last_failure();
    return;
  }
  Result<transport::Channel> socket = dialer_->take();
  dialer_.reset();
  if (!socket.ok()) {
    const std::lock_guard lock(mutex_);
    refused_ = socket.status();
    changed_.notify_all();
    return disconnect(now, socket.status());
  }
  connection_.emplace(std::move(*socket), control_frames());
  next_beat_ = now;
  connection_->send(encode(
      ServerRequest{.op = ServerOp::kHello, .id = kHelloId, .body = encode(options_.hello)}));
}

Status ServerLink::talk(TimePoint now) {
  // what the server said before it ended counts
  const Status received = connection_->receive().status();
  STORMO_RETURN_IF_ERROR(take_replies(now));
  STORMO_RETURN_IF_ERROR(received);
  send_due(now);
  return connection_->flush();
}

Status ServerLink::take_replies(TimePoint now) {
  for (;;) {
    STORMO_ASSIGN_OR_RETURN(const auto body, connection_->next());
    if (!body) return {};
    STORMO_ASSIGN_OR_RETURN(const transport::Reply reply, decode<transport::Reply>(*body));
    heard_ = now;
    if (reply.id == kFarewell) {
      give_up(std::string(reply.body),
              reply.code == Code::kCancelled ? Code::kCancelled : Code::kPeerLost);
      return io_error("it has ended");
    }
    if (reply.id == kHelloId) {
      STORMO_RETURN_IF_ERROR(take_hello(reply));
      continue;
    }
    if (reply.id == kBeatId) {
      if (options_.on_answer) options_.on_answer(reply.body);
      continue;
    }
    if (reply.id == kNotice) {
      if (options_.on_notice) options_.on_notice(reply.body);
      continue;
    }
    const std::lock_guard lock(mutex_);
    if (!question_ || question_->id != reply.id) continue;
    question_->answer = outcome_of(reply);
    changed_.notify_all();
  }
}

Status ServerLink::take_hello(const transport::Reply& reply) {
  const std::lock_guard lock(mutex_);
  if (reply.code == Code::kExhausted) {
    busy_ = reply.body;
    return {Code::kExhausted, busy_};
  }
  if (reply.code != Code::kOk) {
    refused_ = Status(reply.code, std::string(reply.body));
    changed_.notify_all();
    return refused_;
  }
  STORMO_ASSIGN_OR_RETURN(ServerHello hello, decode<ServerHello>(reply.body));
  is_greeted_ = true;
  if (was_greeted_) return {};
  if (Place::own().is_same_host(hello.place)) process_.emplace(hello.place.process);
  server_ = std::move(hello);
  was_greeted_ = true;
  changed_.notify_all();
  return {};
}

void ServerLink::send_due(TimePoint now) {
  if (!is_greeted_) return;
  if (now >= next_beat_) {
    const std::string news = options_.beat ? options_.beat() : std::string();
    connection_->send(encode(ServerRequest{.op = ServerOp::kBeat, .body = news}));
    const Duration longest = options_.hello.backups ? kLongestBeatOfBackups : kLongestBeat;
    next_beat_ = now + std::clamp<Duration>(timeout_ / 5, kShortestBeat, longest);
  }
  const std::lock_guard lock(mutex_);
  if (!question_ || question_->is_sent) return;
  connection_->send(question_->request);
  question_->is_sent = true;
}

void ServerLink::disconnect(TimePoint now, const Status& why) {
  connection_.reset();
  dialer_.reset();
  is_greeted_ = false;
  next_dial_ = now + kPause;
  const std::lock_guard lock(mutex_);
  last_failure_ = why.message();
  if (question_) question_->is_sent = false;
}

void ServerLink::look_whether_lost(TimePoint now) {
  const Duration since = now - std::exchange(last_turn_, now);
  heard_ += std::max<Duration>(since - kLongestTurn, Duration::zero());
  std::string why;
  {
    const std::lock_guard lock(mutex_);
    if (!was_greeted_ && may_start_later_) return;
    why = refused_.ok() ? last_failure_ : refused_.message();
    if (is_greeted_) why = "it is silent";
    // before the first greeting it may be busy with the memory of its shards
    const bool is_apart =
        options_.hello.backups && was_greeted_ && !is_greeted_ && now - heard_ >= kLongestApart;
    if (refused_.ok() && now - heard_ < timeout_ && !is_apart) why.clear();
  }
  if (process_ && !is_greeted_) process_->wait(Duration::zero());
  if (process_ && process_->is_gone()) why = "its process has ended";
  if (!why.empty()) give_up(why);
}

Status ServerLink::lost(const transport::HostPort& server, const std::string& why, Code code) {
  return Status(code,
                fmt::format("the server at {} is lost: {}", transport::to_string(server), why));
}

void ServerLink::give_up(const std::string& why, Code code) {
  (void)options_.health->fail(lost(options_.server, why, code));
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

}  // namespace stormo::server
