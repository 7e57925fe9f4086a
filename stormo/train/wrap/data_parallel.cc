#include <stormo/train/wrap/data_parallel.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <stormo/train/state/checkpoint.h>
#include <stormo/train/world/replica_threads.h>

namespace stormo::train {
namespace {

namespace autograd = torch::autograd;

/// What one replica computes in one forward, and what backward needs of it.
struct ReplicaPass {
  torch::Tensor input;
  torch::Tensor output;
  std::vector<torch::Tensor> leaves;  // its parameters that require a gradient
  std::vector<std::size_t> slots;     // of each leaf, among those of the module
};

struct ReplicaPasses : torch::CustomClassHolder {
  std::shared_ptr<ReplicaThreads> threads;
  std::vector<ReplicaPass> passes;

  int size() const { return static_cast<int>(passes.size()); }
  /// Everything of replicas as one tensor.
  torch::Tensor gather() const {
    std::vector<torch::Tensor> outputs;
    for (const ReplicaPass& p : passes) {
      if (p.output.dim() == 0) {
        throw Error(invalid_argument(
            "DataParallel: forward returned a single number; it must return a tensor with a row "
            "for each sample, of which the loss is computed outside"));
      }
      outputs.push_back(p.output.detach());
    }
    return torch::cat(outputs);
  }
};

/// Concatenates outputs of replicas; its backward is theirs, side by side.
struct Gather : autograd::Function<Gather> {
  static torch::Tensor forward(autograd::AutogradContext* context, const torch::Tensor& /*x*/,
                               at::TensorList parameters,
                               const c10::intrusive_ptr<ReplicaPasses>& replicas) {
    context->saved_data["replicas"] = c10::IValue::make_capsule(replicas);
    context->saved_data["parameters"] = static_cast<std::int64_t>(parameters.size());
    return replicas->gather();
  }

  static autograd::variable_list backward(autograd::AutogradContext* context,
                                          const autograd::variable_list& gradients) {
    if (torch::GradMode::is_enabled()) {
      throw Error(invalid_argument(
          "DataParallel: gradients of gradients are not computed; call backward() without "
          "create_graph, or the module without DataParallel"));
    }
    const auto replicas = c10::static_intrusive_pointer_cast<ReplicaPasses>(
        context->saved_data["replicas"].toCapsule());
    const bool keep_graph = autograd::get_current_graph_task_keep_graph();
    std::vector<std::int64_t> rows;
    for (const ReplicaPass& p : replicas->passes) rows.push_back(p.output.size(0));
    const std::vector<torch::Tensor> parts = gradients.front().split_with_sizes(rows);
    std::vector<autograd::variable_list> found(replicas->passes.size());
    replicas->threads->run(replicas->size(), [&](int r) {
      const auto i = static_cast<std::size_t>(r);
      const ReplicaPass& p = replicas->passes[i];
      if (!p.output.requires_grad()) return;
      autograd::variable_list wanted = p.leaves;
      if (p.input.requires_grad()) wanted.push_back(p.input);
      found[i] = autograd::grad({p.output}, wanted, {parts[i]}, keep_graph,
                                /*create_graph=*/false, /*allow_unused=*/true);
    });

    const auto num_parameters = static_cast<std::size_t>(context->saved_data["parameters"].toInt());
    autograd::variable_list out(1 + num_parameters + 1);  // of x, parameters, replicas
    std::vector<torch::Tensor> of_input;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const ReplicaPass& p = replicas->passes[i];
      for (std::size_t k = 0; k < p.leaves.size() && !found[i].empty(); ++k) {
        torch::Tensor& sum = out[1 + p.slots[k]];
        if (found[i][k].defined()) sum = sum.defined() ? sum + found[i][k] : found[i][k];
      }
      if (!p.input.requires_grad()) continue;
      const bool used = !found[i].empty() && found[i].back().defined();
      of_input.push_back(used ? found[i].back() : torch::zeros_like(p.input));
    }
    if (!of_input.empty()) out.front() = torch::cat(of_input);
    return out;
  }
};

void check_as_before(bool is) {
  if (is) return;
  throw Error(invalid_argument(
      "DataParallel: the module has other layers, or parameters of other shapes, than when it was "
      "given; make another DataParallel after such a change"));
}

/// Under the versions that autograd checks, so that earlier graphs of a replica stay valid. They
/// are right if the module has not changed since; if it has, its own graph, replica 0's, says so.
void copy_values(const std::vector<torch::Tensor>& from, const std::vector<torch::Tensor>& to) {
  check_as_before(from.size() == to.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    check_as_before(from[i].sizes() == to[i].sizes());
    if (from[i].scalar_type() != to[i].scalar_type()) to[i].set_data(torch::empty_like(from[i]));
    to[i].variable_data().copy_(from[i].variable_data());
  }
}

std::uint64_t total_bytes(const std::vector<torch::Tensor>& tensors) {
  std::uint64_t bytes = 0;
  for (const torch::Tensor& t : tensors) bytes += t.nbytes();
  return bytes;
}

void check_alike(const torch::nn::Module& module, const torch::nn::Module& replica) {
  const auto wanted = named_state(module), got = named_state(replica);
  const auto alike = [](const auto& a, const auto& b) {
    return a.first == b.first && a.second.sizes() == b.second.sizes() &&
           a.second.scalar_type() == b.second.scalar_type();
  };
  const auto [w, g] = std::mismatch(wanted.begin(), wanted.end(), got.begin(), got.end(), alike);
  if (w == wanted.end() && g == got.end()) return;
  throw Error(invalid_argument("DataParallel: the replicas differ from the module in '" +
                               (w != wanted.end() ? w->first : g->first) + "'"));
}

}  // namespace

