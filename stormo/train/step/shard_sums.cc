#include <stormo/train/step/shard_sums.h>

#include <cstddef>

#include <stormo/plan/logical_shards.h>

namespace stormo::train {
namespace {

/// Not in place: gradients that autograd has made may share their memory. What is not there is 0,
/// also for the sign of a zero, as in the buffers that ranks add up.
torch::Tensor sum_of(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.defined() && b.defined()) return a + b;
  if (!a.defined() && !b.defined()) return {};
  return (a.defined() ? a : b) + 0;
}

/// After leaf number `leaf` of `leaves`: adds up the nodes that it completes.
template <class T, class Add>
void add_complete(std::vector<T>& left, int leaves, int leaf, const Add& add) {
  for (int sums = plan::nodes_complete_with(leaves, leaf); sums > 0; --sums) {
    T last = std::move(left.back());
    left.pop_back();
    add(left.back(), last);
  }
}

}  // namespace

void ShardSums::take_gradients() {
  const torch::NoGradGuard no_grad;
  Gradients& own = left_.emplace_back();
  for (const torch::Tensor& p : parameters_) own.push_back(std::exchange(p.mutable_grad(), {}));
  add_complete(left_, shards_, taken_, [](Gradients& sum, Gradients& other) {
    for (std::size_t i = 0; i < sum.size(); ++i) {
      sum[i] = sum_of(sum[i], other[i]);
      other[i].reset();
    }
  });
  if (++taken_ < shards_) return;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].mutable_grad() = std::move(left_.front()[i]);
  }
  left_.clear();
  taken_ = 0;
}

double ShardSums::take_loss() {
  if (shards_ == 0) return 0;
  std::vector<double> left;
  losses_.resize(static_cast<std::size_t>(shards_));
  for (int leaf = 0; leaf < shards_; ++leaf) {
    left.push_back(losses_[static_cast<std::size_t>(leaf)]);
    add_complete(left, shards_, leaf, [](double& sum, double other) { sum += other; });
  }
  losses_.clear();
  return left.front();
}

}  // namespace stormo::train
