#include <stormo/parallel/computation/logical_shards.h>

#include <string>

#include <stormo/parallel/computation/micro_batches.h>
#include <stormo/parallel/computation/reduce_with.h>
#include <stormo/plan/logical_shards.h>
#include <stormo/plan/project.h>

namespace stormo::parallel {
namespace {

Result<plan::StepPlan> in_shards(const plan::StepPlan& in, int shards) {
  const int ranks = data_part(in.mesh, 0).parts;
  if (shards < ranks || shards > plan::kMaxShards) {
    return invalid_argument("logical_shards: " + std::to_string(shards) + "; give " +
                            std::to_string(ranks) + ", a shard for each rank, to " +
                            std::to_string(plan::kMaxShards));
  }
  STORMO_ASSIGN_OR_RETURN(plan::StepPlan out, micro_batches(plan::most_shards(shards, ranks))(in));
  out.strategy = in.strategy + "+logical_shards" + std::to_string(shards);
  out.logical_shards = shards;
  for (plan::Action& a : out.actions) set_form(a, {.all_reduce = plan::kFixedTreeAllReduce});
  return out;
}

}  // namespace

Pass logical_shards(int shards) {
  return [shards](const plan::StepPlan& in) { return in_shards(in, shards); };
}

}  // namespace stormo::parallel
