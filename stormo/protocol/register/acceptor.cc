#include <stormo/protocol/register/acceptor.h>

namespace stormo::protocol {

AcceptorDecision decide(const AcceptorState& state, const RegisterRequest& request) {
  AcceptorDecision out{.next = state, .reply = {.round = request.round, .granted = true}};
  // A request that comes again is granted again: only its proposer has this ballot.
  if (request.kind != RegisterRequest::Kind::kAsk) {
    out.reply.granted = request.ballot >= state.promised;
    if (out.reply.granted) out.next.promised = request.ballot;
  }
  if (request.kind == RegisterRequest::Kind::kAccept && out.reply.granted) {
    out.next.accepted = request.ballot;
    out.next.value = request.value;
  }
  out.reply.state = out.next;
  return out;
}

}  // namespace stormo::protocol
