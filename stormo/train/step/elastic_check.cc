#include <stormo/train/step/elastic_check.h>

#include <algorithm>
#include <array>

#include <stormo/base/requirements.h>
#include <stormo/optim/options.h>
#include <stormo/plan/mixing/mixing.h>
#include <stormo/train/step/reducers.h>

namespace stormo::train {
namespace {

/// A topology, however many ranks are left.
bool is_for_any_ranks(const std::string& topology) {
  constexpr std::array kSizes = {2, 3, 4, 5, 6, 7};  // also primes, and no powers of two
  return std::ranges::all_of(kSizes,
                             [&](int ranks) { return plan::mixing_of(topology, ranks).ok(); });
}

/// Where ranks train by themselves.
void check_local(const TrainerOptions& o, Requirements& require) {
  const Strategy& s = o.strategy;
  require(!parallel::streams(s.streaming),
          "elastic training averages all parameters at once, between two steps: leave out "
          "strategy.fragments, delay and mixing");
  require(s.local_period == 0,
          "elastic training averages all ranks at once, whoever is left of a host: leave out "
          "strategy.local_period");
  require(s.state_periods.empty(),
          "elastic training averages the optimizer's state together with the parameters, or not at "
          "all: leave out strategy.state_periods");
  require(!o.averaging.adapts(),
          "in elastic training the number of a step says whether ranks average behind it: leave "
          "out strategy.max_distance and period_seconds");
  require(s.kind != Strategy::Kind::kGossip || is_for_any_ranks(s.topology),
          "in elastic training ranks mix however many are left: take strategy.topology=ring, "
          "exponential, one_peer_exponential or complete");
}

}  // namespace

bool trains_locally(Strategy::Kind kind) {
  return kind == Strategy::Kind::kParameterAveraging || kind == Strategy::Kind::kGossip;
}

Status check_elastic(const TrainerOptions& o) {
  Requirements require("\n");
  const Strategy& s = o.strategy;
  const bool is_local = trains_locally(s.kind);
  require((is_local || s.kind == Strategy::Kind::kDdp) &&
              ranks_of_replica(s) * s.worker_ranks == (is_local ? 1 : s.pipeline),
          "elastic training takes strategy 'ddp', with replicas of one rank or pipelines of single "
          "ranks, and 'parameter_averaging' and 'gossip' with replicas of one rank: only then has "
          "whoever is left all of the model, or of a stage");
  require(s.parameters == Strategy::Parameters::kAuto ||
              s.parameters == Strategy::Parameters::kReplicated,
          "elastic training has one copy of the parameters on each host where all hosts have as "
          "many ranks, else one on each rank: leave out parameters, or set it to replicated");
  require(optim::updates_ranges(o.optimizer.kind),
          "elastic training updates ranges of parameters: take an optimizer other than lbfgs and "
          "muon");
  require(o.gradients.codec == Codec::kNone,
          "elastic training keeps nothing of what a compression has lost: leave out compression");
  require(o.gradients.reducer != Reducer::kAdasum,
          "elastic training adds gradients up, whoever computes them: leave out "
          "strategy.reducer=adasum");
  require(o.sharding == data::Sharding::kShuffled,
          "the samples of an elastic run do not depend on its ranks: leave out data.sharding");
  require(o.patience == 0,
          "an elastic run ends after a number of steps that all know: leave out train.patience");
  if (is_local) check_local(o, require);
  return require.status();
}

}  // namespace stormo::train
