#pragma once

#include <vector>

#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/plan/assigned/assigned_plan.h>

namespace stormo::parallel {

/// The step of a plan of several pipelines without the ranks that are lost. The micro-batches of a
/// lost rank go in turn to the ranks of its stage in the other pipelines, which have its
/// parameters; all else stays where it is. So each micro-batch is computed once, and gradients are
/// added up over all of them: the update is that of all ranks, but for the order of additions.
///
/// Each rank starts what is ready, and fills with others' micro-batches the time in which it would
/// wait. Of what is ready it takes what the plan has first, or a backward first, whichever ends
/// sooner if a backward takes twice as long as a forward. It begins no forward by which it would
/// keep activations of more micro-batches than the fullest rank of the plan does, and `more_kept`:
/// the more of them, the more it has to do while it would wait.
///
/// A stage of which l of d ranks are lost takes at least d/(d-l) as long as before; what of this is
/// more than the ranks' idle time, a step takes longer.
///
/// `idle`: ranks that are there, and compute no micro-batch: replacements that have not got the
/// state yet. They take part in what ranks do together, so they get the gradients.
///
/// Nobody lost or idle: plan::assign(). The failures are those of plan::check_peers() and
/// plan::ranks_left(), without lost and idle ranks. O(actions of all ranks * (ranks +
/// micro-batches)).
Result<plan::AssignedPlan> reroute(const plan::StepPlan& plan, std::vector<Rank> lost,
                                   int more_kept = 0, const std::vector<Rank>& idle = {});

}  // namespace stormo::parallel
