#include <fmt/format.h>
#include <poll.h>
#include <stormo/transport/net/dialer.h>
#include <stormo/transport/net/gate.h>
#include <stormo/transport/tcp/mesh.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace stormo::transport {
namespace {

constexpr int kMeshSliceMs = 20;

struct Call {
  TcpPeer peer;
  int index;  ///< of the connections to this peer
  Dialer dialer;
};

/// The set-up of one rank: it calls the lower ranks and is called by the higher ones.
class MeshSetup {
 public:
  MeshSetup(const TcpOptions& options, std::unique_ptr<TcpListener> listener)
      : options_(options), num_sockets_(options.sockets + 1), listener_(std::move(listener)) {}

  Result<std::map<Rank, std::vector<Channel>>> run(Deadline by);

 private:
  Status prepare();
  Refusal admit(const Hello& hello);
  Status step(TimePoint now);
  void wait(TimePoint now, Deadline by);
  Status deadline_error() const;
  bool complete() const { return calls_.empty() && expected_.empty(); }
  /// What ranks call themselves in a Hello: every connection has ends of its own.
  Rank end_of(Rank rank, int index) const { return rank * num_sockets_ + index; }
  std::map<Rank, std::vector<Channel>> take_by_rank();

  const TcpOptions& options_;
  const int num_sockets_;
  std::unique_ptr<TcpListener> listener_;
  std::unique_ptr<Gate> gate_;
  std::vector<Call> calls_;
  std::set<Rank> expected_;  // ends of higher ranks that have not come yet
  std::set<Rank> arrived_;
  std::map<Rank, Channel> connected_;  // by the peer's end
};

Status MeshSetup::prepare() {
  for (const TcpPeer& peer : options_.peers) {
    if (peer.rank > options_.rank) {
      for (int i = 0; i < num_sockets_; ++i) expected_.insert(end_of(peer.rank, i));
      continue;
    }
    STORMO_ASSIGN_OR_RETURN(const HostPort at, parse_host_port(peer.address));
    STORMO_ASSIGN_OR_RETURN(auto addresses, resolve(at));
    for (int i = 0; i < num_sockets_; ++i) {
      const Hello hello{Purpose::kData, options_.epoch, end_of(options_.rank, i),
                        end_of(peer.rank, i), end_of(options_.size, 0)};
      calls_.push_back({peer, i, Dialer({addresses, options_.secret, hello})});
    }
  }
  if (expected_.empty()) return {};
  if (!listener_) return invalid_argument("tcp: a rank with higher peers needs a listener");
  Gate::Options gate;
  gate.listener = listener_->release();
  gate.secret = options_.secret;
  gate.purpose = Purpose::kData;
  gate.admit = [this](const Hello& hello) { return admit(hello); };
  gate.on_refused = options_.on_refused;
  STORMO_ASSIGN_OR_RETURN(gate_, Gate::open(std::move(gate)));
  return {};
}

Refusal MeshSetup::admit(const Hello& hello) {
  if (hello.epoch != options_.epoch) return Refusal::kEpoch;
  if (arrived_.contains(hello.from)) return Refusal::kDuplicate;
  const bool meant_for_us = hello.to == end_of(options_.rank, hello.from % num_sockets_) &&
                            hello.size == end_of(options_.size, 0);
  if (!meant_for_us || !expected_.contains(hello.from)) return Refusal::kRank;
  arrived_.insert(hello.from);
  return Refusal::kNone;
}

Status MeshSetup::step(TimePoint now) {
  for (Call& call : calls_) {
    if (!call.dialer.step(now)) continue;
    Result<Channel> socket = call.dialer.take();
    if (!socket.ok()) {
      return socket.status().within(
          fmt::format("connect to rank {} at {}", call.peer.rank, call.peer.address));
    }
    connected_.emplace(end_of(call.peer.rank, call.index), std::move(*socket));
  }
  std::erase_if(calls_, [](const Call& c) { return c.dialer.finished(); });
  if (!gate_) return {};
  for (Gate::Visitor& visitor : gate_->step(now)) {
    expected_.erase(visitor.hello.from);
    connected_.emplace(visitor.hello.from, std::move(visitor.socket));
  }
  if (expected_.empty()) {
    gate_->close("all ranks are connected already");
    gate_.reset();
  }
  return {};
}

void MeshSetup::wait(TimePoint now, Deadline by) {
  std::vector<pollfd> fds;
  TimePoint wake = by.when();
  for (const Call& call : calls_) {
    fds.push_back({call.dialer.fd(), call.dialer.poll_events(), 0});
    wake = std::min(wake, call.dialer.wake_at());
  }
  if (gate_) {
    fds.push_back({gate_->poll_fd(), POLLIN, 0});
    wake = std::min(wake, gate_->wake_at(now));
  }
  ::poll(fds.data(), fds.size(), poll_timeout(now, wake, kMeshSliceMs));
}

Status MeshSetup::deadline_error() const {
  std::vector<std::string> missing;
  for (const Call& call : calls_) {
    missing.push_back(fmt::format("rank {} at {} ({})", call.peer.rank, call.peer.address,
                                  call.dialer.last_failure()));
  }
  std::set<Rank> absent;
  for (const Rank end : expected_) absent.insert(end / num_sockets_);
  for (const Rank r : absent) missing.push_back(fmt::format("rank {} (has not connected)", r));
  return {Code::kDeadlineExceeded,
          fmt::format("rank {} is not connected to {}; check that these processes run and that "
                      "their ports can be reached",
                      options_.rank, fmt::join(missing, ", "))};
}

std::map<Rank, std::vector<Channel>> MeshSetup::take_by_rank() {
  std::map<Rank, std::vector<Channel>> out;
  for (auto& [end, socket] : connected_) out[end / num_sockets_].push_back(std::move(socket));
  return out;
}

Result<std::map<Rank, std::vector<Channel>>> MeshSetup::run(Deadline by) {
  STORMO_RETURN_IF_ERROR(prepare());
  const RealClock clock;
  for (;;) {
    const TimePoint now = clock.now();
    STORMO_RETURN_IF_ERROR(step(now));
    if (complete()) return take_by_rank();
    if (options_.health && options_.health->failed()) return options_.health->status();
    if (by.expired()) return deadline_error();
    wait(now, by);
  }
}

}  // namespace

Result<std::map<Rank, std::vector<Channel>>> connect_mesh(const TcpOptions& options,
                                                          std::unique_ptr<TcpListener> listener,
                                                          Deadline by) {
  return MeshSetup(options, std::move(listener)).run(by);
}

}  // namespace stormo::transport
