#include <stormo/membership/member_links.h>

#include <fmt/format.h>
#include <poll.h>
#include <stormo/membership/epoch_record.h>
#include <stormo/membership/member_connection.h>
#include <stormo/transport/call/loop_thread.h>
#include <stormo/transport/net/dialer.h>
#include <stormo/transport/net/gate.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace stormo::membership {
namespace {

using protocol::ElasticMessage;
using protocol::MemberId;
using transport::Dialer;
using transport::Gate;
using State = MemberConnection::State;

constexpr int kMaxWaitMs = 1000;
constexpr std::size_t kMaxMemberConnections = 4096;
constexpr Duration kShortPause = std::chrono::milliseconds(50);
/// After a refusal, which is a line in the peer's log.
constexpr Duration kRefusedPause = std::chrono::milliseconds(500);
/// Of one attempt to connect. The kernel repeats it ever less often, and would find a line that is
/// there again late.
constexpr Duration kAttemptLimit = std::chrono::seconds(1);

/// Messages that wait for a connection, by the index of their kind. In the order of sending.
using Mail = std::vector<std::pair<std::size_t, std::string>>;

struct Peer {
  MemberId id{};
  std::string address{};
  std::vector<transport::SocketAddress> addresses{};  // empty: it is not dialled
  MemberConnection* dialled = nullptr;
  MemberConnection* used = nullptr;  // for messages, which so keep their order, until it is over
  std::unique_ptr<Dialer> dialer{};
  TimePoint dial_at{};
  TimePoint give_up_at{};     // the present attempt
  bool is_suspected = false;  // a connection to `id` broke: if nobody listens there it has ended
  bool has_ended = false;     // `id`
  std::string trouble{};      // the last line about it
  Mail mail{};
};

class PollingMemberLinks final : public MemberLinks {
 public:
  ~PollingMemberLinks() override;
  Status open(Options options);
  transport::HostPort address() const override { return address_; }
  void set_peers(const std::vector<protocol::ElasticEntry>& peers) override;
  void send(const std::string& identity, const ElasticMessage& message) override;
  void wake() override { loop_.wake(); }

 private:
  struct Happenings {
    std::vector<ElasticMessage> messages;
    std::vector<MemberId> ended;
    std::vector<std::string> events;
  };

  // The loop's thread.
  void turn();
  void tell(const Happenings& what);

  // The loop's thread, with the mutex.
  std::vector<pollfd> what_to_poll(TimePoint& until);
  void serve(const std::vector<pollfd>& polled);
  void serve(MemberConnection& c);
  void greet(MemberConnection& c);
  void meet(Peer& p, MemberConnection& c);
  void sweep(TimePoint now);
  void dial(Peer& p, TimePoint now);
  void connect(Peer& p, TimePoint now);
  void end(const MemberId& id);

  // Any thread, with the mutex.
  void set_peer(const protocol::ElasticEntry& entry,
                std::vector<transport::SocketAddress> addresses);
  void hang_up(Peer& p);
  MemberConnection* connection_to(const std::string& identity, Peer& p);
  void post(const std::string& identity, Peer& p);
  void trouble(Peer& p, std::string line);

  Options options_;
  transport::HostPort address_;
  std::unique_ptr<Gate> gate_;
  TimePoint next_tick_{};

