#include <cli/doctor/hosts/link.h>

#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include <stormo/base/units.h>
#include <stormo/transport/call/fields.h>
#include <stormo/transport/call/frame_connection.h>
#include <stormo/transport/call/loop_thread.h>
#include <stormo/transport/net/dialer.h>
#include <stormo/transport/net/gate.h>

namespace stormo::cli {

/// Answers any message.
struct LinkReply {
  std::uint64_t bytes = 0;  ///< of the message
  std::int64_t wall_time_ns = 0;
};
void fields(auto& visit, transport::Like<LinkReply> auto& reply) {
  visit("reply", reply.bytes, reply.wall_time_ns);
}

namespace {

using transport::FrameConnection;
using transport::Gate;

constexpr std::string_view kProtocol = "doctor";
constexpr std::size_t kMostBytes = 64 << 20;
constexpr std::size_t kFirstBytes = 64 << 10;
constexpr int kRoundTrips = 32;
/// A transfer of this time says what the link does.
constexpr Duration kTransferTime = std::chrono::milliseconds(100);
constexpr Duration kConnectTime = std::chrono::seconds(3);
/// For all round trips, and for all transfers.
constexpr Duration kMeasuringTime = std::chrono::seconds(5);
static_assert(kConnectTime + 2 * kMeasuringTime <= kLongestMeasurement);
constexpr int kMaxPollMs = 1000;

std::int64_t wall_time_ns() {
  return std::chrono::duration_cast<Duration>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

class PollingLinkServer final : public LinkServer {
 public:
  ~PollingLinkServer() override { loop_.stop(); }
  Status open(const std::string& host, transport::PortRange ports,
              const transport::Secret& secret) {
    STORMO_RETURN_IF_ERROR(loop_.status());
    Gate::Options gate;
    STORMO_ASSIGN_OR_RETURN(address_, Gate::listen(gate, {host, 0}, ports));
    gate.secret = secret;
    gate.purpose = transport::Purpose::kData;
    STORMO_ASSIGN_OR_RETURN(gate_, Gate::open(std::move(gate)));
    loop_.start([this] { turn(); });
    return {};
  }
  transport::HostPort address() const override { return address_; }

 private:
  void turn() {
    std::vector<pollfd> fds = {{loop_.fd(), POLLIN, 0}, {gate_->poll_fd(), POLLIN, 0}};
    for (const auto& c : connections_) fds.push_back({c->fd(), c->poll_events(), 0});
    const TimePoint before = RealClock().now();
    (void)::poll(fds.data(), fds.size(),
                 transport::poll_timeout(before, gate_->wake_at(before), kMaxPollMs));
    std::erase_if(connections_, [](const auto& c) { return !serve(*c).ok(); });
    for (Gate::Visitor& visitor : gate_->step(RealClock().now()))
      connections_.push_back(std::make_unique<FrameConnection>(
          std::move(visitor.socket), transport::FrameSplitter(kProtocol, kMostBytes)));
  }

  static Status serve(FrameConnection& c) {
    for (;;) {
      STORMO_ASSIGN_OR_RETURN(const bool received, c.receive());
      for (;;) {
        STORMO_ASSIGN_OR_RETURN(const auto body, c.next());
        if (!body) break;
        c.send(transport::encode(LinkReply{body->size(), wall_time_ns()}));
      }
      if (!received) return c.flush();
    }
  }

  transport::HostPort address_;
  std::unique_ptr<Gate> gate_;
  std::vector<std::unique_ptr<FrameConnection>> connections_;
  transport::LoopThread loop_;
};

/// Waits for `events`; false once `by` has passed.
bool wait_for(int fd, short events, TimePoint wake, Deadline by) {
  pollfd p{fd, events, 0};
  const TimePoint now = RealClock().now();
  (void)::poll(&p, fd < 0 ? 0 : 1,
               transport::poll_timeout(now, std::min(wake, by.when()), kMaxPollMs));
  return !by.expired();
}

Result<transport::Channel> connect_to(const LinkTarget& target) {
  STORMO_ASSIGN_OR_RETURN(auto addresses, transport::resolve(target.address));
  transport::Hello hello;
  hello.purpose = transport::Purpose::kData;
  hello.from = target.from;
  hello.to = target.to;
  hello.size = target.size;
  transport::Dialer dialer({std::move(addresses), target.secret, hello});
  const Deadline by = Deadline::after(kConnectTime);
  while (!dialer.step(RealClock().now())) {
    if (!wait_for(dialer.fd(), dialer.poll_events(), dialer.wake_at(), by))
      return Status(Code::kDeadlineExceeded, dialer.last_failure());
  }
  return dialer.take();
}

/// Sends a message and waits for what answers it.
Result<LinkReply> call(FrameConnection& c, std::string_view message, Deadline by) {
  c.send(message);
  for (;;) {
    STORMO_RETURN_IF_ERROR(c.flush());
    STORMO_RETURN_IF_ERROR(c.receive().status());
    STORMO_ASSIGN_OR_RETURN(const auto body, c.next());
    if (body) return transport::decode<LinkReply>(kProtocol, *body);
    if (!wait_for(c.fd(), c.poll_events(), TimePoint::max(), by))
      return Status(Code::kDeadlineExceeded, "no answer within " + format_duration(kMeasuringTime));
  }
}

/// The wall clock is read once in each round trip, and the time in between by the monotonic one: a
/// clock that is set meanwhile spoils one round trip, and only the fastest counts.
Status measure_round_trips(FrameConnection& c, LinkMeasurement& out) {
  const Deadline by = Deadline::after(kMeasuringTime);
  Duration fastest = Duration::max();
  for (int i = 0; i < kRoundTrips; ++i) {
    const TimePoint begin = RealClock().now();
    const std::int64_t sent_at = wall_time_ns();
    STORMO_ASSIGN_OR_RETURN(const LinkReply reply, call(c, "x", by));
    const Duration took = RealClock().now() - begin;
    if (took >= fastest) continue;
    fastest = took;
    const double ahead = static_cast<double>(reply.wall_time_ns - sent_at - took.count() / 2);
    out.clock_ahead_seconds = 1e-9 * ahead;
  }
  out.round_trip_seconds = std::chrono::duration<double>(fastest).count();
  return {};
}

/// Twice as much each time, until it takes long enough.
Status measure_transfer(FrameConnection& c, LinkMeasurement& out) {
  const Deadline by = Deadline::after(kMeasuringTime);
  for (std::size_t bytes = kFirstBytes; bytes <= kMostBytes; bytes *= 2) {
    const std::string message(bytes, 'x');
    const TimePoint begin = RealClock().now();
    STORMO_RETURN_IF_ERROR(call(c, message, by).status());
    const Duration took = RealClock().now() - begin;
    out.bytes_per_second = static_cast<double>(bytes) / std::chrono::duration<double>(took).count();
    if (took >= kTransferTime) break;
  }
  return {};
}

int mtu_of(int fd) {
  int mtu = 0;
  socklen_t size = sizeof mtu;
  const auto own = transport::local_address_of(fd);
  const bool is_v6 = own.ok() && own->family() == AF_INET6;
  const int failed = is_v6 ? ::getsockopt(fd, IPPROTO_IPV6, IPV6_MTU, &mtu, &size)
                           : ::getsockopt(fd, IPPROTO_IP, IP_MTU, &mtu, &size);
  return failed == 0 ? mtu : 0;
}

}  // namespace

Result<std::unique_ptr<LinkServer>> LinkServer::start(const std::string& host,
                                                      transport::PortRange ports,
                                                      const transport::Secret& secret) {
  auto server = std::make_unique<PollingLinkServer>();
  STORMO_RETURN_IF_ERROR(server->open(host, ports, secret));
  return std::unique_ptr<LinkServer>(std::move(server));
}

LinkMeasurement measure_link(const LinkTarget& target) {
  LinkMeasurement out;
  Result<transport::Channel> socket = connect_to(target);
  if (!socket.ok()) {
    out.problem = socket.status().message();
    return out;
  }
  out.is_encrypted = socket->is_encrypted();
  out.mtu = mtu_of(socket->fd());
  FrameConnection connection(*std::move(socket), transport::FrameSplitter(kProtocol, kMostBytes));
  if (const Status done = measure_round_trips(connection, out); !done.ok())
    out.problem = "it connects, but " + done.message();
  else if (const Status moved = measure_transfer(connection, out); !moved.ok())
    out.problem = fmt::format("short messages pass, long ones do not: {}", moved.message());
  return out;
}

int rounds_of_pairs(int count) { return count < 2 ? 0 : count - 1 + count % 2; }

int partner_in_round(int count, int host, int round) {
  const int circle = rounds_of_pairs(count);  // odd; whoever is not on it stays at its place
  const int alone = round * ((circle + 1) / 2) % circle;  // twice this is the round
  if (host == circle) return alone;
  const int partner = host == alone ? circle : (round - host + circle) % circle;
  return partner < count ? partner : -1;
}

}  // namespace stormo::cli
