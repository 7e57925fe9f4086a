#include <stormo/plan/check/shards.h>

#include <algorithm>

#include <stormo/plan/bad_plan.h>
#include <stormo/plan/logical_shards.h>
#include <stormo/plan/project.h>

namespace stormo::plan {
namespace {

bool is_replicated(const StepPlan& p) {
  const auto whole = [](Placement placed) { return placed == Placement::kReplicate; };
  return p.mesh.axes.size() <= 1 && data_part(p.mesh, 0).parts == p.mesh.size() &&
         std::ranges::all_of(p.parameters, whole) && std::ranges::all_of(p.frozen, whole) &&
         std::ranges::all_of(p.optimizer_state, whole);
}

Status check_sum(const Action& a) {
  if (a.algorithm != kFixedTreeAllReduce || a.codec != Codec::kNone) {
    return bad("logical shards are added up by ", kFixedTreeAllReduce, ", without a codec");
  }
  return a.asynchronous ? bad("logical shards are added up when all of a rank are there")
                        : Status();
}

}  // namespace

Status check_shards(const StepPlan& p) {
  if (p.logical_shards == 0) return {};
  if (!is_replicated(p)) {
    return bad("logical shards are for replicas: all state replicated over at most one axis");
  }
  const int ranks = p.mesh.size();
  if (p.logical_shards < ranks || p.logical_shards > kMaxShards) {
    return bad(p.logical_shards, " logical shards for ", ranks, " ranks, each of which needs one");
  }
  // more of them where some ranks compute nothing
  const int most = most_shards(p.logical_shards, ranks);
  if (p.micro_batches < most || p.micro_batches > p.logical_shards) {
    return bad("a rank has up to ", most, " of ", p.logical_shards,
               " logical shards, each of which is a micro-batch, and there are ", p.micro_batches);
  }
  int before = 0;
  for (std::size_t i = 0; i < p.actions.size(); ++i) {
    const Action& a = p.actions[i];
    const ActionRow& row = row_of(a.kind);
    Status st;
    if (row.reduces) st = check_sum(a);
    if (a.delay > 0) st = bad("comes with the next batch, and logical shards are of one step");
    if (row.makes.has(Value::kWeights)) {
      st = bad("is not needed: each rank knows what part of the batch a logical shard is");
    }
    if (row.adds_gradients) {
      if (a.micro_batch < before) st = bad("comes after the backward of a later logical shard");
      before = a.micro_batch;
    }
    if (!st.ok()) return st.within(describe(p, i));
  }
  const auto shapes = flatten(p.model);
  const bool sparse = std::ranges::any_of(shapes, [](auto* shape) { return shape->sparse; });
  return sparse ? bad("logical shards have dense gradients, and the model has sparse ones")
                : Status();
}

}  // namespace stormo::plan
