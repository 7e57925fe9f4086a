#include <stormo/model/loss.h>

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

namespace stormo::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// -log softmax of the target: log(sum exp(l - max)) - (l_target - max), of which each rank knows
/// the terms of its classes. The gradient of a logit is its probability, less 1 for the target.
struct SplitCrossEntropy : torch::autograd::Function<SplitCrossEntropy> {
  /// logits [N, share], target [N]
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& logits,
                               const torch::Tensor& target, std::int64_t first,
                               const tensor::TensorParallelGroup& ranks) {
    torch::Tensor most = std::get<0>(logits.max(1));
    ranks.all_reduce(most, comm::ReduceOp::kMax);
    torch::Tensor shifted = logits - most.unsqueeze(1);
    const torch::Tensor elsewhere = target.lt(first).logical_or_(target.ge(first + logits.size(1)));
    const torch::Tensor local = (target - first).masked_fill_(elsewhere, 0).unsqueeze(1);
    const torch::Tensor of_target = shifted.gather(1, local).squeeze(1).masked_fill_(elsewhere, 0);
    shifted.exp_();
    const torch::Tensor sums = torch::stack({shifted.sum(1), of_target});
    ranks.all_reduce(sums, comm::ReduceOp::kSum);
    const torch::Tensor probabilities = shifted.div_(sums[0].unsqueeze(1));
    context->save_for_backward({probabilities, local, elsewhere});
    return (sums[0].log() - sums[1]).mean();
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const torch::Tensor here = saved[2].logical_not().to(saved[0].scalar_type()).unsqueeze(1);
    const torch::Tensor of_logits = saved[0].scatter_add(1, saved[1], -here);
    const auto positions = static_cast<double>(saved[0].size(0));
    return {of_logits.mul_(gradients.front() / positions), torch::Tensor(), torch::Tensor(),
            torch::Tensor()};
  }
};

/// What `owner` has sent of the loss: in the row of each sample the gradient of its output, and in
/// the last column the loss.
struct OwnedLoss : torch::autograd::Function<OwnedLoss> {
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& output,
                               const torch::Tensor& sent) {
    context->save_for_backward({sent.narrow(1, 0, output.size(1))});
    return sent[0][output.size(1)].clone();
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {context->get_saved_variables().front() * gradients.front(), torch::Tensor()};
  }
};

}  // namespace

torch::Tensor cross_entropy(const torch::Tensor& logits, const torch::Tensor& target) {
  return at::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}), target.reshape({-1}));
}

torch::Tensor split_cross_entropy(const torch::Tensor& logits, const torch::Tensor& target,
                                  std::int64_t classes, const tensor::TensorParallelGroup* ranks) {
  if (ranks == nullptr) return cross_entropy(logits, target);
  return SplitCrossEntropy::apply(logits.reshape({-1, logits.size(-1)}), target.reshape({-1}),
                                  ranks->share(classes).begin, *ranks);
}

torch::Tensor owned_loss(const torch::Tensor& output,
                         const std::function<torch::Tensor(const torch::Tensor& output)>& loss,
                         const tensor::TensorParallelGroup& ranks, int owner) {
  torch::Tensor sent =
      torch::empty({output.size(0), output.size(1) + 1}, output.options().requires_grad(false));
  if (ranks.part().index == owner) {
    const torch::Tensor leaf = output.detach().requires_grad_();
    const torch::Tensor value = loss(leaf);
    const torch::NoGradGuard no_grad;
    sent.narrow(1, 0, output.size(1)).copy_(torch::autograd::grad({value}, {leaf}).front());
    sent.select(1, output.size(1)).copy_(value);
  }
  ranks.broadcast(sent, owner);
  return OwnedLoss::apply(output, sent);
}

torch::Tensor mean_squared_error(const torch::Tensor& output, const torch::Tensor& target) {
  return at::mse_loss(output.reshape({-1}), target);
}

std::int64_t count_correct(const torch::Tensor& logits, const torch::Tensor& target) {
  return logits.argmax(-1).eq(target).sum().item<std::int64_t>();
}

}  // namespace stormo::model