  std::mutex mutex_;
  // Only the loop's thread adds and removes any.
  std::vector<std::unique_ptr<MemberConnection>> connections_;
  std::map<std::string, Peer> peers_;  // by identity: those that are listed or connected
  Happenings happenings_;
  transport::LoopThread loop_;
};

PollingMemberLinks::~PollingMemberLinks() {
  loop_.stop();
  for (const auto& c : connections_) c->close();
}

Status PollingMemberLinks::open(Options options) {
  options_ = std::move(options);
  if (options_.secret.empty()) return invalid_argument("members need the job's secret");
  if (options_.me.identity.empty() || options_.me.identity.size() > kMaxNameBytes) {
    return invalid_argument(fmt::format("the identity of a member has 1 to {} bytes, not {}",
                                        kMaxNameBytes, options_.me.identity.size()));
  }
  STORMO_RETURN_IF_ERROR(loop_.status());
  Gate::Options gate;
  STORMO_ASSIGN_OR_RETURN(address_, Gate::listen(gate, options_.address, options_.ports));
  gate.secret = options_.secret;
  gate.purpose = transport::Purpose::kMember;
  gate.on_refused = [this](std::string_view line) { happenings_.events.emplace_back(line); };
  gate.admit = [this](const transport::Hello&) {
    return connections_.size() < kMaxMemberConnections ? transport::Refusal::kNone
                                                       : transport::Refusal::kFull;
  };
  STORMO_ASSIGN_OR_RETURN(gate_, Gate::open(std::move(gate)));
  loop_.start([this] { turn(); });
  return {};
}

void PollingMemberLinks::set_peers(const std::vector<protocol::ElasticEntry>& peers) {
  struct Found {
    const protocol::ElasticEntry* entry;
    std::vector<transport::SocketAddress> addresses;
    std::string trouble;
  };
  std::vector<Found> found;
  for (const protocol::ElasticEntry& entry : peers) {
    if (entry.id.identity == options_.me.identity) continue;
    found.push_back({&entry, {}, {}});
    auto addresses = [&]() -> Result<std::vector<transport::SocketAddress>> {
      STORMO_ASSIGN_OR_RETURN(const auto at, transport::parse_host_port(entry.address));
      return transport::resolve(at);
    }();
    if (addresses.ok()) {
      found.back().addresses = std::move(*addresses);
    } else {
      found.back().trouble = addresses.status().message();
    }
  }
  {
    const std::lock_guard lock(mutex_);
    for (auto& [identity, p] : peers_) {
      const bool is_listed = std::any_of(found.begin(), found.end(), [&](const Found& f) {
        return f.entry->id.identity == identity;
      });
      if (!is_listed) hang_up(p);
    }
    for (Found& f : found) {
      set_peer(*f.entry, std::move(f.addresses));
      if (!f.trouble.empty()) trouble(peers_[f.entry->id.identity], std::move(f.trouble));
    }
  }
  loop_.wake();
}

void PollingMemberLinks::set_peer(const protocol::ElasticEntry& entry,
                                  std::vector<transport::SocketAddress> addresses) {
  Peer& p = peers_[entry.id.identity];
  if (p.id == entry.id && p.address == entry.address && !p.addresses.empty()) return;
  hang_up(p);
  if (p.id != entry.id) {
    p.is_suspected = p.has_ended = false;
    p.used = nullptr;
  }
  p.id = entry.id;
  p.address = entry.address;
  p.addresses = std::move(addresses);
  p.dial_at = {};
}

/// It is not dialled any more.
void PollingMemberLinks::hang_up(Peer& p) {
  if (p.dialled != nullptr) p.dialled->close();
  p.dialled = nullptr;
  p.dialer.reset();
  p.addresses.clear();
}

void PollingMemberLinks::trouble(Peer& p, std::string line) {
  line = fmt::format("no connection to {} at {}: {}", p.id.identity, p.address, line);
  if (line == p.trouble) return;
  p.trouble = line;
  happenings_.events.push_back(std::move(line));
}

void PollingMemberLinks::send(const std::string& identity, const ElasticMessage& message) {
  std::string bytes = encode_message(message);
  const std::lock_guard lock(mutex_);
  const auto found = peers_.find(identity);
  if (found == peers_.end()) return;
  Peer& p = found->second;
  std::erase_if(p.mail, [&](const auto& old) { return old.first == message.index(); });
  p.mail.emplace_back(message.index(), std::move(bytes));
  post(identity, p);
}

MemberConnection* PollingMemberLinks::connection_to(const std::string& identity, Peer& p) {
  if (p.used != nullptr && p.used->state() == State::kOpen) return p.used;
  p.used = nullptr;
  for (const auto& c : connections_) {
    const std::optional<MemberId>& there = c->peer();
    if (c->state() != State::kOpen || !there || there->identity != identity) continue;
    const MemberId& least = p.used != nullptr ? *p.used->peer() : p.id;
    if (there->incarnation >= least.incarnation) p.used = c.get();
  }
  return p.used;
}

void PollingMemberLinks::post(const std::string& identity, Peer& p) {
  if (p.mail.empty()) return;
  MemberConnection* const c = connection_to(identity, p);
  std::size_t sent = 0;
  while (c != nullptr && c->is_ready() && sent < p.mail.size()) c->send(p.mail[sent++].second);
  p.mail.erase(p.mail.begin(), p.mail.begin() + static_cast<std::ptrdiff_t>(sent));
  if (sent > 0 && !c->is_ready()) loop_.wake();  // to wait until the socket takes the rest
}

void PollingMemberLinks::turn() {
  TimePoint until = next_tick_;
  std::vector<pollfd> fds;
  {
    const std::lock_guard lock(mutex_);
    fds = what_to_poll(until);
  }
  (void)::poll(fds.data(), fds.size(),
               transport::poll_timeout(std::chrono::steady_clock::now(), until, kMaxWaitMs));
  eventfd_t wakes = 0;
  if (fds[0].revents != 0) (void)::eventfd_read(loop_.fd(), &wakes);
  Happenings what;
  {
    const std::lock_guard lock(mutex_);
    serve(fds);
    const TimePoint now = std::chrono::steady_clock::now();
    for (Gate::Visitor& visitor : gate_->step(now)) {
      connections_.push_back(std::make_unique<MemberConnection>(
          std::move(visitor.socket), options_.me, std::move(visitor.peer), ""));
    }
    sweep(now);
    for (auto& [identity, p] : peers_) {
      dial(p, now);
      post(identity, p);
    }
    what = std::exchange(happenings_, {});
  }
  tell(what);
}

void PollingMemberLinks::tell(const Happenings& what) {
  for (const std::string& line : what.events) {
    if (options_.on_event) options_.on_event(line);
  }
  for (const ElasticMessage& message : what.messages) {
    if (options_.on_message) options_.on_message(message);
  }
  for (const MemberId& id : what.ended) {
    if (options_.on_ended) options_.on_ended(id);
  }
  next_tick_ =
      options_.on_tick ? options_.on_tick(std::chrono::steady_clock::now()) : TimePoint::max();
}

/// The connections come first, behind two others.
std::vector<pollfd> PollingMemberLinks::what_to_poll(TimePoint& until) {
  std::vector<pollfd> fds = {{loop_.fd(), POLLIN, 0}, {gate_->poll_fd(), POLLIN, 0}};
  for (const auto& c : connections_) fds.push_back({c->fd(), c->poll_events(), 0});
  for (const auto& [identity, p] : peers_) {
    if (p.dialled != nullptr || p.addresses.empty() || p.has_ended) continue;
    if (p.dialer && p.dialer->fd() >= 0) {
      fds.push_back({p.dialer->fd(), p.dialer->poll_events(), 0});
      until = std::min(until, p.give_up_at);
    } else {
      until = std::min(until, p.dialer ? p.dialer->wake_at() : p.dial_at);
    }
  }
  until = std::min(until, gate_->wake_at(std::chrono::steady_clock::now()));
  return fds;
}

void PollingMemberLinks::serve(const std::vector<pollfd>& polled) {
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    if (polled[i + 2].revents != 0) serve(*connections_[i]);
  }
}

