#pragma once

#include <string>

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// How the averages of an outer optimizer are spread over the steps of a period.
struct Streaming {
  int fragments = 1;  ///< parts of the parameters, of about equal sizes, each with steps of its own
  /// Steps that ranks do from sending a fragment to its outer update; 0: they wait for it.
  int delay = 0;
  /// The share of its own parameters that a rank keeps then; -1: 0.5 with a delay.
  double mixing = -1;
  bool operator==(const Streaming&) const = default;
};

/// Whether it differs from averages of all parameters at once.
inline bool streams(const Streaming& how) { return how != Streaming{}; }

/// What is wrong with it, all of it, with averages in one of every `period` steps; empty: nothing.
std::string wrong_with(const Streaming& how, int period);

/// Streaming DiLoCo: the average and the outer update become those of each fragment. Fragments are
/// neighbouring parameters. Fragment f of F has its average f * period / F steps behind the first
/// one, and the outer update `delay` steps later, before another fragment has its average. Ranks
/// agree in the steps in which the first fragment has its outer update, so that nothing is under
/// way then. Apply it after outer_update(). Fails with kInvalidArgument for what is wrong_with()
/// it, and for more fragments than trainable parameters; with kBadPlan for a plan without outer
/// update.
Pass streaming(const Streaming& how);

}  // namespace stormo::parallel
