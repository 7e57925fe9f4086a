#include <stormo/train/elastic/replica_exchange.h>

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include <stormo/tensor/bridge.h>
#include <stormo/train/agreement/broadcast.h>
#include <stormo/train/state/safetensors.h>

namespace stormo::train {
namespace {

/// Of the state of a rank.
constexpr std::uint32_t kReplicaTag = 0x7265706c;
constexpr const char* kSteps = "steps";

/// What updates change, by name, in shared memory. `slots`: also the optimizer's state, with a copy
/// of its counts.
TensorMap values_of(FusedOptimizer& optimizer, bool slots) {
  const FusedOptimizer::Values all = optimizer.values();
  TensorMap out;
  const auto add = [&](const std::string& prefix, const std::vector<torch::Tensor>& tensors) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      out.emplace(prefix + optimizer.parameters()[i].name, tensors[i].detach());
    }
  };
  add("weights ", all.weights);
  add("outer momentum ", all.outer_momentum);
  if (!slots) return out;
  for (std::size_t s = 0; s < all.slots.size(); ++s) {
    add("slot " + std::to_string(s) + " ", all.slots[s]);
  }
  out.emplace(kSteps, torch::tensor(optimizer.steps(), torch::kInt64));
  return out;
}

/// `values` has those of values_of().
void give_values(FusedOptimizer& optimizer, const TensorMap& values) {
  const bool slots = values.contains(kSteps);
  for (const auto& [name, own] : values_of(optimizer, slots)) own.copy_(values.at(name));
  if (slots) {
    const torch::Tensor& steps = values.at(kSteps);
    optimizer.set_steps(
        {steps.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(steps.numel())});
  }
  optimizer.round_masters();
}

Status send(comm::Communicator& world, const torch::Tensor& values, Rank to) {
  if (values.numel() == 0) return {};
  const torch::Tensor dense = values.contiguous();
  return world.send(tensor::bytes_of(dense), to, kReplicaTag);
}

/// One that is like `values`.
Result<torch::Tensor> receive(comm::Communicator& world, const torch::Tensor& values, Rank from) {
  const torch::Tensor dense = torch::empty(values.sizes(), values.scalar_type());
  if (dense.numel() == 0) return dense;
  STORMO_RETURN_IF_ERROR(world.recv(tensor::bytes_of(dense), from, kReplicaTag));
  return dense;
}

}  // namespace

// What comes goes into other memory first: a loss meanwhile must not leave a half of it.
Result<bool> settle_average(comm::Communicator& world, FusedOptimizer& optimizer,
                            LocalReplica& replica, std::int64_t step, bool has_state,
                            bool with_state) {
  const auto behind = static_cast<std::uint64_t>(step);
  std::int64_t own =
      has_state ? protocol::taken_behind(behind, replica.averages) : protocol::kHasNoState;
  std::vector<std::int64_t> taken(static_cast<std::size_t>(world.size()));
  STORMO_RETURN_IF_ERROR(world.all_gather(comm::Buffer{&own, 1, DType::kInt64}, taken));
  const protocol::Settlement found = protocol::settle(taken);
  if (!found.from) return found.is_made_anew;
  const torch::NoGradGuard no_grad;
  TensorMap values = values_of(optimizer, with_state);
  for (auto& [name, value] : values) value = value.clone();
  STORMO_RETURN_IF_ERROR(broadcast_values(world, values, static_cast<Rank>(*found.from)));
  if (!has_state || own == taken[*found.from]) return false;
  give_values(optimizer, values);
  replica.take(protocol::average_of(taken[*found.from], behind));
  return false;
}

Status send_replica(comm::Communicator& world, FusedOptimizer& optimizer,
                    const LocalReplica& replica, Rank to) {
  const torch::NoGradGuard no_grad;
  const protocol::AverageHistory& averages = replica.averages;
  const auto number = [](std::uint64_t n) { return static_cast<std::int64_t>(n); };
  std::array<std::int64_t, 5> facts = {averages.last.epoch, number(averages.last.step),
                                       averages.before.epoch, number(averages.before.step),
                                       replica.began_with.empty() ? 0 : 1};
  STORMO_RETURN_IF_ERROR(world.send(comm::Buffer(facts), to, kReplicaTag));
  for (const auto& [name, value] : values_of(optimizer, /*slots=*/true)) {
    STORMO_RETURN_IF_ERROR(send(world, value, to));
  }
  for (const torch::Tensor& value : replica.began_with) {
    STORMO_RETURN_IF_ERROR(send(world, value, to));
  }
  return {};
}

Result<std::uint64_t> receive_replica(comm::Communicator& world, FusedOptimizer& optimizer,
                                      LocalReplica& replica, Rank from) {
  const torch::NoGradGuard no_grad;
  std::array<std::int64_t, 5> facts{};
  STORMO_RETURN_IF_ERROR(world.recv(comm::Buffer(facts), from, kReplicaTag));
  const auto average = [&](std::size_t first) {
    return protocol::AverageId{.epoch = static_cast<Epoch>(facts[first]),
                               .step = static_cast<std::uint64_t>(facts[first + 1])};
  };
  replica = {.averages = {.last = average(0), .before = average(2)}};
  std::uint64_t bytes = 0;
  TensorMap values = values_of(optimizer, /*slots=*/true);
  for (auto& [name, value] : values) {
    STORMO_ASSIGN_OR_RETURN(value, receive(world, value, from));
    bytes += value.nbytes();
  }
  give_values(optimizer, values);
  if (facts[4] == 0) return bytes;
  for (const torch::Tensor& like : optimizer.values().weights) {
    STORMO_ASSIGN_OR_RETURN(replica.began_with.emplace_back(), receive(world, like, from));
    bytes += like.nbytes();
  }
  return bytes;
}

}  // namespace stormo::train
