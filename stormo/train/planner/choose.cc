#include <stormo/train/planner/choose.h>

#include <vector>

#include <stormo/train/planner/measure_on_ranks.h>
#include <stormo/train/planner/search.h>

namespace stormo::train {

Result<TrainerOptions> choose_strategy(comm::Communicator& world, const Task& task,
                                       const data::Dataset& data, const TrainerOptions& options) {
  make_values(task);
  const KeptValues kept(*task.module);
  STORMO_ASSIGN_OR_RETURN(const RankMemory memory, memory_of_ranks(world));
  SearchJob job{.options = options,
                .task = task,
                .data = data,
                .ranks_per_host = world.ranks_per_host(),
                .memory = memory.usable,
                .process = memory.process,
                .can_share = memory.can_share};
  STORMO_ASSIGN_OR_RETURN(job.codec, speed_on_ranks(world, options.gradients.codec));
  job.measure = [&](const std::vector<Wanted>& wanted) {
    return measure_on_ranks(world, task, data, wanted, job.memory);
  };
  comm::StepModel model(options.name, plan::Topology::gigabit(world.ranks_per_host()));
  STORMO_ASSIGN_OR_RETURN(const Found found, search(job, model));
  return with(options, found.fitting.front().candidate);
}

}  // namespace stormo::train
