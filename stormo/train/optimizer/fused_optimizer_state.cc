// State of a FusedOptimizer as named tensors and pieces, and back.
#include <algorithm>
#include <sstream>

#include <torch/utils.h>

#include <stormo/train/optimizer/fused_optimizer.h>
#include <stormo/train/state/checkpoint.h>
#include <stormo/train/state/other_slots.h>

namespace stormo::train {
namespace {

std::string describe(const torch::Tensor& t) {
  std::ostringstream out;
  out << torch::toString(t.scalar_type()) << " " << t.sizes();
  return out.str();
}

}  // namespace

// The tensors of one parameter's state, one for each name of slots_of(i).
std::vector<torch::Tensor> FusedOptimizer::tensors_of(std::size_t i) const {
  const State& state = states_[i];
  std::vector<torch::Tensor> out;
  for (const std::string& slot : slots_of(i)) {
    if (slot == kStepSlot) {
      out.push_back(torch::full({1}, static_cast<double>(state.steps), torch::kFloat32));
    } else {
      out.push_back(slot == kMasterSlot          ? state.master
                    : slot == kOuterMomentumSlot ? state.outer_momentum
                                                 : state.slots[out.size()]);
    }
  }
  return out;
}

std::vector<std::string> FusedOptimizer::slots_of(std::size_t i) const {
  std::vector<std::string> out;
  for (const std::string_view slot : optim::slot_names(rule_of(i))) out.emplace_back(slot);
  if (optim::counts_steps(rule_of(i).kind)) out.emplace_back(kStepSlot);
  if (c10::elementSize(weights_type(i)) == 2) out.emplace_back(kMasterSlot);
  if (keeps_outer_) out.emplace_back(kOuterMomentumSlot);
  return out;
}

// The range may lie elsewhere, in another type than the parameter's: a shard in float32.
torch::ScalarType FusedOptimizer::weights_type(std::size_t i) const {
  const torch::Tensor& elsewhere = owned_[i].weights;
  return (elsewhere.defined() ? elsewhere : parameters_[i].tensor).scalar_type();
}

torch::ScalarType FusedOptimizer::type_of(std::size_t i, const std::string& slot) const {
  const auto type = weights_type(i);
  return slot == kStepSlot || c10::elementSize(type) == 2 ? torch::kFloat32 : type;
}

torch::Tensor FusedOptimizer::zero_state(std::size_t i) const {
  const auto& device = parameters_[i].tensor.device();
  return torch::zeros({numel(i)}, torch::dtype(type_of(i, "")).device(device));
}

void FusedOptimizer::create_state(std::size_t i) {
  State& state = states_[i];
  // it may be kept from later on
  if (keeps_outer_ && !state.outer_momentum.defined()) state.outer_momentum = zero_state(i);
  if (state.begun) return;
  for (std::size_t s = 0; s < optim::slot_names(rule_of(i)).size(); ++s) {
    state.slots[s] = zero_state(i);
  }
  if (c10::elementSize(weights_type(i)) == 2) {
    state.master = owned_weights(i).flatten().to(type_of(i, ""));
  }
  state.begun = true;
}

torch::Tensor FusedOptimizer::owned_weights(std::size_t i) const {
  const OwnedRange& range = owned_[i];
  if (range.weights.defined()) return range.weights;
  const torch::Tensor all = parameters_[i].tensor.detach();
  return numel(i) == all.numel() ? all : all.flatten().slice(0, range.begin, range.end);
}

FusedOptimizer::Values FusedOptimizer::values() {
  Values out;
  out.slots.resize(optim::num_slots(options_));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    create_state(i);
    const State& state = states_[i];
    out.weights.push_back(state.master.defined() ? state.master : owned_weights(i));
    for (std::size_t s = 0; s < out.slots.size(); ++s) out.slots[s].push_back(state.slots[s]);
    if (keeps_outer_) out.outer_momentum.push_back(state.outer_momentum);
  }
  return out;
}

void FusedOptimizer::place_slots(const std::vector<std::vector<torch::Tensor>>& slots) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    for (std::size_t s = 0; s < slots.size(); ++s) states_[i].slots[s] = slots[s][i];
    states_[i].begun = true;
  }
}

void FusedOptimizer::round_masters() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!states_[i].master.defined()) continue;
    const torch::Tensor weights = owned_weights(i);
    weights.copy_(states_[i].master.view_as(weights));
  }
}

std::vector<std::int64_t> FusedOptimizer::steps() const {
  std::vector<std::int64_t> out;
  for (const State& state : states_) out.push_back(state.steps);
  return out;
}

void FusedOptimizer::set_steps(std::span<const std::int64_t> steps) {
  for (std::size_t i = 0; i < states_.size(); ++i) states_[i].steps = steps[i];
}

