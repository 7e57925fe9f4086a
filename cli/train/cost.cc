#include <cli/train/cost.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <utility>

#include <stormo/base/printable.h>
#include <stormo/launch/environment.h>

namespace stormo::cli {
namespace {

/// Beside the checkpoints of a run.
std::string ledger_file(const TrainRun& run) {
  const std::string& folder = run.parsed.recipe.train.checkpoint.directory;
  return folder.empty() ? "" : (std::filesystem::path(folder) / "cost.json").string();
}

observe::CostLedger earlier_starts(const TrainRun& run) {
  if (!run.parsed.recipe.train.resume) return {};
  std::ifstream file(ledger_file(run));
  if (!file) return {};  // they were not asked
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto ledger = observe::parse_cost_ledger(text);
  if (ledger.ok()) return observe::resumed(*ledger);
  std::cerr << "warning: " << message_text(ledger_file(run)) << ": "
            << message_text(ledger.status().message())
            << "; what earlier starts have cost is not counted\n";
  return {};
}

int threads_of(const TrainRun& run) {
  if (run.threads > 0) return run.threads;
  const auto threads = launch::threads_per_rank(launch::process_environment());
  return threads.ok() && *threads > 0 ? *threads : 1;
}

}  // namespace

Cost open_cost(const TrainRun& run) {
  Cost out;
  if (!run.words.cost && !run.words.price) return out;
  out.energy = std::make_unique<launch::EnergyCounters>();
  observe::CostMeter::Options options{.no_energy = out.energy->problem(),
                                      .price_per_host_hour = run.words.price,
                                      .threads_per_rank = threads_of(run),
                                      .before = earlier_starts(run),
                                      .ledger_file = ledger_file(run)};
  if (options.no_energy.empty())
    options.joules = [counters = out.energy.get()] { return counters->joules(); };
  out.meter = std::make_unique<observe::CostMeter>(std::move(options));
  return out;
}

}  // namespace stormo::cli
