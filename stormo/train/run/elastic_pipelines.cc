// Where ranks of an elastic run have stages of pipelines: peers do the work of those that are lost,
// or have not got the state.
#include <stormo/train/run/elastic_run.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <stormo/parallel/pipeline/reroute.h>
#include <stormo/plan/project.h>
#include <stormo/train/sampling.h>

namespace stormo::train {
namespace {

/// Of the rank that has a number in the mesh, if it is there.
std::optional<Rank> rank_of_number(const RunSetup& setup, Rank number) {
  if (!setup.mesh_ranks) return number;
  const std::vector<Rank>& numbers = setup.mesh_ranks->numbers;
  const auto found = std::ranges::find(numbers, number);
  if (found == numbers.end()) return {};
  return static_cast<Rank>(found - numbers.begin());
}

}  // namespace

int ElasticRun::parts() const { return num_stages(run_.setup.plan.mesh); }
int ElasticRun::part() const { return stage_of(run_.setup.plan.mesh, run_.mesh_rank()); }

// Who has which place of the pipelines. A newcomer has its number in the mesh from its launcher.
Status ElasticRun::meet_in_mesh() {
  if (parts() == 1) return {};
  std::int64_t mine = session_.first_rank();
  std::vector<std::int64_t> all(static_cast<std::size_t>(run_.world.size()));
  STORMO_RETURN_IF_ERROR(run_.world.all_gather(comm::Buffer{&mine, 1, DType::kInt64}, all));
  MeshRanks& ranks = run_.setup.mesh_ranks.emplace();
  ranks.numbers.assign(all.begin(), all.end());
  for (const protocol::ElasticEntry& m : session_.record().members) {
    ranks.has_state.push_back(session_.record().is_donor(m.id.identity));
  }
  return {};
}

Status ElasticRun::divide_pipelines(const std::vector<bool>& computes) {
  const plan::StepPlan& plan = run_.setup.plan;
  const plan::Part own = data_part(plan.mesh, run_.mesh_rank());
  load_from(make_sampler(*run_.setup.train, run_.options, own.index, own.parts));
  others_.clear();
  std::vector<Rank> lost, idle;
  for (Rank number = 0; number < plan.mesh.size(); ++number) {
    const std::optional<Rank> rank = rank_of_number(run_.setup, number);
    if (!rank) {
      lost.push_back(number);
    } else if (!computes[static_cast<std::size_t>(*rank)]) {
      idle.push_back(number);
    }
  }
  if (lost.empty() && idle.empty()) return model_.runner().set_plan(plan);
  STORMO_ASSIGN_OR_RETURN(const plan::AssignedPlan rerouted,
                          parallel::reroute(plan, std::move(lost), /*more_kept=*/0, idle));
  for (const plan::AssignedAction& a : project(rerouted, run_.mesh_rank())) {
    const bool loads = makes(plan.actions[a.action], plan::Value::kBatch);
    if (!loads || a.replica == own.index) continue;
    others_[a.replica] =
        prefetcher_of(make_sampler(*run_.setup.train, run_.options, a.replica, own.parts));
  }
  return model_.runner().set_plan(rerouted, [this](int replica) { return load_other(replica); });
}

Result<data::Batch> ElasticRun::load_other(int replica) {
  STORMO_ASSIGN_OR_RETURN(data::StepBatch next, others_.at(replica)->next());
  return std::move(next.batch);
}

}  // namespace stormo::train
