#include <stormo/parallel/computation/logical_shards.h>

#include <cstddef>
#include <string>
#include <vector>

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

/// More micro-batches like the last one, behind it.
Result<plan::StepPlan> with_micro_batches(const plan::StepPlan& in, int most) {
  if (in.logical_shards == 0 || most < in.micro_batches || most > in.logical_shards) {
    return invalid_argument("shards_on_a_rank: " + std::to_string(most) + " of " +
                            std::to_string(in.logical_shards) + "; give at least " +
                            std::to_string(in.micro_batches) + ", in a plan with logical shards");
  }
  if (most == in.micro_batches) return in;
  std::vector<plan::Action> last;
  std::size_t behind = 0;
  for (std::size_t i = 0; i < in.actions.size(); ++i) {
    const plan::Action& a = in.actions[i];
    if (!row_of(a.kind).micro_batch || a.micro_batch != in.micro_batches - 1) continue;
    last.push_back(a);
    behind = i + 1;
  }
  plan::StepPlan out = in;
  out.strategy = in.strategy + "+shards_on_a_rank" + std::to_string(most);
  out.micro_batches = most;
  std::vector<plan::Action> more;
  for (int m = in.micro_batches; m < most; ++m) {
    for (plan::Action a : last) {
      a.micro_batch = m;
      more.push_back(a);
    }
  }
  out.actions.insert(out.actions.begin() + static_cast<std::ptrdiff_t>(behind), more.begin(),
                     more.end());
  return out;
}

}  // namespace

Pass logical_shards(int shards) {
  return [shards](const plan::StepPlan& in) { return in_shards(in, shards); };
}

Pass shards_on_a_rank(int most) {
  return [most](const plan::StepPlan& in) { return with_micro_batches(in, most); };
}

}  // namespace stormo::parallel
