#include <stormo/comm/tune/tune.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include <stormo/base/check.h>
#include <stormo/comm/tune/trial.h>

namespace stormo::comm {
namespace {

using plan::GoalKind;
using Seconds = std::chrono::duration<double>;

constexpr std::uint64_t kFirstBytes = 1 << 10;
constexpr std::uint64_t kGrowth = 8;
/// An algorithm whose first run takes so many times the best one's time is not run again.
constexpr double kHopeless = 2.5;
/// The default algorithm stays unless another one is clearly faster: measurements are noisy.
constexpr double kClearly = 0.95;

class Tuner {
 public:
  Tuner(Group& world, const TuneOptions& options,
        const std::function<void(const TuneResult&)>& report)
      : world_(world), options_(options), report_(report) {}

  Result<Selection> run() {
    STORMO_ASSIGN_OR_RETURN(trial_, Trial::create(world_, options_.max_bytes, options_.pause));
    for (std::uint64_t b = kFirstBytes; b <= options_.max_bytes; b *= kGrowth) sizes_.push_back(b);
    STORMO_CHECK(!sizes_.empty(), "tune: max_bytes is too small");
    const auto cells = static_cast<double>(plan::kGoalKinds.size() * sizes_.size());
    per_cell_ = Seconds(options_.budget).count() / cells;
    Selection selection;
    for (const GoalKind goal : plan::kGoalKinds) {
      if (world_.algorithm(goal, 0).empty()) continue;  // there is nothing to choose
      STORMO_RETURN_IF_ERROR(tune_goal(goal, selection));
    }
    return selection;
  }

 private:
  Status tune_goal(GoalKind goal, Selection& selection) {
    std::optional<Choice> last;
    for (const std::uint64_t bytes : sizes_) {
      STORMO_ASSIGN_OR_RETURN(const TuneResult result, best_for(goal, bytes));
      if (report_) report_(result);
      // rules reach half-way to the next size, on the scale of sizes
      const auto reach = static_cast<std::uint64_t>(static_cast<double>(bytes) *
                                                    std::sqrt(static_cast<double>(kGrowth)));
      const Selection::Rule rule{goal, world_.host_layout(), 0, reach, result.best};
      if (last == result.best) {
        selection.rules.back() = rule;
      } else {
        selection.rules.push_back(rule);
      }
      last = result.best;
    }
    selection.rules.back().max_bytes = 0;
    return {};
  }

  Result<TuneResult> best_for(GoalKind goal, std::uint64_t bytes) {
    const Choice by_default =
        Selection::defaults().choose(goal, world_.host_layout(), world_.size(), bytes);
    const std::vector<Choice> all = trial_->candidates(goal, bytes, by_default);
    TuneResult result{goal, bytes, by_default};
    STORMO_ASSIGN_OR_RETURN(result.default_seconds,
                            measure(goal, bytes, by_default, std::numeric_limits<double>::max(),
                                    per_cell_ / static_cast<double>(all.size() + 1)));
    result.seconds = result.default_seconds * kClearly;
    for (const Choice& choice : all) {
      if (choice == by_default) continue;
      STORMO_ASSIGN_OR_RETURN(const double seconds,
                              measure(goal, bytes, choice, result.seconds,
                                      per_cell_ / static_cast<double>(all.size() + 1)));
      if (seconds >= result.seconds) continue;
      result.seconds = seconds;
      result.best = choice;
    }
    if (result.best == by_default) result.seconds = result.default_seconds;
    return result;
  }

  /// Median time, as the slowest rank saw it; infinity when it is hopeless against `best`.
  Result<double> measure(GoalKind goal, std::uint64_t bytes, const Choice& choice, double best,
                         double seconds) {
    STORMO_RETURN_IF_ERROR(
        trial_->once(goal, bytes, choice).status());  // compiles, connects, warms up
    STORMO_ASSIGN_OR_RETURN(const double first, trial_->once(goal, bytes, choice));
    if (first > kHopeless * best) return std::numeric_limits<double>::infinity();
    const int runs = static_cast<int>(std::clamp(seconds / std::max(first, 1e-6), 2.0, 200.0));
    std::vector<double> times{first};
    for (int i = 0; i < runs; ++i) {
      STORMO_ASSIGN_OR_RETURN(const double t, trial_->once(goal, bytes, choice));
      times.push_back(t);
    }
    return median_of(std::move(times));
  }

  Group& world_;
  const TuneOptions& options_;
  const std::function<void(const TuneResult&)>& report_;
  std::unique_ptr<Trial> trial_;
  std::vector<std::uint64_t> sizes_;
  double per_cell_ = 0;
};

}  // namespace

Result<Selection> tune(Group& world, const TuneOptions& options,
                       const std::function<void(const TuneResult&)>& report) {
  return Tuner(world, options, report).run();
}

}  // namespace stormo::comm
