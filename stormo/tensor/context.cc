// Attention over sequences of which each rank has a part.
//
// Idea of the ring: softmax over all keys is a sum over sets of keys, of which each has its own
// maximum and sum. So the result for one rank's keys can be merged with that for the next one's, if
// each comes with the logarithm of its sum. In backward the logarithm of the whole sum is known,
// and each rank's keys give their terms of the gradients; those of keys and values travel with
// them.
#include <stormo/tensor/context.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <stormo/tensor/bridge.h>

namespace stormo::tensor {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A Function's arguments are tensors and plain values: the group travels as its address.
const ContextGroup& context_group(std::int64_t address) {
  return *reinterpret_cast<const ContextGroup*>(address);  // NOLINT(performance-no-int-to-ptr)
}

constexpr std::int64_t kPositions = 2;  // dimension of q, k and v

torch::ScalarType sum_type(const Tensor& x) {
  return x.scalar_type() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
}

/// Positions [begin, begin + size) of this rank's.
struct Some {
  std::int64_t begin = 0;
  std::int64_t size = 0;
  Tensor of(const Tensor& x) const { return x.narrow(kPositions, begin, size); }
};

/// What one rank's queries have to do with the keys of a rank: the rest is masked.
struct Block {
  Some queries, keys;
  bool causal = false;
};

// A rank's first chunk lies in front of all second chunks. Of two ranks, the one with the earlier
// first chunk has the later second chunk.
Block block_of(int own, int other, std::int64_t length, bool causal) {
  const Some all{0, length}, first{0, length / 2}, second{length / 2, length / 2};
  if (!causal || own == other) return {all, all, causal};
  return other < own ? Block{all, first} : Block{second, all};
}

/// Merges the result for some keys into that for others; `log_sum` are the logarithms of their
/// sums.
void merge(Tensor result, Tensor log_sum, const Tensor& other, const Tensor& other_log_sum) {
  const Tensor both = at::logaddexp(log_sum, other_log_sum);
  result.mul_((log_sum - both).exp_().unsqueeze(-1));
  result.add_(other * (other_log_sum - both).exp_().unsqueeze(-1));
  log_sum.copy_(both);
}

struct RingAttention : torch::autograd::Function<RingAttention> {
  static Tensor forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                        bool causal, std::int64_t address) {
    const ContextGroup& ranks = context_group(address);
    const auto [own, parts] = ranks.part();
    Tensor result, log_sum;
    Tensor keys = at::stack({k, v});
    for (int step = 0; step < parts; ++step) {
      std::optional<ContextGroup::Passing> passing;
      const Tensor next = step + 1 < parts ? at::empty_like(keys) : Tensor();
      if (next.defined()) passing.emplace(ranks, keys, next, kKeys);
      const Block b = block_of(own, (own - step + parts) % parts, q.size(kPositions), causal);
      auto [part, part_log_sum] = at::_scaled_dot_product_flash_attention_for_cpu(
          b.queries.of(q), b.keys.of(keys[0]), b.keys.of(keys[1]), /*dropout_p=*/0, b.causal);
      if (step == 0) {
        result = part.to(sum_type(q));
        log_sum = part_log_sum.contiguous();
      } else {
        merge(b.queries.of(result), b.queries.of(log_sum), part, part_log_sum);
      }
      if (passing) passing->wait();
      keys = next;
    }
    result = result.to(q.scalar_type());
    context->save_for_backward({q, k, v, result, log_sum});
    context->saved_data["causal"] = causal;
    context->saved_data["ranks"] = address;
    return result;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const ContextGroup& ranks = context_group(context->saved_data["ranks"].toInt());
    const bool causal = context->saved_data["causal"].toBool();
    const variable_list saved = context->get_saved_variables();
    const Tensor &q = saved[0], &result = saved[3], &log_sum = saved[4];
    const Tensor gradient = gradients[0].to(q.scalar_type());
    const auto [own, parts] = ranks.part();
    Tensor keys = at::stack({saved[1], saved[2]});
    Tensor of_q = at::zeros(q.sizes(), q.options().dtype(sum_type(q)));
    // own terms of the gradients of own keys; and of `keys`, of all ranks where they have been
    const Tensor of_own = at::zeros(keys.sizes(), keys.options().dtype(sum_type(q)));
    Tensor of_keys = at::zeros_like(of_own);
    std::optional<ContextGroup::Passing> terms;
    for (int step = 0; step < parts; ++step) {
      std::optional<ContextGroup::Passing> passing;
      const Tensor next = step + 1 < parts ? at::empty_like(keys) : Tensor();
      if (next.defined()) passing.emplace(ranks, keys, next, kKeys);
      const Block b = block_of(own, (own - step + parts) % parts, q.size(kPositions), causal);
      const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          b.queries.of(gradient), b.queries.of(q), b.keys.of(keys[0]), b.keys.of(keys[1]),
          b.queries.of(result), b.queries.of(log_sum), /*dropout_p=*/0, b.causal);
      b.queries.of(of_q).add_(dq);
      if (terms) terms->wait();
      const Tensor& sums = step == 0 ? of_own : of_keys;
      b.keys.of(sums[0]).add_(dk);
      b.keys.of(sums[1]).add_(dv);
      if (step > 0) {
        const Tensor arriving = at::empty_like(of_keys);
        terms.emplace(ranks, of_keys, arriving, kTerms);
        of_keys = arriving;
      }
      if (passing) passing->wait();
      keys = next;
    }
    if (terms) terms->wait();
    of_keys.add_(of_own);  // those of the others are back
    return {of_q.to(q.scalar_type()), of_keys[0].to(q.scalar_type()),
            of_keys[1].to(q.scalar_type()), Tensor(), Tensor()};
  }

 private:
  static constexpr std::uint32_t kKeys = 0, kTerms = 1;
};