struct DataParallel::State {
  explicit State(std::vector<Replica> r)
      : replicas(std::move(r)),
        threads(std::make_shared<ReplicaThreads>(static_cast<int>(replicas.size()))) {}

  /// The module's values, flags and modes into replica r.
  void replicate(std::size_t r) const {
    const torch::nn::Module& from = *replicas.front().module;
    torch::nn::Module& to = *replicas[r].module;
    const auto wanted = from.parameters(), parameters = to.parameters();
    copy_values(wanted, parameters);
    copy_values(from.buffers(), to.buffers());
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      parameters[i].set_requires_grad(wanted[i].requires_grad());
    }
    const auto modes = from.modules(), modules = to.modules();  // parents come first
    check_as_before(modes.size() == modules.size());
    for (std::size_t i = 0; i < modes.size(); ++i) modules[i]->train(modes[i]->is_training());
  }

  /// The module's parameters that require a gradient, each once, by their place in the list.
  std::vector<torch::Tensor> leaves_of_module(std::vector<std::size_t>& slots) const {
    std::vector<torch::Tensor> leaves;
    std::map<const void*, std::size_t> known;
    slots.clear();
    for (const torch::Tensor& p : replicas.front().module->parameters()) {
      const auto [at, is_new] = known.emplace(p.unsafeGetTensorImpl(), leaves.size());
      if (is_new && p.requires_grad()) leaves.push_back(p);
      slots.push_back(at->second);
    }
    return leaves;
  }

  void collect_leaves(std::size_t r, const std::vector<std::size_t>& slots,
                      ReplicaPass& pass) const {
    std::set<const void*> known;
    const auto parameters = replicas[r].module->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const torch::Tensor& p = parameters[i];
      if (!p.requires_grad() || !known.insert(p.unsafeGetTensorImpl()).second) continue;
      pass.leaves.push_back(p);
      pass.slots.push_back(slots[i]);
    }
  }

  std::vector<Replica> replicas;
  std::shared_ptr<ReplicaThreads> threads;
  std::uint64_t bytes_copied = 0;
};

DataParallel::DataParallel(std::vector<Replica> replicas) {
  if (replicas.empty()) throw Error(invalid_argument("DataParallel: needs at least one replica"));
  for (const Replica& r : replicas) check_alike(*replicas.front().module, *r.module);
  state_ = std::make_shared<State>(std::move(replicas));
}

torch::Tensor DataParallel::forward(const torch::Tensor& x) {
  if (x.dim() == 0) throw Error(invalid_argument("DataParallel: a single number has no rows"));
  const auto all = static_cast<std::int64_t>(state_->replicas.size());
  const std::int64_t n = std::clamp<std::int64_t>(x.size(0), 1, all);
  const torch::nn::Module& module = *state_->replicas.front().module;

  const auto replicas = c10::make_intrusive<ReplicaPasses>();
  replicas->threads = state_->threads;
  replicas->passes.resize(static_cast<std::size_t>(n));
  // Of its own, since the module's buffers may change as soon as replica 0 computes.
  state_->threads->run(replicas->size(), [&](int r) {
    if (r > 0) state_->replicate(static_cast<std::size_t>(r));
  });
  state_->bytes_copied += static_cast<std::uint64_t>(n - 1) *
                          (total_bytes(module.parameters()) + total_bytes(module.buffers()));

  std::vector<std::size_t> slots;
  const std::vector<torch::Tensor> leaves = state_->leaves_of_module(slots);
  const std::vector<torch::Tensor> rows = x.tensor_split(n);
  state_->threads->run(replicas->size(), [&](int r) {
    const auto i = static_cast<std::size_t>(r);
    ReplicaPass& pass = replicas->passes[i];
    pass.input = rows[i].detach().requires_grad_(x.requires_grad());
    state_->collect_leaves(i, slots, pass);
    pass.output = state_->replicas[i].forward(pass.input);
  });
  if (!torch::GradMode::is_enabled()) return replicas->gather();
  return Gather::apply(x, at::TensorList(leaves), replicas);
}

std::uint64_t DataParallel::bytes_copied() const { return state_->bytes_copied; }

}  // namespace stormo::train
