#include <stormo/train/autograd/activation_checkpoint.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

#include <stormo/base/status.h>
#include <stormo/tensor/generator.h>

namespace stormo::train {
namespace {

namespace autocast = at::autocast;
namespace autograd = torch::autograd;

/// What a function's outcome depends on besides its input and parameters.
struct Surroundings {
  explicit Surroundings(torch::Device of) : device(of) {}

  torch::Device device;  // of the input
  torch::Tensor generator = tensor::generator_state(device);
  // a function may draw on the host, too
  torch::Tensor host_generator = device.is_cpu() ? torch::Tensor() : tensor::generator_state();
  bool autocast = autocast::is_autocast_enabled(device.type());
  torch::ScalarType type = autocast::get_autocast_dtype(device.type());

  void set() const {
    tensor::set_generator_state(generator, device);
    if (host_generator.defined()) tensor::set_generator_state(host_generator);
    autocast::set_autocast_enabled(device.type(), autocast);
    autocast::set_autocast_dtype(device.type(), type);
  }
};

class RestoreSurroundings {
 public:
  explicit RestoreSurroundings(torch::Device device) : before_(device) {}
  ~RestoreSurroundings() { before_.set(); }
  RestoreSurroundings(const RestoreSurroundings&) = delete;
  RestoreSurroundings& operator=(const RestoreSurroundings&) = delete;

 private:
  Surroundings before_;
};

/// Parameters that autocast has rounded stay until the outermost Autocast ends. A second run is
/// inside none: they would be there still after the optimizer's step.
class NoAutocastCache {
 public:
  NoAutocastCache() { autocast::set_autocast_cache_enabled(false); }
  ~NoAutocastCache() { autocast::set_autocast_cache_enabled(before_); }
  NoAutocastCache(const NoAutocastCache&) = delete;
  NoAutocastCache& operator=(const NoAutocastCache&) = delete;

 private:
  bool before_ = autocast::is_autocast_cache_enabled();
};

struct Call : torch::CustomClassHolder {
  Call(std::function<torch::Tensor(torch::Tensor)> f, torch::Device device)
      : function(std::move(f)), surroundings(device) {}

  torch::Tensor run_again(const torch::Tensor& input) const {
    const RestoreSurroundings restore(surroundings.device);
    const NoAutocastCache no_cache;
    surroundings.set();
    const torch::AutoGradMode record(true);
    return function(input);
  }

  std::function<torch::Tensor(torch::Tensor)> function;
  Surroundings surroundings;
};

struct Checkpoint : autograd::Function<Checkpoint> {
  /// `anchor` requires a gradient, so that backward comes here even when the input requires none.
  static torch::Tensor forward(autograd::AutogradContext* context, const torch::Tensor& input,
                               const torch::Tensor& /*anchor*/,
                               const c10::intrusive_ptr<Call>& call) {
    context->save_for_backward({input});
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    return call->function(input);
  }

  static autograd::variable_list backward(autograd::AutogradContext* context,
                                          const autograd::variable_list& gradients) {
    if (torch::GradMode::is_enabled() ||
        !autograd::Engine::get_default_engine().is_checkpoint_valid()) {
      throw Error(invalid_argument(
          "checkpoint(): gradients of gradients and torch::autograd::grad() need all activations; "
          "call backward() without create_graph, or the function without checkpoint()"));
    }
    const torch::Tensor saved = context->get_saved_variables().front();
    const torch::Tensor input = saved.detach().requires_grad_(saved.requires_grad());
    const auto call =
        c10::static_intrusive_pointer_cast<Call>(context->saved_data["call"].toCapsule());
    const torch::Tensor output = call->run_again(input);
    if (output.requires_grad()) autograd::backward({output}, gradients);
    return {input.grad(), {}, {}};
  }
};

}  // namespace

torch::Tensor checkpoint(std::function<torch::Tensor(torch::Tensor)> function,
                         const torch::Tensor& input) {
  if (!torch::GradMode::is_enabled()) return function(input);
  const torch::Tensor anchor = torch::empty({0}, torch::requires_grad());
  return Checkpoint::apply(input, anchor,
                           c10::make_intrusive<Call>(std::move(function), input.device()));
}

torch::Tensor checkpointed_forward(const std::shared_ptr<model::Chain>& chain, torch::Tensor x,
                                   std::size_t segments_per_group) {
  const std::size_t n = chain->segments().size();
  const std::size_t k = segments_per_group != 0
                            ? segments_per_group
                            : static_cast<std::size_t>(std::lround(std::sqrt(n)));
  for (std::size_t first = 0; first < n; first += k) {
    const std::size_t last = std::min(first + k, n);
    const auto group = [chain, first, last](torch::Tensor y) {
      for (std::size_t i = first; i < last; ++i) y = chain->segments()[i]->forward(std::move(y));
      return y;
    };
    // The backward of the last group comes next: there is nothing to gain.
    x = last == n ? group(std::move(x)) : checkpoint(group, x);
  }
  return x;
}

}  // namespace stormo::train
