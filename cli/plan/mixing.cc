#include <cli/plan/mixing.h>

#include <fmt/format.h>

#include <algorithm>

#include <cli/plan/output.h>
#include <stormo/plan/mixing/mixing.h>

namespace stormo::cli {
namespace {

/// Eigenvalues of more ranks take more than a second.
constexpr int kMostMixingRanks = 256;

std::string comes_together(const MixingFacts& f) {
  if (!f.second_eigenvalue) return "";
  if (*f.second_eigenvalue == 0) {
    return fmt::format("; all have the mean after {} step(s)", f.rounds);
  }
  return fmt::format("; distances shrink to {:.4f} in a step (second eigenvalue)",
                     *f.second_eigenvalue);
}

}  // namespace

std::vector<MixingFacts> mixing_facts(const plan::StepPlan& p) {
  std::vector<MixingFacts> out;
  std::vector<std::string> known;
  for (const plan::Action& a : p.actions) {
    const plan::ActionRow& row = row_of(a.kind);
    if (!row.meets_neighbours() || std::ranges::count(known, a.algorithm) > 0) continue;
    known.push_back(a.algorithm);
    const auto ranks = static_cast<int>(p.mesh.group(0, a.axes).size());
    const plan::Mixing mixing = plan::mixing_of(a.algorithm, ranks).take_or_throw();
    MixingFacts& f = out.emplace_back();
    f.topology = a.algorithm.substr(0, a.algorithm.find(':'));
    f.ranks = ranks;
    f.rounds = mixing.rounds.size();
    for (Rank r = 0; r < ranks; ++r) {
      f.receivers = std::max(f.receivers, receivers_of(mixing.at(0), r).size());
    }
    if (ranks <= kMostMixingRanks && row.mixes()) f.second_eigenvalue = contraction(mixing);
  }
  return out;
}

void print_mixing(const plan::StepPlan& p) {
  for (const MixingFacts& f : mixing_facts(p)) {
    print_line(fmt::format(
        "{} of {} ranks: each sends to at most {} other(s){}{}", f.topology, f.ranks, f.receivers,
        f.rounds > 1 ? fmt::format(", in {} rounds", f.rounds) : "", comes_together(f)));
  }
}

}  // namespace stormo::cli
