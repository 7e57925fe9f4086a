#include <stormo/train/planner/measure_on_ranks.h>

#include <algorithm>
#include <array>
#include <memory>
#include <span>

#include <stormo/launch/process/available_memory.h>
#include <stormo/model/chain.h>
#include <stormo/train/failure.h>
#include <stormo/train/state/checkpoint.h>
#include <stormo/train/store/host_shared_parameters.h>

namespace stormo::train {
namespace {

constexpr int kRounds = 3;

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

}  // namespace

Result<std::vector<StepMeasurement>> measure_on_ranks(comm::Communicator& world, const Task& task,
                                                      const data::Dataset& data,
                                                      const std::vector<Wanted>& wanted,
                                                      std::int64_t memory) {
  Result<std::vector<StepMeasurement>> own = measure_rounds(
      task, data, wanted, memory, kRounds, [&world] { throw_if_error(world.barrier()); });
  if (!own.ok()) {
    world.fail(own.status());
    return own;
  }
  for (StepMeasurement& m : *own) STORMO_RETURN_IF_ERROR(combine(world, m));
  return own;
}

Result<CodecSpeed> speed_on_ranks(comm::Communicator& world, Codec codec) {
  STORMO_RETURN_IF_ERROR(world.barrier());
  const CodecSpeed own = measure_speed(codec);
  std::array seconds{own.encode, own.decode};
  STORMO_RETURN_IF_ERROR(world.all_reduce(seconds, comm::ReduceOp::kAverage));
  return CodecSpeed{.encode = seconds[0], .decode = seconds[1]};
}

KeptValues::KeptValues(torch::nn::Module& module) : module_(module) {
  for (const auto& [name, tensor] : named_state(module)) {
    kept_.emplace_back(tensor, tensor.detach().clone());
  }
}

KeptValues::~KeptValues() {
  const torch::NoGradGuard no_grad;
  for (auto& [tensor, values] : kept_) tensor.copy_(values);
  module_.zero_grad();
}

void make_values(const Task& task) {
  if (const auto chain = std::dynamic_pointer_cast<model::Chain>(task.module)) chain->make_values();
}

std::int64_t memory_of_a_rank(std::uint64_t available, const std::vector<int>& ranks_per_host) {
  const auto here = static_cast<std::uint64_t>(*std::ranges::max_element(ranks_per_host));
  return static_cast<std::int64_t>(
      std::min<std::uint64_t>(available / here + launch::own_memory(), INT64_MAX));
}

Result<RankMemory> memory_of_ranks(comm::Communicator& world) {
  std::array memory{memory_of_a_rank(launch::available_memory(), world.ranks_per_host()),
                    -static_cast<std::int64_t>(launch::own_memory()),
                    std::int64_t{HostSharedParameters::possible(world) ? 1 : 0}};
  STORMO_RETURN_IF_ERROR(world.all_reduce(memory, comm::ReduceOp::kMin));
  return RankMemory{.usable = memory[0], .process = -memory[1], .can_share = memory[2] == 1};
}

}  // namespace stormo::train
