#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <torch/types.h>

#include <stormo/analysis/transfer/collectives.h>
#include <stormo/comm/communicator.h>
#include <stormo/plan/mixing/mixing.h>
#include <stormo/train/optimizer/fused_optimizer.h>
#include <stormo/train/store/averaged_state.h>

namespace stormo::train {

/// What a rank mixes with its neighbours in a topology: the weights, and estimates of the mean
/// gradient of all ranks. Rounds of a topology are counted from the first mix, or from restart().
class Mixer {
 public:
  /// Borrowed; `state` is of `optimizer`.
  Mixer(AveragedState& state, FusedOptimizer& optimizer) : state_(state), optimizer_(optimizer) {}
  /// What is still under way keeps its memory.
  ~Mixer();
  Mixer(const Mixer&) = delete;
  Mixer& operator=(const Mixer&) = delete;

  /// Sends the weights to the neighbours. `sent`: what that is, by array. The caller may compute
  /// with them meanwhile.
  Status start(comm::Communicator& ranks, const std::string& topology,
               const std::vector<analysis::Collective>& sent);
  /// Waits for those of the neighbours.
  Status receive();
  /// Waits for those of the neighbours; the weights become the means. Nothing if none are under
  /// way.
  Status finish();

  /// Gradients become estimates y of their mean: the mixed y of the step before, plus these
  /// gradients, minus those of the step before. A parameter without a gradient has one of zeros.
  Status track(comm::Communicator& ranks, const std::string& topology,
               const std::vector<analysis::Collective>& sent);

  /// What comes now is as in a new run: the first round, and no gradients before.
  void restart();

 private:
  /// Of one array.
  struct Exchange {
    torch::Tensor own;
    torch::Tensor theirs;  ///< of each sender, in ascending order of terms
    std::vector<plan::MixingTerm> terms;
    std::vector<comm::Work> works;
  };
  struct Tracker {
    torch::Tensor estimate, gradient;  ///< of the step before
  };

  /// `own` is borrowed, and is not changed before mean_of().
  Result<Exchange> exchange(comm::Communicator& ranks, const plan::MixingMatrix& w,
                            std::uint32_t tag, const analysis::Collective& what, torch::Tensor own);
  /// Waits; in the memory of `own`.
  static Result<torch::Tensor> mean_of(Exchange& of, Rank rank);
  const plan::MixingMatrix& round(const std::string& topology, int ranks, std::int64_t step);

  AveragedState& state_;
  FusedOptimizer& optimizer_;
  std::map<std::string, plan::Mixing> known_;  // by topology
  std::vector<Exchange> under_way_;            // of the weights, by array
  std::vector<Tracker> trackers_;              // by array
  std::int64_t mixed_ = 0, tracked_ = 0;       // steps
  Rank rank_ = 0;                              // among those that mix
};

}  // namespace stormo::train
