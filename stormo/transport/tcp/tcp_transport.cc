#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <stormo/base/check.h>
#include <stormo/transport/tcp/link.h>
#include <stormo/transport/tcp/mesh.h>
#include <stormo/transport/tcp/send_times.h>
#include <stormo/transport/tcp/stripes.h>
#include <stormo/transport/tcp/tcp_transport.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <set>
#include <utility>

namespace stormo::transport {
namespace {

// Direct attempts, and yields to whoever shares the core, before sleeping in poll(): saves the
// wake-up where the peer answers soon. Longer than a round of several hosts takes: to sleep just
// before the answer comes costs more than not to have waited at all.
constexpr Duration kSpin = std::chrono::microseconds(200);
constexpr int kSliceMs = 20;
// A yield that takes longer has let another thread run: one that computes, while this one reduces
// gradients. Bulk data is better waited for in poll() then: the kernel wakes us when something has
// come, while after a yield the other keeps the core until its time is over.
constexpr Duration kShared = std::chrono::microseconds(50);
constexpr Duration kLineCheck = std::chrono::milliseconds(100);
constexpr std::size_t kBulkBytes = 64 << 10;

std::atomic<std::uint64_t> g_progress{0};

class TcpTransport final : public Transport {
 public:
  TcpTransport(TcpOptions options, std::map<Rank, std::vector<Channel>> sockets)
      : rank_(options.rank),
        size_(options.size),
        sockets_(options.sockets),
        silence_(options.silence),
        health_(std::move(options.health)) {
    links_.resize(static_cast<std::size_t>(size_));
    for (auto& [peer, ends] : sockets) {
      for (Channel& end : ends) {
        if (silence_ > Duration::zero()) keep_alive_within(end.fd(), silence_);
        links_[static_cast<std::size_t>(peer)].push_back(
            std::make_unique<Connection>(peer, std::move(end), options.epoch, options.checksum));
      }
    }
  }

  Rank rank() const override { return rank_; }
  int size() const override { return size_; }
  void fail(Status cause) override { failure_.fail(std::move(cause)); }
  Counters counters() const override {
    return {messages_sent_.load(), bytes_sent_.load(), messages_received_.load(),
            bytes_received_.load()};
  }

  Status exchange(std::span<const Outgoing> sends, std::span<const Incoming> receives,
                  Deadline by) override {
    if (const Status cause = group_status(); !cause.ok()) return cause;
    for (const Outgoing& m : sends) STORMO_RETURN_IF_ERROR(check_peer(m.to));
    for (const Incoming& m : receives) STORMO_RETURN_IF_ERROR(check_peer(m.from));
    active_.clear();
    stripes_.clear();
    for (const Outgoing& m : sends) add(m);
    for (const Incoming& m : receives) add(m);
    send_times_.end();
    if (is_bulk(sends, {})) measure(sends);
    const Status done = run(is_bulk(sends, receives), by);
    if (!done.ok()) {
      // Streams may be cut in the middle of a message: nothing may follow.
      failure_.fail(done);
      return failure_.status();
    }
    for (Connection* link : active_) link->clear();
    count(sends, receives);
    return {};
  }

 private:
  Status group_status() {
    if (health_ && health_->failed()) failure_.fail(health_->status());
    return failure_.status();
  }

  Status check_peer(Rank peer) const {
    if (peer < 0 || peer >= size_ || peer == rank_) {
      return invalid_argument(
          fmt::format("rank {} cannot exchange with rank {} in a group of {}", rank_, peer, size_));
    }
    if (!links_[static_cast<std::size_t>(peer)].empty()) return {};
    return invalid_argument(fmt::format("rank {} is not reached by tcp from rank {}", peer, rank_));
  }

  void activate(Connection& link) {
    if (!link.busy()) active_.push_back(&link);
  }

