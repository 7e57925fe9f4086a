#include <stormo/train/server_store/elastic_store.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <utility>

namespace stormo::train {
namespace {

constexpr double kSumOfRates = 0.9;  // over the workers: beta of the paper

}  // namespace

TrainerOptions centre_options(TrainerOptions options) {
  options.optimizer = {};
  options.servers.policy = {};
  options.strategy.exchange_periods = {};
  return options;
}

Result<double> moving_rate_of(const ElasticOptions& options, int workers) {
  const double rate = options.moving_rate;
  if (rate == ElasticOptions().moving_rate) return kSumOfRates / workers;
  if (rate >= 0 && rate * workers <= 1) return rate;
  return invalid_argument("the moving rate of elastic averaging is " + std::to_string(rate) + ", " +
                          std::to_string(rate * workers) + " for all " + std::to_string(workers) +
                          " workers together, but must be from 0 to 1 / workers, or -1 for 0.9 / "
                          "workers");
}

ElasticStore::ElasticStore(const AxisGroups& groups,
                           const std::shared_ptr<torch::nn::Module>& module,
                           const TrainerOptions& options, server::Facts facts)
    : ServedStore(groups, trainable_parameters(*module), options.optimizer, centre_options(options),
                  std::move(facts)),
      moving_rate_(moving_rate_of(options.elastic, workers_).take_or_throw()) {}

Status ElasticStore::perform(const plan::Action& action, double /*weight*/) {
  std::vector<torch::Tensor> values;
  for (const NamedParameter& p : optimizer_.parameters()) values.push_back(p.tensor.detach());
  const ShardCalls::Call call(calls_, comm::Operation::AtShards::kExchange);
  const std::size_t count = shards_.size();
  for (std::size_t n = 0; n < count; ++n) {
    const std::size_t s = (n + static_cast<std::size_t>(worker_)) % count;
    const std::vector<void*> own = served_.pieces_of(s, values);
    STORMO_RETURN_IF_ERROR(shards_[s]->elastic_average(own, moving_rate_, sequence_[s]).status());
    ++sequence_[s];
  }
  done(action);
  return {};
}

GatheredParameters ElasticStore::gather() {
  const Views centre = look();
  for (const NamedParameter& p : optimizer_.parameters()) own_.push_back(p.tensor.detach());
  served_.show(centre);
  return {this, [](void* store) { static_cast<ElasticStore*>(store)->show_own(); }};
}

void ElasticStore::show_own() {
  for (std::size_t i = 0; i < own_.size(); ++i) {
    torch::Tensor parameter = optimizer_.parameters()[i].tensor;
    parameter.set_data(own_[i]);
  }
  own_.clear();
}

void ElasticStore::keep_values() {
  const std::shared_ptr<void> shown = own_.empty() ? gather() : nullptr;
  ServedStore::keep_values();
  own_.clear();
}

// In a session the first worker alone loads a checkpoint, and one that was lost is far from others.
Status ElasticStore::join() {
  STORMO_RETURN_IF_ERROR(ServedStore::join());
  if (session_) take_centre();
  return {};
}

void ElasticStore::take_centre() {
  const std::shared_ptr<void> shown = gather();
  for (std::size_t i = 0; i < own_.size(); ++i) {
    own_[i].copy_(optimizer_.parameters()[i].tensor.detach());
  }
}

// The first rank saves all.
std::vector<TensorPiece> ElasticStore::pieces() const {
  std::vector<TensorPiece> out = ServedStore::pieces();
  if (worker_ != 0) return out;
  std::ranges::move(optimizer_.state_pieces(), std::back_inserter(out));
  return out;
}

}  // namespace stormo::train