void PollingMemberLinks::serve(MemberConnection& c) {
  const bool was_known = c.peer().has_value();
  const Status served = c.serve(happenings_.messages);
  if (!served.ok()) {
    happenings_.events.push_back(fmt::format("refused {}: {}", c.name(), served.message()));
  }
  if (!was_known && c.peer()) greet(c);
}

/// The peer has said who it is.
void PollingMemberLinks::greet(MemberConnection& c) {
  Peer& p = peers_[c.peer()->identity];
  const bool is_newer = c.peer()->incarnation > p.id.incarnation;
  if (is_newer) p.used = nullptr;
  if (p.id.identity.empty() || (is_newer && p.addresses.empty())) p.id = *c.peer();
  if (p.id == *c.peer()) p.is_suspected = p.has_ended = false;
  if (!c.dialled().empty()) return meet(peers_[c.dialled()], c);
  for (const auto& other : connections_) {
    // it has made a new one because the old one is broken
    if (other.get() != &c && other->dialled().empty() && other->peer() == c.peer()) other->close();
  }
}

/// Whether the one that was dialled is there.
void PollingMemberLinks::meet(Peer& p, MemberConnection& c) {
  if (p.dialled != &c) return;
  const MemberId& there = *c.peer();
  if (there == p.id) {
    p.trouble.clear();
    return;
  }
  const bool is_newer = there.identity == p.id.identity && there.incarnation > p.id.incarnation;
  if (p.is_suspected) end(p.id);  // its address is another process's
  if (is_newer) return;
  trouble(p, fmt::format("{} (start {}) is there, not start {} of {}", there.identity,
                         there.incarnation, p.id.incarnation, p.id.identity));
  c.close();
  p.dialled = nullptr;
  p.dial_at = std::chrono::steady_clock::now() + kRefusedPause;
}

