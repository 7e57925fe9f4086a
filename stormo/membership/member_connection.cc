#include <stormo/membership/member_connection.h>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stormo/membership/elastic_wire.h>
#include <sys/socket.h>

#include <chrono>
#include <utility>

namespace stormo::membership {

using protocol::ElasticMessage;
using protocol::kElasticProtocol;

namespace {

constexpr Duration kCutLimit = std::chrono::seconds(2);

/// Whether the peer's kernel has closed its end in order, which it does for a process that ends. A
/// reset is not so clear: a kernel that has given up a connection over a cut line sends one, too.
bool was_closed_by_peer(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  return ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 &&
         info.tcpi_state == TCP_CLOSE_WAIT;
}

}  // namespace

std::string encode_message(const ElasticMessage& message) {
  return transport::encode(std::optional<ElasticMessage>(message));
}

MemberConnection::MemberConnection(transport::Channel socket, const protocol::MemberId& me,
                                   std::string name, std::string dialled)
    : frames_(std::move(socket), {kElasticProtocol, kMaxElasticBytes}),
      name_(std::move(name)),
      dialled_(std::move(dialled)) {
  transport::limit_unacknowledged(fd(), kCutLimit);
  frames_.send(transport::encode(me));
  (void)frames_.flush();  // serve() sees a failure
}

bool MemberConnection::has_unsent() const { return (poll_events() & POLLOUT) != 0; }

bool MemberConnection::is_ready() const {
  return state_ == State::kOpen && peer_.has_value() && !has_unsent();
}

void MemberConnection::send(std::string_view encoded_message) {
  frames_.send(encoded_message);
  (void)frames_.flush();
}

Status MemberConnection::serve(std::vector<ElasticMessage>& messages) {
  if (state_ != State::kOpen) return {};
  const Status received = frames_.receive().status();
  while (received.ok() && state_ == State::kOpen) {
    const auto body = frames_.next();
    if (body.ok() && !*body) break;
    if (const Status taken = body.ok() ? take(**body, messages) : body.status(); !taken.ok()) {
      close();
      return taken;
    }
  }
  if (state_ != State::kOpen) return {};
  // what waits in vain is an end that the next receive() sees
  if (received.ok()) (void)frames_.flush();
  if (!received.ok()) state_ = was_closed_by_peer(fd()) ? State::kPeerEnded : State::kBroken;
  return {};
}

Status MemberConnection::take(std::string_view body, std::vector<ElasticMessage>& messages) {
  if (!peer_) {
    STORMO_ASSIGN_OR_RETURN(peer_, transport::decode<protocol::MemberId>(kElasticProtocol, body));
    return {};
  }
  STORMO_ASSIGN_OR_RETURN(auto message,
                          transport::decode<std::optional<ElasticMessage>>(kElasticProtocol, body));
  if (message) {
    messages.push_back(std::move(*message));
  } else {
    state_ = State::kClosed;
  }
  return {};
}

void MemberConnection::close() {
  if (state_ != State::kOpen) return;
  state_ = State::kClosed;
  if (!has_unsent()) send(transport::encode(std::optional<ElasticMessage>()));
  if (!has_unsent()) return;
  // it cannot say so: then a reset says less than an end in order
  const linger none{.l_onoff = 1, .l_linger = 0};
  (void)::setsockopt(fd(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
}

}  // namespace stormo::membership
