#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/parallel/pass.h>
#include <stormo/parallel/strategy/strategy.h>

namespace stormo::parallel {

/// The ranks of a job, and the options of its steps; borrowed.
struct Job {
  const Workers& workers;
  const StepOptions& step;
  bool sparse = false;  ///< the model has sparse gradients

  int hosts() const { return static_cast<int>(workers.ranks_per_host.size()); }
  int local() const { return workers.ranks_per_host.front(); }  ///< ranks of the first host
  int ranks() const;
  bool uniform() const;  ///< all hosts have as many
};

/// One strategy: what others have to know of it. Checks, recipes, search and documents read this.
struct StrategyRow {
  Strategy::Kind kind;
  std::string_view name;       ///< in recipes
  std::string_view ranks;      ///< on which it runs, as docs/recipes.md says
  std::string keys = {};       ///< of recipes that others lack; a space between them
  bool trains_as_one = true;   ///< each step trains as one process would; else each rank by itself
  bool all_reduces = false;    ///< whole gradients: in buckets, by a reducer
  bool one_host = false;       ///< it refuses several
  bool is_population = false;  ///< ranks have models of their own from the beginning
  enum class Servers { kNone, kCentre, kParameters } servers = Servers::kNone;
  /// Which choices of Strategy::Parameters it has besides kAuto, and what it says to others.
  std::vector<Strategy::Parameters> parameters = {};
  std::string_view other_parameters = {};
  /// What is wrong with the strategy in such a job.
  Status (*check)(const Strategy&, const Job&) = nullptr;
  /// The same for replicas, or workers, of several ranks; null: it has none.
  Status (*check_cut)(const Strategy&, const Job&) = nullptr;
  bool cuts_images = false;
  /// The passes that make `copies` replicas, or workers, of what there is. Null: it has no plan.
  void (*distribute)(std::vector<Pass>&, const Strategy&, const Job&, int copies) = nullptr;

  bool has_key(std::string_view key) const;
};

/// One for each strategy, in the order of Strategy::Kind.
std::span<const StrategyRow> strategy_rows();
const StrategyRow& row_of(Strategy::Kind kind);
/// The names of the strategies that have a key, but for auto.
std::vector<std::string_view> strategies_with(std::string_view key);
/// Whether the strategy uses a key: it has it, or its schedule does.
bool uses_key(const Strategy& strategy, std::string_view key);

/// kInvalidArgument that begins with the strategy's name.
Status refuse(const Strategy& strategy, const std::string& why);

}  // namespace stormo::parallel
