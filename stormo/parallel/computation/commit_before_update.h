#pragma once

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// For elastic training (docs/adr/0036-elastic-training.md): all updates stand behind a commit, in
/// which the ranks learn that each of them has all reduced gradients. Updates no longer overlap
/// with reductions. Where replicas diverge each has its own gradients, and what neighbours have
/// sent; averages stay behind the updates (docs/adr/0040-elastic-replicas-that-differ.md). Apply it
/// last. Fails with kBadPlan for a plan in which a rank may be lost with a part of the state: each
/// has all of it or of its stage, as another rank has, or shares it with others of its host. And
/// for one whose updates need other ranks, whose steps overlap, whose averages are of fragments, or
/// that commits already.
Pass commit_before_update();

}  // namespace stormo::parallel