/// What is over goes.
void PollingMemberLinks::sweep(TimePoint now) {
  for (const auto& c : connections_) {
    if (c->state() == State::kOpen) continue;
    for (const std::string& identity : {c->dialled(), c->peer() ? c->peer()->identity : ""}) {
      const auto found = peers_.find(identity);
      if (found == peers_.end()) continue;
      Peer& p = found->second;
      if (p.used == c.get()) p.used = nullptr;
      if (p.dialled == c.get()) {
        p.dialled = nullptr;
        p.dial_at = c->state() == State::kBroken ? now : now + kShortPause;
      }
      if (c->peer() == p.id) p.is_suspected = c->state() == State::kBroken;
    }
    if (c->state() == State::kPeerEnded && c->peer()) end(*c->peer());
  }
  std::erase_if(connections_, [](const auto& c) { return c->state() != State::kOpen; });
  for (auto it = peers_.begin(); it != peers_.end();) {
    Peer& p = it->second;
    const bool is_needed = !p.addresses.empty() || connection_to(it->first, p) != nullptr;
    it = is_needed ? std::next(it) : peers_.erase(it);
  }
}

void PollingMemberLinks::end(const MemberId& id) {
  if (contains(happenings_.ended, id)) return;
  happenings_.ended.push_back(id);
  for (const auto& c : connections_) {
    if (c->peer() != id) continue;
    (void)c->serve(happenings_.messages);  // its last words
    c->close();
  }
  Peer& p = peers_[id.identity];
  for (MemberConnection** c : {&p.dialled, &p.used}) {
    if (*c != nullptr && (*c)->state() != State::kOpen) *c = nullptr;
  }
  if (p.id != id) return;
  p.has_ended = true;
  p.is_suspected = false;
  p.dialer.reset();
  p.mail.clear();
}

void PollingMemberLinks::dial(Peer& p, TimePoint now) {
  if (p.dialled != nullptr || p.addresses.empty() || p.has_ended || now < p.dial_at) return;
  if (!p.dialer) {
    transport::Hello hello;
    hello.purpose = transport::Purpose::kMember;
    p.dialer = std::make_unique<Dialer>(Dialer::Options{p.addresses, options_.secret, hello});
  }
  const bool was_idle = p.dialer->fd() < 0;
  const bool is_done = p.dialer->step(now);
  if (is_done) return connect(p, now);
  if (p.is_suspected && p.dialer->nobody_listens()) return end(p.id);
  if (was_idle) p.give_up_at = now + kAttemptLimit;
  if (p.dialer->fd() >= 0 && now >= p.give_up_at) {
    p.dialer.reset();
    p.dial_at = now + kShortPause;
  }
}

void PollingMemberLinks::connect(Peer& p, TimePoint now) {
  Result<transport::Channel> socket = p.dialer->take();
  p.dialer.reset();
  if (!socket.ok()) {
    trouble(p, socket.status().message());
    p.dial_at = now + kRefusedPause;
    return;
  }
  connections_.push_back(std::make_unique<MemberConnection>(std::move(*socket), options_.me,
                                                            p.address, p.id.identity));
  p.dialled = connections_.back().get();
}

}  // namespace

Result<std::unique_ptr<MemberLinks>> MemberLinks::start(Options options) {
  auto links = std::make_unique<PollingMemberLinks>();
  STORMO_RETURN_IF_ERROR(links->open(std::move(options)));
  return std::unique_ptr<MemberLinks>(std::move(links));
}

}  // namespace stormo::membership
