#include <stormo/train/server_store/early_push.h>

#include <algorithm>

namespace stormo::train {
namespace {

/// Gradients are sent together until they have so many bytes: about 2 ms at 1 Gbit/s.
constexpr std::size_t kPartBytes = 256 << 10;

}  // namespace

EarlyPush::EarlyPush(const ServedParameters& served,
                     const std::vector<std::unique_ptr<server::Shard>>& shards,
                     const std::vector<std::uint64_t>& sequence)
    : served_(served), shards_(shards), sequence_(sequence), of_shard_(served.shards()) {
  for (std::size_t s = 0; s < of_shard_.size(); ++s) {
    of_shard_[s].pieces.resize(served_.pieces(s).size());
  }
}

void EarlyPush::set_plan(const plan::StepPlan& plan) {
  hooks_.reset();
  const bool is_early = std::ranges::any_of(plan.actions, [](const plan::Action& a) {
    return places(a, plan::Value::kGradients, plan::Placement::kRemote) && a.asynchronous;
  });
  if (!is_early || std::ranges::none_of(shards_, [](const auto& s) { return s->is_remote(); })) {
    return;
  }
  missing_ = terms_ = terms_of_gradients(plan, served_.parameters().size());
  std::vector<torch::Tensor> tensors;
  for (const NamedParameter& p : served_.parameters()) tensors.push_back(p.tensor);
  hooks_ = std::make_unique<BackwardHooks>(
      tensors, BackwardHooks::Events{.ready = [this](std::size_t i) { ready(i); },
                                     .nested = [this] { defer(); },
                                     .abandoned = [this] { next_pass(); }});
}

void EarlyPush::begin_backward(bool last) {
  if (!hooks_) return;
  hooks_->enable(last);
  if (last) hooks_->renew();
}

void EarlyPush::next_pass() {
  defer();
  held_ = false;
  missing_ = terms_;
  for (OfShard& shard : of_shard_) {
    for (server::PushedPiece& piece : shard.pieces) piece.is_sent = false;
  }
}

// What was sent and has changed is sent again by the push.
void EarlyPush::ready(std::size_t index) {
  const int missing = --missing_[index];
  if (missing > 0) return;
  if (missing < 0) {
    defer();
    for (const ServedParameters::Slice& at : served_.slices(index)) {
      of_shard_[at.shard].pieces[at.piece].is_sent = false;
    }
  }
  const torch::Tensor& gradient = served_.parameters()[index].tensor.grad();
  const bool fits = gradient.defined() && !gradient.is_sparse() && gradient.is_contiguous();
  if (held_ || !fits) return;
  for (const ServedParameters::Slice& at : served_.slices(index)) {
    if (!shards_[at.shard]->is_remote()) continue;
    OfShard& shard = of_shard_[at.shard];
    shard.pieces[at.piece].array = served_.gradient_of(at, gradient);
    shard.waiting.push_back(at.piece);
    shard.waiting_bytes += served_.pieces(at.shard)[at.piece].bytes();
    if (shard.waiting_bytes >= kPartBytes) send(at.shard);
  }
}

void EarlyPush::defer() {
  held_ = true;
  for (OfShard& shard : of_shard_) {
    shard.waiting.clear();
    shard.waiting_bytes = 0;
  }
}

void EarlyPush::send(std::size_t shard) {
  OfShard& of = of_shard_[shard];
  shards_[shard]->begin_part({.pieces = of.pieces, .sequence = sequence_[shard]}, of.waiting);
  for (const std::size_t piece : of.waiting) of.pieces[piece].is_sent = true;
  of.waiting.clear();
  of.waiting_bytes = 0;
}

}  // namespace stormo::train
