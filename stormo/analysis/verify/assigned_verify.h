#pragma once

#include <stormo/base/status.h>
#include <stormo/plan/assigned/assigned_plan.h>

namespace stormo::analysis {

/// OK when the ranks that are left do the step of `p.plan`, which is verified, too; else kBadPlan
/// that names the first action that is wrong and why. That means:
/// - each micro-batch of each replica passes each stage once, in order: forward, loss, backward or
///   its two parts, and a move wherever it goes from one rank to another;
/// - what an action needs of its micro-batch is on its rank: the input came there, and a backward
///   is where its forward was; nothing is computed of a batch that the rank has not loaded;
/// - what ranks do together comes on each of them in the order of the plan, behind all computations
///   of its stages that the plan has before it. So a reduction finds on its ranks the gradients of
///   all micro-batches of all replicas, each on one of them;
/// - over replicas all ranks take part that are left of a stage; over stages at least one of each;
/// - lost ranks do nothing, and a rank computes nothing of another stage.
/// Ranks that execute their parts never block each other: an action needs only what comes before it
/// in the order of all. O(assigned actions * ranks that do one).
Status verify(const plan::AssignedPlan& p);

}  // namespace stormo::analysis
