#pragma once

#include <cstddef>
#include <string_view>

#include <stormo/protocol/register/register_message.h>
#include <stormo/transport/call/fields.h>

// The bytes of what proposers and acceptors tell each other, and of what acceptors keep. A request
// is a frame with a RegisterRequest. A transport::Reply answers it, with the round of the request
// as its id, and with a RegisterReply as its body unless the acceptor has failed.

namespace stormo::protocol {

inline constexpr std::string_view kRegisterProtocol = "register";
/// Of ballots and versions; nobody counts so far.
inline constexpr std::uint64_t kMaxCounter = std::uint64_t{1} << 62;
inline constexpr std::size_t kMaxValueBytes = std::size_t{1} << 20;

void fields(auto& visit, transport::Like<Ballot> auto& ballot) {
  visit("ballot", transport::within(ballot.counter, 0, kMaxCounter), ballot.proposer);
}
void fields(auto& visit, transport::Like<RegisterValue> auto& value) {
  visit("value", transport::within(value.version, 0, kMaxCounter), value.origin,
        transport::at_most(kMaxValueBytes, value.bytes));
}
void fields(auto& visit, transport::Like<AcceptorState> auto& state) {
  visit("state of an acceptor", state.promised, state.accepted, state.value);
  visit.require(state.accepted <= state.promised, "it has accepted what it has not promised");
  visit.require((state.accepted == Ballot{}) == (state.value.version == 0),
                "a value without a ballot, or a ballot without a value");
}
void fields(auto& visit, transport::Like<RegisterRequest> auto& request) {
  using Kind = RegisterRequest::Kind;
  visit("request", transport::within(request.kind, Kind::kAsk, Kind::kAccept), request.round,
        request.ballot, request.value);
  visit.require((request.kind == Kind::kAsk) == (request.ballot == Ballot{}),
                "a ballot is missing or out of place");
  visit.require((request.kind == Kind::kAccept) == (request.value.version != 0),
                "a value is missing or out of place");
}
void fields(auto& visit, transport::Like<RegisterReply> auto& reply) {
  visit("answer", reply.round, reply.granted, reply.state);
}

}  // namespace stormo::protocol

namespace stormo::membership {

inline constexpr std::size_t kMaxJobBytes = 256;  ///< of the name of a job
/// The longest body of a frame, and the longest file of an acceptor.
inline constexpr std::size_t kMaxRegisterBytes = protocol::kMaxValueBytes + 4096;

}  // namespace stormo::membership
