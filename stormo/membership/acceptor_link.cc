#include <stormo/membership/acceptor_link.h>

#include <fmt/format.h>
#include <stormo/membership/acceptor/register_wire.h>
#include <stormo/transport/call/reply.h>

#include <chrono>
#include <utility>

namespace stormo::membership {

using protocol::kRegisterProtocol;

namespace {

constexpr Duration kPause = std::chrono::milliseconds(50);
/// After a refusal, which is a line in the acceptor's log.
constexpr Duration kLongPause = std::chrono::milliseconds(500);
/// An acceptor always reads: its kernel answers, also while it waits for its disk.
constexpr Duration kUnacknowledgedLimit = std::chrono::seconds(2);

}  // namespace

void AcceptorLink::step(TimePoint now, const protocol::RegisterRequest* request) {
  Status done = connection_ ? Status() : dial(now);
  if (done.ok() && connection_) done = talk(request);
  if (done.ok()) return;
  trouble_ = done.message();
  dialer_.reset();
  connection_.reset();
  sent_ = 0;
  next_dial_ = now + (done.code() == Code::kRefused ? kLongPause : kPause);
}

Status AcceptorLink::dial(TimePoint now) {
  if (now < next_dial_) return {};
  if (!dialer_) {
    STORMO_ASSIGN_OR_RETURN(auto addresses, transport::resolve(options_.address));
    if (addresses.empty()) return io_error("it has no address");
    transport::Hello hello;
    hello.purpose = transport::Purpose::kRegister;
    hello.to = options_.index;
    hello.size = options_.count;
    dialer_ = std::make_unique<transport::Dialer>(
        transport::Dialer::Options{std::move(addresses), options_.secret, hello});
  }
  if (!dialer_->step(now)) return {};
  STORMO_ASSIGN_OR_RETURN(transport::Channel socket, dialer_->take());
  dialer_.reset();
  transport::limit_unacknowledged(socket.fd(), kUnacknowledgedLimit);
  connection_.emplace(std::move(socket),
                      transport::FrameSplitter(kRegisterProtocol, kMaxRegisterBytes));
  return {};
}

Status AcceptorLink::talk(const protocol::RegisterRequest* request) {
  if (request != nullptr && request->round != sent_) {
    connection_->send(transport::encode(*request));
    sent_ = request->round;
  }
  STORMO_RETURN_IF_ERROR(connection_->flush());
  STORMO_RETURN_IF_ERROR(connection_->receive().status());
  for (;;) {
    STORMO_ASSIGN_OR_RETURN(const auto body, connection_->next());
    if (!body) return {};
    STORMO_ASSIGN_OR_RETURN(const auto reply,
                            transport::decode<transport::Reply>(kRegisterProtocol, *body));
    STORMO_ASSIGN_OR_RETURN(const std::string answer, transport::outcome_of(reply));
    STORMO_ASSIGN_OR_RETURN(auto of_acceptor,
                            transport::decode<protocol::RegisterReply>(kRegisterProtocol, answer));
    replies_.push_back(std::move(of_acceptor));
    trouble_.clear();
  }
}

std::string AcceptorLink::state_text() const {
  std::string what = "connected";
  if (!connection_) what = dialer_ ? dialer_->last_failure() : "not connected";
  if (!trouble_.empty()) what += "; before that: " + trouble_;
  return fmt::format("{}: {}", transport::to_string(options_.address), what);
}

}  // namespace stormo::membership
