#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <stormo/plan/step_plan.h>
#include <stormo/server/shard.h>
#include <stormo/train/autograd/backward_hooks.h>
#include <stormo/train/reduction/terms_of_gradients.h>
#include <stormo/train/server_store/served_parameters.h>

namespace stormo::train {

/// Sends gradients to shards behind connections as soon as they are complete, while backward
/// computes others. The push that follows sends what is left.
class EarlyPush {
 public:
  /// All are borrowed. `sequence`: of the next push, by shard.
  EarlyPush(const ServedParameters& served,
            const std::vector<std::unique_ptr<server::Shard>>& shards,
            const std::vector<std::uint64_t>& sequence);

  /// Does nothing from now on unless the plan has an asynchronous push.
  void set_plan(const plan::StepPlan& plan);
  /// Called before a backward. `last`: no later micro-batch adds to its gradients.
  void begin_backward(bool last);
  /// Whether the gradient of a piece of a shard was sent in this pass.
  bool is_sent(std::size_t shard, std::size_t piece) const {
    return of_shard_[shard].pieces[piece].is_sent;
  }
  void next_pass();

 private:
  struct OfShard {
    std::vector<server::PushedPiece> pieces;
    std::vector<std::size_t> waiting;  // complete pieces, not sent yet
    std::size_t waiting_bytes = 0;
  };
  void ready(std::size_t index);
  void defer();
  void send(std::size_t shard);

  const ServedParameters& served_;
  const std::vector<std::unique_ptr<server::Shard>>& shards_;
  const std::vector<std::uint64_t>& sequence_;
  std::vector<int> terms_, missing_;      // by parameter: terms of its gradient, and those to come
  std::unique_ptr<BackwardHooks> hooks_;  // null: nothing is sent early
  bool held_ = false;                     // until the end of the pass: gradients may still change
  std::vector<OfShard> of_shard_;
};

}  // namespace stormo::train
