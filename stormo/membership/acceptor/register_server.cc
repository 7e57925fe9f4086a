#include <stormo/membership/acceptor/register_server.h>

#include <fmt/format.h>
#include <poll.h>
#include <stormo/membership/acceptor/register_wire.h>
#include <stormo/protocol/register/acceptor.h>
#include <stormo/transport/call/frame_connection.h>
#include <stormo/transport/call/loop_thread.h>
#include <stormo/transport/call/reply.h>
#include <stormo/transport/net/gate.h>

#include <atomic>
#include <chrono>
#include <utility>
#include <vector>

namespace stormo::membership {
namespace {

using protocol::kRegisterProtocol;
using transport::Gate;

constexpr int kMaxPollMs = 1000;
constexpr std::size_t kMaxConnections = 4096;
/// Bytes of answers for a proposer that does not read them.
constexpr std::size_t kMaxUnread = 4 * kMaxRegisterBytes;

struct Connection {
  transport::FrameConnection frames;
  std::string peer;
  bool is_over = false;
};

class PollingRegisterServer final : public RegisterServer {
 public:
  explicit PollingRegisterServer(AcceptorFile file) : file_(std::move(file)) {}
  ~PollingRegisterServer() override { loop_.stop(); }
  Status open(Options options);
  transport::HostPort address() const override { return address_; }
  std::size_t connections() const override { return count_; }

 private:
  void event(const std::string& line) const {
    if (options_.on_event) options_.on_event(line);
  }
  void turn();
  Status serve(Connection& c);
  void answer(Connection& c, const protocol::RegisterRequest& request);

  AcceptorFile file_;
  Options options_;
  transport::HostPort address_;
  std::unique_ptr<Gate> gate_;
  std::vector<Connection> connections_;
  std::atomic<std::size_t> count_ = 0;  // of connections_
  bool disk_fails_ = false;
  transport::LoopThread loop_;
};

Status PollingRegisterServer::open(Options options) {
  options_ = std::move(options);
  if (options_.secret.empty()) return invalid_argument("the register needs the job's secret");
  STORMO_RETURN_IF_ERROR(loop_.status());
  Gate::Options gate;
  STORMO_ASSIGN_OR_RETURN(address_, Gate::listen(gate, options_.address, options_.ports));
  gate.secret = options_.secret;
  gate.purpose = transport::Purpose::kRegister;
  gate.on_refused = [this](std::string_view line) { event(std::string(line)); };
  gate.admit = [this](const transport::Hello& hello) {
    // who takes it for another acceptor would count its answers twice
    if (hello.to != file_.name().index || hello.size != file_.name().count) {
      return transport::Refusal::kRank;
    }
    return connections_.size() < kMaxConnections ? transport::Refusal::kNone
                                                 : transport::Refusal::kFull;
  };
  STORMO_ASSIGN_OR_RETURN(gate_, Gate::open(std::move(gate)));
  loop_.start([this] { turn(); });
  return {};
}

void PollingRegisterServer::turn() {
  std::vector<pollfd> fds = {{loop_.fd(), POLLIN, 0}, {gate_->poll_fd(), POLLIN, 0}};
  for (const Connection& c : connections_) {
    fds.push_back({c.frames.fd(), c.frames.poll_events(), 0});
  }
  const TimePoint before = std::chrono::steady_clock::now();
  (void)::poll(fds.data(), fds.size(),
               transport::poll_timeout(before, gate_->wake_at(before), kMaxPollMs));
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    if (fds[i + 2].revents == 0) continue;
    Connection& c = connections_[i];
    const Status served = serve(c);
    c.is_over = !served.ok();
    if (served.code() == Code::kCorrupt || served.code() == Code::kExhausted) {
      event(fmt::format("refused {}: {}", c.peer, served.message()));
    }
  }
  std::erase_if(connections_, [](const Connection& c) { return c.is_over; });
  for (Gate::Visitor& visitor : gate_->step(std::chrono::steady_clock::now())) {
    connections_.push_back(
        {.frames = transport::FrameConnection(std::move(visitor.socket),
                                              {kRegisterProtocol, kMaxRegisterBytes}, kMaxUnread),
         .peer = std::move(visitor.peer)});
  }
  count_ = connections_.size();
}

Status PollingRegisterServer::serve(Connection& c) {
  STORMO_RETURN_IF_ERROR(c.frames.receive().status());
  for (;;) {
    STORMO_ASSIGN_OR_RETURN(const auto body, c.frames.next());
    if (!body) return c.frames.flush();
    STORMO_ASSIGN_OR_RETURN(const auto request,
                            transport::decode<protocol::RegisterRequest>(kRegisterProtocol, *body));
    answer(c, request);
  }
}

void PollingRegisterServer::answer(Connection& c, const protocol::RegisterRequest& request) {
  const protocol::AcceptorDecision decision = decide(file_.state(), request);
  if (decision.next != file_.state()) {
    const Status saved = file_.save(decision.next);
    if (!saved.ok() && !disk_fails_) event("cannot vote: " + saved.message());
    disk_fails_ = !saved.ok();
    if (!saved.ok()) {
      return c.frames.send(encode(
          transport::Reply{.id = request.round, .code = saved.code(), .body = saved.message()}));
    }
  }
  const std::string body = transport::encode(decision.reply);
  c.frames.send(encode(transport::Reply{.id = request.round, .body = body}));
}

}  // namespace

Result<std::unique_ptr<RegisterServer>> RegisterServer::start(AcceptorFile file, Options options) {
  auto server = std::make_unique<PollingRegisterServer>(std::move(file));
  STORMO_RETURN_IF_ERROR(server->open(std::move(options)));
  return std::unique_ptr<RegisterServer>(std::move(server));
}

}  // namespace stormo::membership
