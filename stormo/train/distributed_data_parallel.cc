#include <stormo/train/distributed_data_parallel.h>

#include <cmath>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <stormo/train/backward_hooks.h>
#include <stormo/train/broadcast.h>
#include <stormo/train/checkpoint.h>
#include <stormo/train/gradient_reducer.h>
#include <stormo/train/sparse_gradients.h>

namespace stormo::train {

struct DistributedDataParallel::State {
  State(comm::Communicator& w, std::shared_ptr<torch::nn::Module> m, const Reduction& how)
      : world(w),
        module(std::move(m)),
        sparse(w, *module),
        dense(sparse.others(trainable_parameters(*module))),
        reducer(w, dense, how),
        hooks(tensors(), {.ready =
                              [this](std::size_t i) {
                                if (i < dense.size()) reducer.ready(i);
                              },
                          .nested = [this] { reducer.hold(); },
                          .end = [this] { reduce(); },
                          .abandoned = [this] { reducer.abandon(); }}) {}

  /// Dense ones first.
  std::vector<torch::Tensor> tensors() const {
    std::vector<torch::Tensor> out;
    for (const NamedParameter& p : dense) out.push_back(p.tensor);
    for (const NamedParameter& p : sparse.parameters()) out.push_back(p.tensor);
    return out;
  }
  void reduce() {
    throw_if_error(reducer.reduce().within("DistributedDataParallel"));
    throw_if_error(sparse.reduce(weight).within("DistributedDataParallel"));
  }

  comm::Communicator& world;
  std::shared_ptr<torch::nn::Module> module;
  SparseGradients sparse;
  std::vector<NamedParameter> dense;
  GradientReducer reducer;
  double weight = 1;
  BackwardHooks hooks;
};

DistributedDataParallel::DistributedDataParallel(comm::Communicator& world,
                                                 std::shared_ptr<torch::nn::Module> module,
                                                 const Reduction& how) {
  const auto tensors = named_state(*module);
  throw_if_error(check_same_tensors(world, tensors).within("DistributedDataParallel"));
  throw_if_error(broadcast_values(world, tensors).within("DistributedDataParallel"));
  state_ = std::make_unique<State>(world, std::move(module), how);
}

DistributedDataParallel::~DistributedDataParallel() = default;

void DistributedDataParallel::set_weight(double weight) {
  if (!std::isfinite(weight) || weight < 0) {
    throw Error(invalid_argument("DistributedDataParallel: the weight must be a number >= 0, got " +
                                 std::to_string(weight)));
  }
  state_->weight = weight;
  state_->reducer.set_weight(weight);
}

DistributedDataParallel::NoSync::NoSync(DistributedDataParallel& ddp)
    : hooks_(ddp.state_->hooks), before_(hooks_.enabled()) {
  hooks_.enable(false);
}

DistributedDataParallel::NoSync::~NoSync() { hooks_.enable(before_); }

void DistributedDataParallel::reduce_gradients() { state_->reduce(); }

bool DistributedDataParallel::any_rank_has(bool mine) {
  std::int64_t some = mine ? 1 : 0;
  throw_if_error(
      state_->world.all_reduce(comm::buffer_of(std::span(&some, 1)), comm::ReduceOp::kMax));
  return some != 0;
}

void DistributedDataParallel::broadcast_buffers() {
  std::map<std::string, torch::Tensor> buffers;
  for (const auto& b : state_->module->named_buffers()) buffers.emplace(b.key(), b.value());
  throw_if_error(broadcast_values(state_->world, buffers).within("DistributedDataParallel"));
}

std::string DistributedDataParallel::overlap() const { return state_->reducer.describe(); }

}  // namespace stormo::train
