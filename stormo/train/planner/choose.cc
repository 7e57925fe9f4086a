#include <stormo/train/planner/choose.h>

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <stormo/launch/process/available_memory.h>
#include <stormo/model/chain.h>
#include <stormo/train/estimate/measure_together.h>
#include <stormo/train/failure.h>
#include <stormo/train/planner/search.h>
#include <stormo/train/state/checkpoint.h>
#include <stormo/train/store/host_shared_parameters.h>

namespace stormo::train {
namespace {

constexpr int kRounds = 3;

/// While it lives, the module may change; then it has the values that it had, and no gradients.
class KeptValues {
 public:
  explicit KeptValues(torch::nn::Module& module) : module_(module) {
    for (const auto& [name, tensor] : named_state(module)) {
      kept_.emplace_back(tensor, tensor.detach().clone());
    }
  }
  ~KeptValues() {
    const torch::NoGradGuard no_grad;
    for (auto& [tensor, values] : kept_) tensor.copy_(values);
    module_.zero_grad();
  }
  KeptValues(const KeptValues&) = delete;
  KeptValues& operator=(const KeptValues&) = delete;

 private:
  torch::nn::Module& module_;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> kept_;
};

/// The means over the ranks of times, and the most of bytes.
Status combine(comm::Communicator& world, StepMeasurement& m) {
  analysis::ComputeTimes& t = m.times;
  for (std::vector<double>* times :
       {&t.forward, &t.backward, &t.backward_input, &t.backward_weight}) {
    STORMO_RETURN_IF_ERROR(world.all_reduce(*times, comm::ReduceOp::kAverage));
  }
  for (double* time : {&t.load, &t.loss, &t.norm, &t.update, &t.gradient}) {
    STORMO_RETURN_IF_ERROR(world.all_reduce(std::span(time, 1), comm::ReduceOp::kAverage));
  }
  STORMO_RETURN_IF_ERROR(world.all_reduce(m.activations, comm::ReduceOp::kMax));
  return world.all_reduce(m.outputs, comm::ReduceOp::kMax);
}

/// Of all ranks, which compute at the same time.
Result<std::vector<StepMeasurement>> measure(comm::Communicator& world, const SearchJob& job,
                                             const std::vector<Wanted>& wanted) {
  Result<std::vector<StepMeasurement>> own =
      measure_rounds(job.task, job.data, wanted, job.memory, kRounds,
                     [&world] { throw_if_error(world.barrier()); });
  if (!own.ok()) {
    world.fail(own.status());
    return own;
  }
  for (StepMeasurement& m : *own) STORMO_RETURN_IF_ERROR(combine(world, m));
  return own;
}

}  // namespace

std::int64_t memory_of_a_rank(std::uint64_t available, const std::vector<int>& ranks_per_host) {
  const auto here = static_cast<std::uint64_t>(*std::ranges::max_element(ranks_per_host));
  return static_cast<std::int64_t>(
      std::min<std::uint64_t>(available / here + launch::own_memory(), INT64_MAX));
}

Result<TrainerOptions> choose_strategy(comm::Communicator& world, const Task& task,
                                       const data::Dataset& data, const TrainerOptions& options) {
  if (const auto chain = std::dynamic_pointer_cast<model::Chain>(task.module)) chain->make_values();
  const KeptValues kept(*task.module);
  std::array memory{memory_of_a_rank(launch::available_memory(), world.ranks_per_host()),
                    -static_cast<std::int64_t>(launch::own_memory()),
                    std::int64_t{HostSharedParameters::possible(world) ? 1 : 0}};
  STORMO_RETURN_IF_ERROR(world.all_reduce(memory, comm::ReduceOp::kMin));
  SearchJob job{.options = options,
                .task = task,
                .data = data,
                .ranks_per_host = world.ranks_per_host(),
                .memory = memory[0],
                .process = -memory[1],
                .can_share = memory[2] == 1};
  job.measure = [&](const std::vector<Wanted>& wanted) { return measure(world, job, wanted); };
  comm::StepModel model(options.name, plan::Topology::gigabit(world.ranks_per_host()));
  STORMO_ASSIGN_OR_RETURN(const Found found, search(job, model));
  return with(options, found.fitting.front().candidate);
}

}  // namespace stormo::train
