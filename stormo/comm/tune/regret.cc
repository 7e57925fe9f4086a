#include <stormo/comm/tune/regret.h>

#include <algorithm>
#include <limits>

#include <stormo/comm/tune/trial.h>

namespace stormo::comm {
namespace {

/// So many of the fastest at first sight are looked at again.
constexpr std::size_t kFinalists = 4;
/// Runs of short operations in each turn: until so much time has passed.
constexpr double kTurnSeconds = 2e-3;
constexpr int kMostRuns = 16;
constexpr int kLeastRounds = 5;
constexpr int kMostRounds = 50;

struct Contestant {
  std::optional<Choice> choice;  ///< none: what the group runs
  double first_sight = 0;
  std::vector<double> times;
};

double typical(std::vector<double> times) {
  const auto quarter = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 4);
  std::nth_element(times.begin(), quarter, times.end());
  return *quarter;
}

/// What the group runs, then the fastest few others at first sight.
Result<std::vector<Contestant>> finalists(Trial& trial, plan::GoalKind goal, std::uint64_t bytes,
                                          const Choice& selected) {
  std::vector<std::optional<Choice>> choices;
  if (trial.posted_whole(goal, bytes)) choices.emplace_back();
  for (const Choice& choice : trial.candidates(goal, bytes, selected)) choices.emplace_back(choice);
  std::vector<Contestant> all;
  for (const std::optional<Choice>& choice : choices) {
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i < 3; ++i) {  // the first compiles and connects
      STORMO_ASSIGN_OR_RETURN(const double took, trial.once(goal, bytes, choice));
      best = std::min(best, took);
    }
    all.push_back({choice, best, {}});
  }
  std::sort(all.begin() + 1, all.end(),
            [](const Contestant& a, const Contestant& b) { return a.first_sight < b.first_sight; });
  if (all.size() > kFinalists + 1) all.resize(kFinalists + 1);
  return all;
}

}  // namespace

Result<std::vector<Regret>> measure_regret(Group& group, const RegretOptions& options,
                                           const std::function<void(const Regret&)>& report) {
  const std::uint64_t largest = std::ranges::max(options.sizes);
  STORMO_ASSIGN_OR_RETURN(const auto trial, Trial::create(group, largest, options.pause));
  std::vector<Regret> out;
  for (const std::uint64_t bytes : options.sizes) {
    const Choice selected =
        group.selection().choose(options.goal, group.host_layout(), group.size(), bytes);
    STORMO_ASSIGN_OR_RETURN(auto contestants, finalists(*trial, options.goal, bytes, selected));
    double elapsed = 0;
    for (int round = 0; round < kLeastRounds || (round < kMostRounds && elapsed < options.seconds);
         ++round) {
      for (std::size_t turn = 0; turn < contestants.size(); ++turn) {
        // nobody always follows the same one
        const std::size_t first = static_cast<std::size_t>(round) % contestants.size();
        Contestant& c = contestants[(first + turn) % contestants.size()];
        double spent = 0;
        for (int run = 0; run < kMostRuns && (run == 0 || spent < kTurnSeconds); ++run) {
          STORMO_ASSIGN_OR_RETURN(const double took, trial->once(options.goal, bytes, c.choice));
          c.times.push_back(took);
          spent += took;
        }
        elapsed += spent;
      }
    }
    Regret regret{
        .bytes = bytes, .selected = contestants.front().choice, .best = contestants.front().choice};
    regret.selected_seconds = regret.best_seconds = typical(contestants.front().times);
    for (const Contestant& c : contestants) {
      const double seconds = typical(c.times);
      if (seconds >= regret.best_seconds) continue;
      regret.best = c.choice;
      regret.best_seconds = seconds;
    }
    if (report) report(regret);
    out.push_back(regret);
  }
  return out;
}

}  // namespace stormo::comm
