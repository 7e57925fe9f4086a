#pragma once

#include <stormo/protocol/register/register_message.h>

namespace stormo::protocol {

/// What becomes of an acceptor by a request. Where `next` differs from the state before, it must be
/// on disk before the reply leaves.
struct AcceptorDecision {
  AcceptorState next;
  RegisterReply reply;
};

AcceptorDecision decide(const AcceptorState& state, const RegisterRequest& request);

}  // namespace stormo::protocol