  void add(const Outgoing& m) {
    add(m.to, m, [](Outgoing&, int) {});
  }
  void add(const Incoming& m) {
    if (m.progress == nullptr) return add(m.from, m, [](Incoming&, int) {});
    Stripes& stripes = stripes_.emplace_back(m.progress, m.bytes.size(), sockets_);
    add(m.from, m, [&](Incoming& part, int i) { part.progress = stripes.progress(i); });
  }
  /// Over one connection, or a part of it over each; `prepare` is told of the parts.
  template <class Message, class Prepare>
  void add(Rank peer, const Message& m, Prepare&& prepare) {
    auto& links = links_[static_cast<std::size_t>(peer)];
    if (sockets_ == 1 || m.bytes.size() < Stripes::kLeastBytes) {
      activate(*links.front());
      links.front()->add(m);
      return;
    }
    for (int i = 0; i < sockets_; ++i) {
      Message part = m;
      part.bytes = Stripes::part(m.bytes, i, sockets_);
      prepare(part, i);
      Connection& link = *links[static_cast<std::size_t>(i)];
      activate(link);
      link.add(part);
    }
  }

  void measure(std::span<const Outgoing> sends) {
    for (const Outgoing& m : sends) send_times_.add(m.bytes.size());
    for (const Connection* link : active_) {
      if (link->sending()) send_times_.watch(link->fd());
    }
  }

  void count(std::span<const Outgoing> sends, std::span<const Incoming> receives) {
    messages_sent_ += sends.size();
    messages_received_ += receives.size();
    for (const Outgoing& m : sends) bytes_sent_ += m.bytes.size();
    for (const Incoming& m : receives) bytes_received_ += m.bytes.size();
  }

  Result<bool> move_some();
  static bool is_bulk(std::span<const Outgoing> sends, std::span<const Incoming> receives);
  Status run(bool bulk, Deadline by);
  void wait(TimePoint now, Deadline by);
  Status check_lines(TimePoint now);
  Status deadline_error() const;
  bool complete() const {
    return std::none_of(active_.begin(), active_.end(),
                        [](const Connection* l) { return l->busy(); });
  }

