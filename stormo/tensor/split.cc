#include <stormo/tensor/split.h>

#include <algorithm>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/utils.h>

#include <stormo/base/rng.h>
#include <stormo/tensor/bridge.h>
#include <stormo/tensor/generator.h>

namespace stormo::tensor {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kGroup = "ranks";

/// A Function's arguments are tensors and plain values: the group travels as its address.
const TensorParallelGroup* group_of(std::int64_t address) {
  return reinterpret_cast<const TensorParallelGroup*>(
      address);  // NOLINT(performance-no-int-to-ptr)
}
std::int64_t address_of(const TensorParallelGroup* ranks) {
  return reinterpret_cast<std::int64_t>(ranks);
}

/// The gradient in memory that nobody else reads.
torch::Tensor own(torch::Tensor gradient) {
  const bool is_own = gradient.use_count() == 1 && gradient.storage().use_count() == 1;
  return is_own && gradient.is_contiguous() ? gradient
                                            : gradient.clone(torch::MemoryFormat::Contiguous);
}

/// [B, T, ...] as [parts, B, T / parts, ...], contiguous: what each rank gets lies together. Of one
/// sample it lies so already.
torch::Tensor by_rank(const torch::Tensor& x, int parts) {
  TORCH_CHECK_VALUE(x.dim() >= 2 && x.size(1) % parts == 0, "sequence parallelism: ", parts,
                    " ranks do not divide the positions of a tensor of sizes ", x.sizes(),
                    " evenly; use sequences whose length is a multiple of ", parts);
  return x.unflatten(1, {parts, -1}).movedim(1, 0).contiguous();
}

struct BeginSplit : torch::autograd::Function<BeginSplit> {
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& x,
                               std::int64_t ranks) {
    context->saved_data[kGroup] = ranks;
    const TensorParallelGroup& group = *group_of(ranks);
    return group.sequence_parallel() ? group.all_gather(x.detach()) : x.detach();
  }
  /// Takes the gradient out of `gradients`, so that it has no second owner.
  static variable_list backward(AutogradContext* context, variable_list& gradients) {
    const torch::Tensor gradient = own(std::move(gradients.front()));
    const TensorParallelGroup& group = *group_of(context->saved_data[kGroup].toInt());
    if (group.sequence_parallel()) return {group.reduce_scatter(gradient), torch::Tensor()};
    group.all_reduce(gradient, comm::ReduceOp::kSum);
    return {gradient, torch::Tensor()};
  }
};

struct EndSplit : torch::autograd::Function<EndSplit> {
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& x,
                               std::int64_t ranks) {
    context->saved_data[kGroup] = ranks;
    const TensorParallelGroup& group = *group_of(ranks);
    torch::Tensor sum = x.detach();
    sum.unsafeGetTensorImpl()->bump_version();  // written behind autograd's back
    if (group.sequence_parallel()) return group.reduce_scatter(sum);
    group.all_reduce(sum, comm::ReduceOp::kSum);
    return sum;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const TensorParallelGroup& group = *group_of(context->saved_data[kGroup].toInt());
    const torch::Tensor& gradient = gradients.front();
    return {group.sequence_parallel() ? group.all_gather(gradient) : gradient, torch::Tensor()};
  }
};

at::CPUGeneratorImpl* generator() {
  return at::get_generator_or_default<at::CPUGeneratorImpl>({},
                                                            at::detail::getDefaultCPUGenerator());
}

}  // namespace

void TensorParallelGroup::all_reduce(const torch::Tensor& x, comm::ReduceOp op) const {
  if (ranks_ != nullptr) throw_if_error(ranks_->all_reduce(buffer_of(x), op));
}

void TensorParallelGroup::broadcast(const torch::Tensor& x, int root) const {
  if (ranks_ != nullptr) throw_if_error(ranks_->broadcast(buffer_of(x), root));
}

torch::Tensor TensorParallelGroup::all_gather(const torch::Tensor& x) const {
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.insert(sizes.begin(), part_.parts);
  const torch::Tensor all = torch::empty(sizes, x.options());
  if (ranks_ == nullptr) {
    all.copy_(x);
  } else {
    throw_if_error(ranks_->all_gather(buffer_of(x.contiguous()), buffer_of(all)));
  }
  return all.movedim(0, 1).flatten(1, 2);
}

torch::Tensor TensorParallelGroup::reduce_scatter(const torch::Tensor& x) const {
  const torch::Tensor all = by_rank(x, part_.parts);
  if (ranks_ == nullptr) return all[part_.index].clone();
  const torch::Tensor mine = torch::empty_like(all[0]);
  throw_if_error(ranks_->reduce_scatter(buffer_of(all), buffer_of(mine), comm::ReduceOp::kSum));
  return mine;
}

torch::Tensor begin_split(const torch::Tensor& x, const TensorParallelGroup* ranks) {
  return ranks == nullptr ? x : BeginSplit::apply(x, address_of(ranks));
}

torch::Tensor end_split(const torch::Tensor& x, const TensorParallelGroup* ranks) {
  return ranks == nullptr ? x : EndSplit::apply(x, address_of(ranks));
}

// The dimension as blocks of units, of which the ranks have consecutive ones.
torch::Tensor slice(const torch::Tensor& whole, const plan::Split& split, const plan::Part& part) {
  const torch::NoGradGuard no_grad;
  const plan::Share mine = plan::share(split, part.parts, part.index);
  std::vector<std::int64_t> sizes = whole.sizes().vec();
  std::int64_t& size = sizes[static_cast<std::size_t>(split.dim)];
  const std::int64_t unit = size / split.blocks / split.units;
  size = split.blocks * mine.size() * unit;
  return whole.detach()
      .unflatten(split.dim, {split.blocks, split.units * unit})
      .narrow(split.dim + 1, mine.begin * unit, mine.size() * unit)
      .clone(torch::MemoryFormat::Contiguous)
      .view(sizes);
}

torch::Tensor join(const std::vector<torch::Tensor>& slices, const plan::Split& split) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> blocks;
  blocks.reserve(slices.size());
  for (const torch::Tensor& s : slices)
    blocks.push_back(s.unflatten(split.dim, {split.blocks, -1}));
  return torch::cat(blocks, split.dim + 1).flatten(split.dim, split.dim + 1);
}

// The seed is drawn outside, so that it is another one each time, and the same in a recompute.
SplitRandom::SplitRandom(const TensorParallelGroup* ranks) {
  if (ranks == nullptr) return;
  at::CPUGeneratorImpl* const random = generator();
  const std::scoped_lock lock(random->mutex_);
  const std::uint64_t seed = random->random64();
  outside_ = at::Tensor(random->get_state());
  Rng rng(seed, "split", static_cast<std::uint64_t>(ranks->part().index));
  random->set_current_seed(rng.next_u64());
}

SplitRandom::~SplitRandom() {
  if (outside_.defined()) set_generator_state(outside_);
}

}  // namespace stormo::tensor
