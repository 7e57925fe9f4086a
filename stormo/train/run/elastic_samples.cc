// Which samples a member of an elastic run computes. While some members get the state, only donors
// compute.
#include <stormo/train/run/elastic_run.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <stormo/parallel/computation/logical_shards.h>
#include <stormo/plan/computing_ranks.h>
#include <stormo/plan/project.h>
#include <stormo/train/sampling.h>

namespace stormo::train {

Status ElasticRun::divide_samples(const protocol::RunStep& order) {
  const protocol::ElasticRecord& record = session_.record();
  const bool healing = session_.is_healing(order.step);
  if (healing_ == healing) return {};
  healing_ = healing;
  std::vector<bool> computes;
  for (const protocol::ElasticEntry& member : record.members) {
    computes.push_back(!healing || record.is_donor(member.id.identity));
  }
  std::vector<bool> incomplete = computes;
  incomplete.flip();
  if (watch() != nullptr) watch()->leave_out(std::move(incomplete));
  const auto me = computes.begin() + run_.world.rank();
  computes_ = *me;
  if (run_.setup.plan.logical_shards > 0) return divide_shards(computes);
  if (parts() > 1) return divide_pipelines(computes);
  const auto before = static_cast<int>(std::count(computes.begin(), me, true));
  const auto all = static_cast<int>(std::ranges::count(computes, true));
  load_from(make_sampler(*run_.setup.train, run_.options, computes_ ? before : 0, all));
  return {};
}

// Those of a rank that computes nothing are only counted.
Status ElasticRun::divide_shards(const std::vector<bool>& computes) {
  plan::StepPlan plan = run_.setup.plan;
  const int shards = plan.logical_shards;
  const std::vector<plan::ShardRange> all = plan::shards_of_computing(shards, computes);
  const plan::ShardRange own = all[static_cast<std::size_t>(run_.world.rank())];
  data::Sampler sampler = make_sampler(*run_.setup.train, run_.options, own.first, shards);
  computes_ = own.size() > 0;
  if (computes_) sampler.take_shares(own.size());
  load_from(sampler);
  const int most = std::max(plan.micro_batches, plan::most_of(all));
  STORMO_ASSIGN_OR_RETURN(plan,
                          parallel::compose(std::move(plan), {parallel::shards_on_a_rank(most)}));
  return model_.runner().set_plan(plan, own);
}

Result<data::Batch> ElasticRun::load() {
  STORMO_ASSIGN_OR_RETURN(data::Batch batch, LockStepRun::load());
  if (!computes_) batch = {};
  own_samples_ = batch.size();
  return batch;
}

}  // namespace stormo::train
