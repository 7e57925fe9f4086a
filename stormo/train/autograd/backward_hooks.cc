#include <stormo/train/autograd/backward_hooks.h>

#include <utility>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace stormo::train {
namespace {

namespace autograd = torch::autograd;

// libtorch 2.11 and 2.13 differ in the kind of pointer.
using Accumulator =
    decltype(autograd::impl::grad_accumulator(std::declval<const torch::Tensor&>()));

}  // namespace

/// A gradient was accumulated.
class BackwardHooks::OnGradient final : public autograd::FunctionPostHook {
 public:
  OnGradient(BackwardHooks& hooks, std::size_t index) : hooks_(hooks), index_(index) {}
  autograd::variable_list operator()(const autograd::variable_list& outputs,
                                     const autograd::variable_list&) override {
    if (!hooks_.enabled_) return outputs;
    if (const auto id = hooks_.pass_.lock()) {
      if (*id != autograd::get_current_graph_task_id()) hooks_.events_.nested();
    } else {
      if (hooks_.open_) hooks_.events_.abandoned();
      hooks_.open_ = true;
      hooks_.follow_current_pass();
    }
    hooks_.events_.ready(index_);
    return outputs;
  }

 private:
  BackwardHooks& hooks_;
  const std::size_t index_;
};

/// The node of an outer pass is done, in which an inner one ended.
class BackwardHooks::AfterInnerPass final : public autograd::FunctionPostHook {
 public:
  explicit AfterInnerPass(BackwardHooks& hooks) : hooks_(hooks) {}
  autograd::variable_list operator()(const autograd::variable_list& outputs,
                                     const autograd::variable_list&) override {
    const bool first = std::exchange(armed_, false);
    if (first && hooks_.open_ && hooks_.pass_.expired()) hooks_.follow_current_pass();
    return outputs;
  }

 private:
  BackwardHooks& hooks_;
  bool armed_ = true;
};

struct BackwardHooks::Hooks {
  struct Hook {
    torch::Tensor parameter;
    // Null while it is frozen. The tensors hold their accumulators weakly: whoever adds a hook
    // keeps them alive.
    Accumulator node;
    std::uintptr_t key = 0;

    void remove() {
      if (node != nullptr) node->del_post_hook(key);
      node = nullptr;
    }
  };
  std::vector<Hook> list;
};

BackwardHooks::BackwardHooks(std::vector<torch::Tensor> parameters, Events events)
    : events_(std::move(events)), hooks_(std::make_unique<Hooks>()) {
  set_tensors(std::move(parameters));
}

BackwardHooks::~BackwardHooks() { unhook(); }

void BackwardHooks::unhook() {
  for (Hooks::Hook& hook : hooks_->list) hook.remove();
}

void BackwardHooks::set_tensors(std::vector<torch::Tensor> parameters) {
  unhook();
  hooks_->list.clear();
  for (torch::Tensor& p : parameters)
    hooks_->list.push_back({.parameter = std::move(p), .node = {}});
  renew();
}

bool BackwardHooks::renew() {
  bool any = false;
  for (std::size_t i = 0; i < hooks_->list.size(); ++i) {
    Hooks::Hook& hook = hooks_->list[i];
    if (!hook.parameter.requires_grad() || !hook.parameter.is_leaf()) continue;
    Accumulator node = autograd::impl::grad_accumulator(hook.parameter);
    if (node == hook.node) continue;
    hook.remove();
    hook.key = node->add_post_hook(std::make_unique<OnGradient>(*this, i));
    hook.node = std::move(node);
    any = true;
  }
  return any;
}

void BackwardHooks::follow_current_pass() {
  auto id = std::make_shared<const int>(autograd::get_current_graph_task_id());
  pass_ = id;
  autograd::Engine::get_default_engine().queue_callback(
      [this, id = std::move(id)] { on_end_of_pass(); });
}

void BackwardHooks::on_end_of_pass() {
  const auto outer = autograd::get_current_node();
  if (outer == nullptr) {
    open_ = false;
    events_.end();
    return;
  }
  // Still inside a node of an outer pass: its end is the end. There is no way to reach that pass
  // from here, but once the node is done.
  events_.nested();
  outer->add_post_hook(std::make_unique<AfterInnerPass>(*this));
}

}  // namespace stormo::train