std::vector<TensorPiece> FusedOptimizer::state_pieces() const {
  std::vector<TensorPiece> out;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!states_[i].begun) continue;
    const auto tensors = tensors_of(i);
    const auto slots = slots_of(i);
    for (std::size_t s = 0; s < slots.size(); ++s) {
      const std::string key = optimizer_key(slots[s], parameters_[i].name);
      if (slots[s] != kStepSlot) {
        out.push_back(
            {key, parameters_[i].tensor.sizes().vec(), owned_[i].begin, owned_[i].end, tensors[s]});
      } else if (owned_[i].begin == 0) {
        out.push_back({key, {}, 0, 1, tensors[s]});
      }
    }
  }
  return out;
}

std::map<std::string, torch::Tensor> FusedOptimizer::state() const {
  std::map<std::string, torch::Tensor> out;
  for (const TensorPiece& piece : state_pieces()) {
    const torch::Tensor& values = piece.values;
    if (values.numel() != c10::multiply_integers(piece.shape)) {
      throw Error(
          invalid_argument("this rank holds a part of '" + piece.name +
                           "' only; save it by RunCheckpoint(world, fsdp, optimizer, folder), "
                           "or use state_pieces()"));
    }
    out.emplace(piece.name, values.view(piece.shape));
  }
  return out;
}

Status FusedOptimizer::load_state(const ReadState& read) {
  std::vector<State> loaded(states_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (numel(i) == 0) continue;
    const std::vector<std::string> slots = slots_of(i);
    std::size_t present = 0;
    for (std::size_t s = 0; s < slots.size(); ++s) {
      const bool scalar = slots[s] == kStepSlot;
      const std::int64_t begin = scalar ? 0 : owned_[i].begin, end = scalar ? 1 : owned_[i].end;
      const std::string key = optimizer_key(slots[s], parameters_[i].name);
      STORMO_ASSIGN_OR_RETURN(const torch::Tensor values, read(key, begin, end));
      if (!values.defined()) continue;
      const auto type = type_of(i, slots[s]);
      if (values.scalar_type() != type || values.numel() != end - begin) {
        return invalid_argument("optimizer state '" + key + "' is " + describe(values) + ", not " +
                                std::to_string(end - begin) + " numbers of type " +
                                torch::toString(type) +
                                "; the checkpoint belongs to another model");
      }
      ++present;
      if (scalar) {
        loaded[i].steps = static_cast<std::int64_t>(values.item<float>());
      } else {
        (slots[s] == kMasterSlot          ? loaded[i].master
         : slots[s] == kOuterMomentumSlot ? loaded[i].outer_momentum
                                          : loaded[i].slots[s]) =
            values.detach().flatten().to(parameters_[i].tensor.device(), values.scalar_type(),
                                         /*non_blocking=*/false, /*copy=*/true);
      }
    }
    loaded[i].begun = present != 0;
    if (loaded[i].begun && keeps_outer_ && !loaded[i].outer_momentum.defined()) {
      loaded[i].outer_momentum = zero_state(i);  // of a run without outer optimizer
      ++present;
    }
    if (present != 0 && present != slots.size()) {
      return invalid_argument("optimizer state of '" + parameters_[i].name + "' has " +
                              std::to_string(present) + " of " + std::to_string(slots.size()) +
                              " tensors; the checkpoint belongs to another optimizer");
    }
  }
  states_ = std::move(loaded);
  return {};
}

Status FusedOptimizer::load_state(const std::map<std::string, torch::Tensor>& state) {
  std::size_t used = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const torch::Tensor& p = parameters_[i].tensor;
    for (const std::string& slot : slots_of(i)) {
      const std::string key = optimizer_key(slot, parameters_[i].name);
      const auto found = state.find(key);
      if (found == state.end()) continue;
      const torch::Tensor& t = found->second;
      if (slot == kStepSlot ? t.numel() != 1 : t.sizes() != p.sizes()) {
        return invalid_argument("optimizer state '" + key + "' is " + describe(t) +
                                ", the parameter is " + describe(p) +
                                "; the checkpoint belongs to another model");
      }
      ++used;
    }
  }
  const auto others = keeps_outer_ ? 0 : std::ranges::count_if(state, [](const auto& tensor) {
    return optimizer_slot(tensor.first) == kOuterMomentumSlot;
  });
  if (used + static_cast<std::size_t>(others) != state.size()) {
    return invalid_argument("the checkpoint holds " + std::to_string(state.size()) +
                            " optimizer tensors, this optimizer knows " + std::to_string(used) +
                            " of them; resume with the optimizer and the model that wrote it");
  }
  return load_state([&state](const std::string& key, std::int64_t begin,
                             std::int64_t end) -> Result<torch::Tensor> {
    const auto found = state.find(key);
    if (found == state.end()) return torch::Tensor();
    return found->second.flatten().slice(0, begin, end);
  });
}

}  // namespace stormo::train
