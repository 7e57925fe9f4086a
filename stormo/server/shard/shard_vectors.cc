// What a coordinator does with a shard: see optim::VectorSpace. Its vectors are not versions:
// nobody else uses them, and they are lost with the coordinator.
#include <algorithm>
#include <cstring>
#include <vector>

#include <stormo/server/shard/shared_shard.h>

namespace stormo::server {

Result<std::vector<double>> SharedShard::run(const optim::VectorProgram& program) {
  if (!optim::fits(program, memory_.vectors() + 1)) {
    return invalid_argument("a program with vectors that the server shard does not have");
  }
  const auto is_update = [](const optim::VectorStep& step) {
    return step.kind == optim::VectorStep::Kind::kUpdate;
  };
  if (!optim::updates_ranges(options_.optimizer.kind) && std::ranges::any_of(program, is_update)) {
    return invalid_argument("the optimizer of the server shard has no rule of its own");
  }
  std::vector<double> numbers;
  for (const optim::VectorStep& step : program) {
    STORMO_ASSIGN_OR_RETURN(const std::vector<double> found, run_step(step));
    numbers.insert(numbers.end(), found.begin(), found.end());
  }
  return numbers;
}

Result<std::vector<double>> SharedShard::run_step(const optim::VectorStep& step) {
  using enum optim::VectorStep::Kind;
  std::vector<double> out;
  switch (step.kind) {
    case kGradient: {
      STORMO_ASSIGN_OR_RETURN(const double loss, take_gradient(step));
      out.push_back(loss);
      break;
    }
    case kUpdate:
    case kSetWeights: STORMO_RETURN_IF_ERROR(set_weights(step)); break;
    case kCombine: {
      const View weights = pin();
      for (std::size_t i = 0; i < pieces().size(); ++i) {
        combine(weights, step, i, memory_.vector(step.to, i));
      }
      break;
    }
    case kDot: {
      const View weights = pin();
      double sum = 0;
      for (std::size_t i = 0; i < pieces().size(); ++i) {
        sum += optim::dot(pieces()[i].dtype, vector(weights, step.terms[0].vector, i),
                          vector(weights, step.terms[1].vector, i),
                          static_cast<std::size_t>(pieces()[i].elements()));
      }
      out.push_back(sum);
      break;
    }
  }
  return out;
}

const std::byte* SharedShard::vector(const View& weights, optim::VectorId id,
                                     std::size_t piece) const {
  return id == optim::kWeights ? weights.pieces[piece] : memory_.vector(id, piece);
}

void SharedShard::combine(const View& weights, const optim::VectorStep& step, std::size_t piece,
                          std::byte* to) const {
  std::vector<optim::VectorRange> terms;
  for (const optim::VectorTerm& t : step.terms) {
    terms.push_back({.factor = t.factor, .data = vector(weights, t.vector, piece)});
  }
  optim::combine(pieces()[piece].dtype, terms, static_cast<std::size_t>(pieces()[piece].elements()),
                 to);
}

// A push that is dropped meanwhile does not free the sums. Returns the mean loss.
Result<double> SharedShard::take_gradient(const optim::VectorStep& step) {
  STORMO_ASSIGN_OR_RETURN(const Lease lease, use_current_copies());
  const double share = lease.state.pending_weight > 0 ? 1 / lease.state.pending_weight : 0;
  for (std::size_t i = 0; i < pieces().size(); ++i) {
    const ShardPiece& piece = pieces()[i];
    std::byte* const to = memory_.vector(step.to, i);
    if (lease.state.pending == 0 || !memory_.has_sum(lease.from.sums, i)) {
      std::memset(to, 0, piece.bytes());
      continue;
    }
    const optim::VectorRange sum{.factor = share, .data = memory_.sum(lease.from.sums, i)};
    optim::combine(piece.dtype, std::span(&sum, 1), static_cast<std::size_t>(piece.elements()), to);
  }
  memory_.release(worker_, lease);
  return share * lease.state.pending_loss;
}

// By the optimizer's rule with the average of the pending gradients, or as the terms say. Without
// pending ones it is no answer to a batch: the shard still waits for the same one.
Status SharedShard::set_weights(const optim::VectorStep& step) {
  for (;;) {
    STORMO_ASSIGN_OR_RETURN(Lease lease, acquire(Deadline::never(), wait_.patience));
    if (step.kind == optim::VectorStep::Kind::kUpdate) {
      update_all(lease, {.pieces = {}, .lr = step.lr, .weight = 0},
                 {.action = protocol::PushAction::kAddAndUpdate});
    } else {
      memory_.changes().note_all(lease.state.version + 1);
      memory_.start_writing(lease.free);
      lease.to.weights = lease.free.weights;
      const View weights = view_of(lease.from);
      for (std::size_t i = 0; i < pieces().size(); ++i) {
        combine(weights, step, i, memory_.weights(lease.to.weights, i));
        progress()();
      }
    }
    if (lease.state.pending > 0) protocol::note_update(lease.state);
    if (memory_.commit(worker_, lease)) return {};
  }
}

}  // namespace stormo::server