  const Rank rank_;
  const int size_;
  const int sockets_;
  const Duration silence_;
  const std::shared_ptr<Health> health_;
  Health failure_;  // of this endpoint
  // by rank; empty for self and ranks not reached by tcp
  std::vector<std::vector<std::unique_ptr<Connection>>> links_;
  std::vector<Connection*> active_;  // with parts of the current exchange
  std::deque<Stripes> stripes_;      // of the current exchange
  SendTimes send_times_;
  std::vector<pollfd> fds_;
  TimePoint lines_checked_{};
  std::atomic<std::uint64_t> messages_sent_{0};
  std::atomic<std::uint64_t> bytes_sent_{0};
  std::atomic<std::uint64_t> messages_received_{0};
  std::atomic<std::uint64_t> bytes_received_{0};
};

Result<bool> TcpTransport::move_some() {
  bool moved = false;
  for (Connection* link : active_) {
    if (link->sending()) {
      STORMO_ASSIGN_OR_RETURN(const bool sent, link->send_some());
      moved |= sent;
    }
    if (link->receiving()) {
      STORMO_ASSIGN_OR_RETURN(const bool received, link->receive_some());
      moved |= received;
    }
  }
  return moved;
}

bool TcpTransport::is_bulk(std::span<const Outgoing> sends, std::span<const Incoming> receives) {
  std::size_t bytes = 0;
  for (const Outgoing& m : sends) bytes += m.bytes.size();
  for (const Incoming& m : receives) bytes += m.bytes.size();
  return bytes >= kBulkBytes;
}

Status TcpTransport::run(bool bulk, Deadline by) {
  const RealClock clock;
  TimePoint moved_at = clock.now();
  bool shared = false;  // bulk data, and a thread that computes on this core
  for (;;) {
    STORMO_ASSIGN_OR_RETURN(const bool moved, move_some());
    if (complete()) return {};
    if (const Status cause = group_status(); !cause.ok()) return cause;
    const TimePoint now = clock.now();
    if (now >= by.when() && !by.is_never()) return deadline_error();
    if (moved) {
      moved_at = now;
      note_tcp_progress();
    } else if (now - moved_at >= kSpin || shared) {
      STORMO_RETURN_IF_ERROR(check_lines(now));
      wait(now, by);
    } else {
      ::sched_yield();  // whoever shares this core may be the one that we wait for
      shared = bulk && clock.now() - now > kShared;
    }
  }
}

void TcpTransport::wait(TimePoint now, Deadline by) {
  fds_.clear();
  for (const Connection* link : active_) {
    const int events = (link->sending() ? POLLOUT : 0) | (link->receiving() ? POLLIN : 0);
    if (events != 0) fds_.push_back({link->fd(), static_cast<short>(events), 0});
  }
  ::poll(fds_.data(), fds_.size(), poll_timeout(now, by.when(), kSliceMs));
}

/// Whether the hosts of those that this exchange waits for are still there.
Status TcpTransport::check_lines(TimePoint now) {
  if (silence_ <= Duration::zero() || now - lines_checked_ < kLineCheck) return {};
  lines_checked_ = now;
  for (Connection* link : active_) {
    if (link->busy()) STORMO_RETURN_IF_ERROR(link->check_line(now, silence_));
  }
  return {};
}

Status TcpTransport::deadline_error() const {
  const auto busy =
      std::find_if(active_.begin(), active_.end(), [](const Connection* l) { return l->busy(); });
  STORMO_CHECK(busy != active_.end(), "a deadline without a wait");
  return {Code::kDeadlineExceeded, fmt::format("rank {}: {}", rank_, (*busy)->describe_wait())};
}

Status check_options(const TcpOptions& o) {
  if (o.secret.empty()) {
    return invalid_argument(
        "tcp between ranks needs the job's secret; start the job with the launcher or give a "
        "rendezvous file");
  }
  if (o.size < 1 || o.rank < 0 || o.rank >= o.size) {
    return invalid_argument(fmt::format("tcp: rank {} in a group of {}", o.rank, o.size));
  }
  if (o.sockets < 1 || o.sockets > TcpOptions::kMaxSockets) {
    return invalid_argument(fmt::format("tcp: {} sockets for each peer; give 1 to {}", o.sockets,
                                        TcpOptions::kMaxSockets));
  }
  std::set<Rank> seen;
  for (const TcpPeer& peer : o.peers) {
    if (peer.rank < 0 || peer.rank >= o.size || peer.rank == o.rank ||
        !seen.insert(peer.rank).second) {
      return invalid_argument(
          fmt::format("tcp: rank {} of {} cannot have rank {} as a peer (or twice)", o.rank, o.size,
                      peer.rank));
    }
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<TcpListener>> TcpListener::listen(std::string_view address,
                                                         PortRange ports) {
  STORMO_ASSIGN_OR_RETURN(const HostPort at, parse_host_port(address));
  STORMO_ASSIGN_OR_RETURN(Descriptor socket, listen_tcp(at, ports));
  STORMO_ASSIGN_OR_RETURN(const SocketAddress bound, local_address_of(socket.get()));
  return std::unique_ptr<TcpListener>(new TcpListener(std::move(socket), bound.to_string()));
}

std::uint64_t tcp_progress() { return g_progress.load(std::memory_order_relaxed); }
void note_tcp_progress() { g_progress.fetch_add(1, std::memory_order_relaxed); }

Result<TcpConnections> connect_tcp(TcpOptions options, std::unique_ptr<TcpListener> listener,
                                   Deadline by) {
  STORMO_RETURN_IF_ERROR(check_options(options));
  STORMO_ASSIGN_OR_RETURN(auto sockets, connect_mesh(options, std::move(listener), by));
  TcpConnections made;
  for (auto& [peer, ends] : sockets) {
    made.others.emplace(peer, std::move(ends.back()));
    ends.pop_back();
  }
  made.transport = std::make_unique<TcpTransport>(std::move(options), std::move(sockets));
  return made;
}

}  // namespace stormo::transport
