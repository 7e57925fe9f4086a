// Averages by servers.
//
// Idea: what is averaged are arrays of numbers, whatever they mean. So a shard has weights, slots
// of the optimizer and numbers of steps as parameters of its own, without an optimizer, and the
// policy of the servers does the rest: who waits, the order of additions, and what happens when a
// worker is lost. Paper: see PolicyOptions::Kind::kAverage.
#include <stormo/train/server_store/server_averaged_store.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>

#include <stormo/train/state/checkpoint.h>

namespace stormo::train {
namespace {

/// The numbers of steps of all parameters. No parameter of a module has such a name.
constexpr const char* kNumbers = "optimizer numbers of steps";

/// By name what servers average: the numbers of steps, weights, then each slot.
std::vector<NamedParameter> averaged_values(FusedOptimizer& optimizer) {
  const std::vector<NamedParameter>& parameters = optimizer.parameters();
  const auto count = static_cast<std::int64_t>(parameters.size());
  const FusedOptimizer::Values values = optimizer.values();
  const auto slots = optim::slot_names(optimizer.options());
  std::vector<NamedParameter> out = {{kNumbers, torch::zeros({count}, torch::kFloat64)}};
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    out.push_back({parameters[i].name, values.weights[i], parameters[i].sparse});
  }
  for (std::size_t s = 0; s < slots.size(); ++s) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      out.push_back({optimizer_key(slots[s], parameters[i].name),
                     values.slots[s][i].view(parameters[i].tensor.sizes())});
    }
  }
  return out;
}

}  // namespace

TrainerOptions averaging_options(TrainerOptions options) {
  options.optimizer = {};
  options.strategy.exchange_periods = {};
  return options;
}

ServerAveragedStore::ServerAveragedStore(const AxisGroups& groups,
                                         const std::shared_ptr<torch::nn::Module>& module,
                                         const TrainerOptions& options, server::Facts facts)
    : ServedStore(groups, trainable_parameters(*module), options.optimizer,
                  averaging_options(options), std::move(facts), averaged_values) {}

// With the tensors that the optimizer has now: loading a state makes others.
std::vector<torch::Tensor> ServerAveragedStore::values() {
  std::vector<torch::Tensor> out;
  for (const NamedParameter& p : averaged_values(optimizer_)) out.push_back(p.tensor);
  const std::vector<std::int64_t> steps = optimizer_.steps();
  std::ranges::copy(steps, out.front().data_ptr<double>());
  return out;
}

Status ServerAveragedStore::perform(const plan::Action& action, double weight) {
  const torch::NoGradGuard no_grad;
  STORMO_RETURN_IF_ERROR(row_of(action.kind).averages() ? give_values(weight) : take_averages());
  done(action);
  return {};
}

Status ServerAveragedStore::give_values(double weight) {
  const ShardCalls::Call call(calls_, comm::Operation::AtShards::kPush);
  const std::vector<torch::Tensor> own = values();
  std::vector<std::vector<server::PushedPiece>> pieces;
  std::vector<server::PushedGradient> pushes;
  for (std::size_t s = 0; s < shards_.size(); ++s) {
    pieces.push_back(served_.gradient_pieces(s, own));
    pushes.push_back({.pieces = pieces[s], .weight = weight, .sequence = sequence_[s]});
  }
  return push_all(pushes);
}

// All reads are begun before the first one is waited for. What was begun is called, also when one
// fails.
Status ServerAveragedStore::take_averages() {
  const ShardCalls::Call call(calls_, comm::Operation::AtShards::kPull);
  for (const auto& shard : shards_) shard->begin_read();
  Views averages;
  Status outcome;
  for (const auto& shard : shards_) {
    Result<server::Shard::View> view = shard->read();
    if (!view.ok() && outcome.ok()) outcome = view.status();
    if (view.ok()) averages.push_back(std::move(*view));
  }
  STORMO_RETURN_IF_ERROR(outcome);
  take(averages);
  return {};
}

void ServerAveragedStore::take(const Views& averages) {
  const std::vector<torch::Tensor> own = values();
  served_.copy(averages, own);
  const double* numbers = own.front().const_data_ptr<double>();
  std::vector<std::int64_t> steps = optimizer_.steps();
  for (std::size_t i = 0; i < steps.size(); ++i) steps[i] = std::llround(numbers[i]);
  optimizer_.set_steps(steps);
}

GatheredParameters ServerAveragedStore::gather() {
  const Views averages = look();
  std::vector<torch::Tensor> shown(served_.parameters().size());  // of weights only
  const std::vector<NamedParameter>& parameters = optimizer_.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    shown[1 + i] = torch::empty_like(parameters[i].tensor.detach());
  }
  served_.copy(averages, shown);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    torch::Tensor parameter = parameters[i].tensor;
    own_.push_back(parameter.detach());
    parameter.set_data(shown[1 + i]);
  }
  return {this, [](void* store) { static_cast<ServerAveragedStore*>(store)->show_own(); }};
}

void ServerAveragedStore::show_own() {
  for (std::size_t i = 0; i < own_.size(); ++i) {
    torch::Tensor parameter = optimizer_.parameters()[i].tensor;
    parameter.set_data(own_[i]);
  }
  own_.clear();
}

// The module's memory is its own, also where it shows the averages.
void ServerAveragedStore::keep_values() {
  const torch::NoGradGuard no_grad;
  if (own_.empty()) return take(look());
  own_.clear();
}

// The first worker saves all.
std::vector<TensorPiece> ServerAveragedStore::pieces() const {
  std::vector<TensorPiece> out, steps;
  for (TensorPiece& piece : ServedStore::pieces()) {
    (piece.name == kNumbers ? steps : out).push_back(std::move(piece));
  }
  if (!optim::counts_steps(optimizer_.options().kind)) return out;
  for (const TensorPiece& of : steps) {
    for (std::int64_t i = of.begin; i < of.end; ++i) {
      const std::string& name = optimizer_.parameters()[static_cast<std::size_t>(i)].name;
      const double number = std::round(of.values[i - of.begin].item<double>());
      out.push_back(
          {optimizer_key(kStepSlot, name), {}, 0, 1, torch::full({1}, number, torch::kFloat32)});
    }
  }
  return out;
}

// The first worker has made the shards of what it had before.
Status ServerAveragedStore::load_state(const ReadState& read) {
  STORMO_RETURN_IF_ERROR(optimizer_.load_state(read));
  if (worker_ != 0) return {};
  const std::vector<torch::Tensor> own = values();
  for (std::size_t s = 0; s < shards_.size(); ++s) {
    const std::vector<void*> pieces = served_.pieces_of(s, own);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      STORMO_RETURN_IF_ERROR(shards_[s]->set(i, {.weights = static_cast<std::byte*>(pieces[i])}));
    }
  }
  return {};
}

// One that was lost is far from the others. Ranks that share memory meet, and then pull.
Status ServerAveragedStore::join() {
  const torch::NoGradGuard no_grad;
  STORMO_RETURN_IF_ERROR(ServedStore::join());
  if (session_) take(look());
  return {};
}

}  // namespace stormo::train
