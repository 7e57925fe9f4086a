#include <stormo/train/sharded_store.h>

#include <utility>

namespace stormo::train {
namespace {

std::shared_ptr<model::Chain> chain_of(const std::shared_ptr<torch::nn::Module>& module) {
  if (auto chain = std::dynamic_pointer_cast<model::Chain>(module)) return chain;
  throw Error(invalid_argument(
      "strategy 'fsdp' shards a model segment by segment: it must be a model::Chain; use 'ddp', or "
      "FullyShardedDataParallel in a loop of your own"));
}

}  // namespace

ShardedStore::ShardedStore(comm::Communicator& world,
                           const std::shared_ptr<torch::nn::Module>& module,
                           const OptimizerOptions& options, const ShardingOptions& sharding)
    : saves_(!sharding.hybrid || world.cross_rank() == 0),
      fsdp_(world, chain_of(module), sharding),
      optimizer_(fsdp_.make_optimizer(options)),
      description_("stage " + std::to_string(sharding.stage) +
                   (sharding.hybrid ? ", sharded inside hosts" : ", sharded over all ranks")) {}

void ShardedStore::begin_pass(double weight, bool last) {
  fsdp_.set_weight(weight);
  local_.reset();
  if (!last) local_.emplace(fsdp_);
}

torch::Tensor ShardedStore::forward(const Task&, const torch::Tensor& input) {
  return fsdp_.forward(input);
}

Status ShardedStore::update(const ParameterRange&, const StepRate& rate) {
  fsdp_.step(*optimizer_, rate);
  return {};
}

std::shared_ptr<void> ShardedStore::readable() {
  return std::make_shared<FullyShardedDataParallel::Gathered>(fsdp_);
}

std::vector<TensorPiece> ShardedStore::pieces() const {
  if (!saves_) return {};
  std::vector<TensorPiece> out = fsdp_.state();
  const std::vector<TensorPiece> state = optimizer_->state_pieces();
  out.insert(out.end(), state.begin(), state.end());
  return out;
}

std::string ShardedStore::describe() const { return description_; }

}  // namespace stormo::train
