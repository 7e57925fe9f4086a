#include <stormo/protocol/register/proposer.h>

#include <algorithm>
#include <utility>

namespace stormo::protocol {

using Kind = RegisterRequest::Kind;

Proposer::Proposer(std::uint64_t id, int acceptors)
    : id_(id), answered_(static_cast<std::size_t>(acceptors)) {}

void Proposer::read() { begin({}); }

void Proposer::change(std::uint64_t expected, std::string bytes) {
  begin(Change{.expected = expected, .bytes = std::move(bytes)});
}

void Proposer::begin(std::optional<Change> change) {
  change_ = std::move(change);
  origin_ = {};
  outcome_.reset();
  restart();
}

void Proposer::ask(Kind kind, Ballot ballot, RegisterValue value) {
  request_ = {
      .kind = kind, .round = request_.round + 1, .ballot = ballot, .value = std::move(value)};
  answered_.assign(answered_.size(), false);
  grants_.clear();
  is_contested_ = false;
}

bool Proposer::receive(int acceptor, const RegisterReply& reply) {
  if (!awaits(acceptor) || reply.round != request_.round) return false;
  answered_[static_cast<std::size_t>(acceptor)] = true;
  highest_ = std::max({highest_, reply.state.promised, reply.state.accepted});
  if (!reply.granted) {
    is_contested_ = true;
    return false;
  }
  grants_.push_back(reply.state);
  if (static_cast<int>(grants_.size()) < majority()) return false;
  const AcceptorState latest = *std::ranges::max_element(grants_, {}, &AcceptorState::accepted);
  const bool agreed = std::ranges::all_of(
      grants_, [&](const AcceptorState& s) { return s.accepted == latest.accepted; });
  switch (request_.kind) {
    case Kind::kAsk: on_asked(latest, agreed); break;
    case Kind::kPrepare: on_promised(latest, agreed); break;
    case Kind::kAccept: conclude(request_.value); break;
  }
  return true;
}

void Proposer::on_asked(const AcceptorState& latest, bool agreed) {
  if (agreed && !wants_to_follow(latest.value)) return conclude(latest.value);
  highest_ = {.counter = highest_.counter + 1, .proposer = id_};
  ask(Kind::kPrepare, highest_, {});
}

void Proposer::on_promised(const AcceptorState& latest, bool agreed) {
  if (wants_to_follow(latest.value)) {
    // The same origin when it is proposed again: it is the same change.
    if (!has_proposed()) origin_ = request_.ballot;
    return ask(Kind::kAccept, request_.ballot,
               {.version = change_->expected + 1, .origin = origin_, .bytes = change_->bytes});
  }
  // What a minority has accepted may be present or not: from now on it is.
  if (!agreed) return ask(Kind::kAccept, request_.ballot, latest.value);
  conclude(latest.value);
}

void Proposer::conclude(const RegisterValue& present) {
  using Ended = RegisterOutcome::Kind;
  Ended kind = Ended::kMismatch;
  if (!change_) {
    kind = Ended::kRead;
  } else if (has_proposed() && present.origin == origin_) {
    kind = Ended::kChanged;
  } else if (has_proposed() && present.version > change_->expected + 1) {
    kind = Ended::kUnknown;
  }
  outcome_ = {.kind = kind, .value = present};
}

}  // namespace stormo::protocol
