#include <stormo/train/distributed_data_parallel.h>

#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <stormo/train/broadcast.h>
#include <stormo/train/checkpoint.h>
#include <stormo/train/gradient_reducer.h>

namespace stormo::train {
namespace {

namespace autograd = torch::autograd;

// libtorch 2.11 and 2.13 differ in the kind of pointer.
using Accumulator =
    decltype(autograd::impl::grad_accumulator(std::declval<const torch::Tensor&>()));

// Runs after a parameter's gradient is in place. It hangs on the accumulating node and not on the
// tensor: so it never fires for autograd::grad(), which accumulates nothing, and leaves the
// tensor's one slot for such hooks to the user.
class AfterAccumulation final : public autograd::FunctionPostHook {
 public:
  explicit AfterAccumulation(std::function<void()> callback) : callback_(std::move(callback)) {}
  autograd::variable_list operator()(const autograd::variable_list& outputs,
                                     const autograd::variable_list&) override {
    callback_();
    return outputs;
  }

 private:
  std::function<void()> callback_;
};

}  // namespace

struct DistributedDataParallel::State {
  State(comm::Communicator& w, std::shared_ptr<torch::nn::Module> m)
      : module(std::move(m)), reducer(w, trainable_parameters(*module)) {}

  std::shared_ptr<torch::nn::Module> module;
  GradientReducer reducer;
  // The tensors hold their accumulators weakly: whoever adds a hook keeps them alive.
  std::vector<std::pair<Accumulator, std::uintptr_t>> hooks;
  double weight = 1;
  bool synchronise = true;
  int queued_in = -1;  // backward pass whose end will reduce; passes have ids, so that one that
                       // ended early by an exception blocks no later one

  void on_gradient();
  void at_end_of_backward();
};

void DistributedDataParallel::State::on_gradient() {
  const int pass = autograd::get_current_graph_task_id();
  if (!synchronise || queued_in == pass) return;
  queued_in = pass;
  autograd::Engine::get_default_engine().queue_callback([this] { at_end_of_backward(); });
}

// All gradients that this pass computes are there, so parameters without one are known to be
// unused.
void DistributedDataParallel::State::at_end_of_backward() {
  // Still inside a node: this is the end of a backward pass that another one has started, and the
  // outer one may yet add to the gradients.
  if (autograd::get_current_node() != nullptr) {
    throw Error(invalid_argument(
        "DistributedDataParallel: backward() was called inside a backward pass (re-entrant "
        "checkpointing); hold no_sync() during backward and call reduce_gradients() after it"));
  }
  throw_if_error(reducer.reduce(weight).within("DistributedDataParallel"));
}

DistributedDataParallel::DistributedDataParallel(comm::Communicator& world,
                                                 std::shared_ptr<torch::nn::Module> module) {
  const auto tensors = named_state(*module);
  throw_if_error(check_same_tensors(world, tensors).within("DistributedDataParallel"));
  throw_if_error(broadcast_values(world, tensors).within("DistributedDataParallel"));
  state_ = std::make_unique<State>(world, std::move(module));
  for (const NamedParameter& p : trainable_parameters(*state_->module)) {
    Accumulator accumulator = autograd::impl::grad_accumulator(p.tensor);
    const std::uintptr_t key = accumulator->add_post_hook(
        std::make_unique<AfterAccumulation>([state = state_.get()] { state->on_gradient(); }));
    state_->hooks.emplace_back(std::move(accumulator), key);
  }
}

DistributedDataParallel::~DistributedDataParallel() {
  for (auto& [accumulator, key] : state_->hooks) accumulator->del_post_hook(key);
}

void DistributedDataParallel::set_weight(double weight) {
  if (!std::isfinite(weight) || weight < 0) {
    throw Error(invalid_argument("DistributedDataParallel: the weight must be a number >= 0, got " +
                                 std::to_string(weight)));
  }
  state_->weight = weight;
}

DistributedDataParallel::NoSync::NoSync(DistributedDataParallel& ddp)
    : enabled_(ddp.state_->synchronise), before_(std::exchange(enabled_, false)) {}

DistributedDataParallel::NoSync::~NoSync() { enabled_ = before_; }

void DistributedDataParallel::reduce_gradients() {
  throw_if_error(state_->reducer.reduce(state_->weight).within("DistributedDataParallel"));
}

}  // namespace stormo::train