/// From [n, B, heads, t, D], of this rank's positions, to [n, B, heads / P, T, D] of all of them.
Tensor to_heads(const Tensor& x, const ContextGroup& ranks) {
  const int parts = ranks.part().parts;
  const Tensor arrived =
      ranks.all_to_all(x.unflatten(2, {parts, -1}).permute({2, 0, 1, 3, 4, 5}).contiguous());
  const std::int64_t half = arrived.size(4) / 2;
  std::vector<Tensor> chunks;
  for (int part = 0; part < parts; ++part) chunks.push_back(arrived[part].narrow(3, 0, half));
  for (int part = parts - 1; part >= 0; --part) {
    chunks.push_back(arrived[part].narrow(3, half, half));
  }
  return at::cat(chunks, 3);
}

/// Back.
Tensor to_positions(const Tensor& x, const ContextGroup& ranks) {
  const int parts = ranks.part().parts;
  const auto chunks = x.chunk(2 * parts, 3);
  std::vector<Tensor> of_ranks;
  for (int part = 0; part < parts; ++part) {
    const auto i = static_cast<std::size_t>(part);
    of_ranks.push_back(at::cat({chunks[i], chunks[chunks.size() - 1 - i]}, 3));
  }
  const Tensor arrived = ranks.all_to_all(at::stack(of_ranks));
  return arrived.permute({1, 2, 0, 3, 4, 5}).flatten(2, 3);
}

/// One of the two; the backward is the other.
struct Exchange : torch::autograd::Function<Exchange> {
  static Tensor forward(AutogradContext* context, const Tensor& x, bool heads,
                        std::int64_t address) {
    context->saved_data["heads"] = heads;
    context->saved_data["ranks"] = address;
    return run(x, heads, address);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {run(gradients[0], !context->saved_data["heads"].toBool(),
                context->saved_data["ranks"].toInt()),
            Tensor(), Tensor()};
  }
  static Tensor run(const Tensor& x, bool heads, std::int64_t address) {
    return heads ? to_heads(x, context_group(address)) : to_positions(x, context_group(address));
  }
};

}  // namespace

torch::Tensor ContextGroup::take(const torch::Tensor& whole, std::int64_t dim) const {
  const std::int64_t chunks = std::int64_t{2} * part_.parts;
  if (whole.dim() <= dim || whole.size(dim) % chunks != 0) {
    throw Error(invalid_argument(
        "context: " +
        (whole.dim() <= dim ? "samples without positions"
                            : std::to_string(whole.size(dim)) + " positions of a sample") +
        " are not " + std::to_string(chunks) + " equal chunks, two for each of " +
        std::to_string(part_.parts) + " ranks"));
  }
  return whole.index_select(dim, positions(whole.size(dim) / part_.parts));
}

torch::Tensor ContextGroup::positions(std::int64_t count) const {
  const std::int64_t half = count / 2;
  const std::int64_t first = part_.index * half;
  const std::int64_t second = (2 * part_.parts - 1 - part_.index) * half;
  return at::cat({at::arange(first, first + half, torch::kInt64),
                  at::arange(second, second + half, torch::kInt64)});
}

ContextGroup::Passing::Passing(const ContextGroup& ranks, const torch::Tensor& send,
                               const torch::Tensor& receive, std::uint32_t tag) {
  if (ranks.ranks_ == nullptr) {
    receive.copy_(send);
    return;
  }
  const auto [index, parts] = ranks.part();
  works_.push_back(ranks.ranks_->recv_async(buffer_of(receive), (index + parts - 1) % parts, tag));
  works_.push_back(ranks.ranks_->send_async(buffer_of(send), (index + 1) % parts, tag));
  for (comm::Work& w : works_) w.then([send, receive](const Status&) {});  // keeps their memory
}

void ContextGroup::Passing::wait() {
  for (comm::Work& w : works_) throw_if_error(w.wait());
}

torch::Tensor ContextGroup::all_to_all(const torch::Tensor& x) const {
  if (ranks_ == nullptr) return x.clone();
  torch::Tensor out = at::empty_like(x);
  throw_if_error(ranks_->all_to_all(buffer_of(x), buffer_of(out)));
  return out;
}

torch::Tensor attention(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                        bool causal, const ContextGroup* ranks) {
  if (ranks == nullptr) {
    return at::scaled_dot_product_attention(q, k, v, {}, /*dropout_p=*/0.0, causal);
  }
  const auto address = reinterpret_cast<std::int64_t>(ranks);
  if (ranks->form() == plan::AttentionForm::kRing) {
    return RingAttention::apply(q, k, v, causal, address);
  }
  const Tensor all = Exchange::apply(at::stack({q, k, v}), /*heads=*/true, address);
  const Tensor mixed =
      at::scaled_dot_product_attention(all[0], all[1], all[2], {}, /*dropout_p=*/0.0, causal);
  return Exchange::apply(mixed.unsqueeze(0), /*heads=*/false, address)[0];
}

}  // namespace stormo::tensor
