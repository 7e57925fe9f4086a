// A backward in two parts.
//
// Idea: call the operations through which the gradient flows from the output to the input the path.
// The first part computes only these. Some of them have edges that leave the path: they lead to
// parameters. The gradients that arrive at such operations are kept. Then their edges along the
// path are cut, so that what is left of the graph is many small ones, each from one operation to
// its parameters: the second part is one backward of all of them. The rest of the path is freed,
// and with it the activations that it has kept. Paper: P. Qi et al., "Zero bubble pipeline
// parallelism", ICLR 2024, for the purpose; torch.distributed.pipelining groups parameters instead
// of cutting.
#include <stormo/train/autograd/two_part_backward.h>

#include <algorithm>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/ops/ones_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

namespace stormo::train {
namespace {

namespace autograd = torch::autograd;
// libtorch 2.11 and 2.13 differ in the kind of pointer.
using Operation = decltype(autograd::Edge::function);
using Nodes = std::unordered_set<const autograd::Node*>;

/// All operations of a graph, each behind those that its gradient goes to.
std::vector<Operation> operations(const Operation& root) {
  std::vector<Operation> out = {root};
  Nodes known = {root.get()};
  for (std::size_t i = 0; i < out.size(); ++i) {
    const autograd::edge_list edges = out[i]->next_edges();
    for (const autograd::Edge& edge : edges) {
      if (edge.is_valid() && known.insert(edge.function.get()).second) out.push_back(edge.function);
    }
  }
  std::ranges::sort(out, {}, [](const Operation& o) { return o->topological_nr(); });
  return out;
}

/// Those from which the gradient goes to `end`.
Nodes path_to(const Operation& end, const std::vector<Operation>& operations) {
  Nodes path = {end.get()};
  for (const Operation& o : operations) {
    if (std::ranges::any_of(o->next_edges(), [&](const autograd::Edge& edge) {
          return path.contains(edge.function.get());
        })) {
      path.insert(o.get());
    }
  }
  return path;
}

/// Keeps the gradients with which an operation computes.
class Keep final : public autograd::FunctionPreHook {
 public:
  explicit Keep(std::shared_ptr<autograd::variable_list> gradients)
      : gradients_(std::move(gradients)) {}
  autograd::variable_list operator()(const autograd::variable_list& gradients) override {
    *gradients_ = gradients;
    return gradients;
  }

 private:
  std::shared_ptr<autograd::variable_list> gradients_;
};

/// An operation on the path with edges that leave it.
struct Branch {
  Operation operation;
  std::shared_ptr<autograd::variable_list> gradients;
};

std::vector<Branch> branches(const std::vector<Operation>& operations, const Nodes& path) {
  std::vector<Branch> out;
  for (const Operation& o : operations) {
    const auto leaves = [&](const autograd::Edge& edge) {
      return edge.is_valid() && !path.contains(edge.function.get());
    };
    if (!path.contains(o.get()) || std::ranges::none_of(o->next_edges(), leaves)) continue;
    auto gradients = std::make_shared<autograd::variable_list>();
    o->add_pre_hook(std::make_unique<Keep>(gradients));
    out.push_back({o, std::move(gradients)});
  }
  return out;
}

}  // namespace

TwoPartBackward::TwoPartBackward(const torch::Tensor& output, torch::Tensor gradient,
                                 const torch::Tensor& input) {
  if (!gradient.defined()) gradient = at::ones_like(output);
  const autograd::Edge root = autograd::impl::gradient_edge(output);
  const std::vector<Operation> all = operations(root.function);
  Nodes path;
  if (input.defined()) path = path_to(autograd::impl::gradient_edge(input).function, all);
  if (!path.contains(root.function.get())) {
    begin_ = {root};
    gradients_ = {std::move(gradient)};
    return;
  }
  std::vector<Branch> left = branches(all, path);
  autograd::backward({output}, {std::move(gradient)}, /*retain_graph=*/true,
                     /*create_graph=*/false, {input});
  for (Branch& branch : left) {
    for (autograd::Edge& edge : branch.operation->next_edges()) {
      if (path.contains(edge.function.get())) edge = {};
    }
    for (std::uint32_t i = 0; i < branch.gradients->size(); ++i) {
      torch::Tensor& one = (*branch.gradients)[i];
      if (!one.defined()) continue;
      begin_.emplace_back(branch.operation, i);
      gradients_.push_back(std::move(one));
    }
  }
}

void TwoPartBackward::parameters() {
  if (begin_.empty()) return;
  autograd::Engine::get_default_engine().execute(std::exchange(begin_, {}),
                                                 std::exchange(gradients_, {}),
                                                 /*keep_graph=*/false, /*create_graph=*/false,
                                                 /*accumulate_grad=*/true);
}

}  // namespace stormo::train
