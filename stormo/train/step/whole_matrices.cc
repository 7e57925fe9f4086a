#include <string>

#include <stormo/base/requirements.h>
#include <stormo/parallel/strategy/strategy_table.h>
#include <stormo/train/step/strategy.h>

namespace stormo::train {

Status check_matrices(const TrainerOptions& options) {
  if (options.optimizer.kind != OptimizerOptions::Kind::kMuon) return {};
  const Strategy& s = options.strategy;
  const parallel::StrategyRow& row = parallel::row_of(s.kind);
  const bool replicates = row.all_reduces || s.kind == Strategy::Kind::kParameterAveraging ||
                          s.kind == Strategy::Kind::kGossip;
  const bool copies = s.parameters == Strategy::Parameters::kAuto ||
                      s.parameters == Strategy::Parameters::kReplicated;
  Requirements require;
  require(replicates, "muon updates whole matrices, which strategy '" + std::string(row.name) +
                          "' does not have on each rank: use 'ddp', 'mirrored', "
                          "'parameter_averaging' or 'gossip', or another optimizer");
  require(!replicates || copies,
          "muon updates whole matrices, and ranks that share parameters update parts of them: "
          "leave out strategy.parameters, or set it to replicated");
  require(s.pipeline == 1 && s.tensor == 1,
          "muon is for ranks that have the whole model: leave out strategy.pipeline and tensor, or "
          "use another optimizer");
  return require.status();
}

}  // namespace stormo::train
