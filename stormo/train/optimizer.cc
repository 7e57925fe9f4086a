#include <stormo/train/optimizer.h>

#include <sstream>

#include <ATen/ops/_fused_adamw.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/utils.h>

namespace stormo::train {
namespace {

std::string describe(const torch::Tensor& t) {
  std::ostringstream out;
  out << torch::toString(t.scalar_type()) << " " << t.sizes();
  return out.str();
}

class Sgd final : public Optimizer {
 public:
  Sgd(const OptimizerOptions& options, std::vector<NamedParameter> parameters)
      : Optimizer(std::move(parameters), {"momentum_buffer"}), options_(options) {}

  // The operations and their order are those of torch::optim::SGD: results are equal bit for bit.
  void step(double lr, std::size_t first, std::size_t last) override {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = first; i < last; ++i) {
      torch::Tensor& p = parameters_[i].tensor;
      if (!p.grad().defined()) continue;
      torch::Tensor direction = p.grad();
      if (options_.weight_decay != 0) direction = direction.add(p, options_.weight_decay);
      if (options_.momentum != 0) {
        torch::Tensor& momentum = slots_[0].tensors[i];
        if (!momentum.defined()) {
          momentum = direction.clone();
        } else {
          momentum.mul_(options_.momentum).add_(direction, 1);
        }
        direction = momentum;
      }
      p.add_(direction, -lr);
    }
  }

 private:
  OptimizerOptions options_;
};

class AdamW final : public Optimizer {
 public:
  AdamW(const OptimizerOptions& options, std::vector<NamedParameter> parameters)
      : Optimizer(std::move(parameters), {"exp_avg", "exp_avg_sq", "step"}), options_(options) {
    slots_[kStep].scalar = true;
  }

  void step(double lr, std::size_t first, std::size_t last) override {
    const torch::NoGradGuard no_grad;
    std::vector<torch::Tensor> values, gradients, averages, squares, steps;
    for (std::size_t i = first; i < last; ++i) {
      torch::Tensor& p = parameters_[i].tensor;
      if (!p.grad().defined()) continue;
      if (!slots_[kStep].tensors[i].defined()) {
        slots_[kAverage].tensors[i] = torch::zeros_like(p);
        slots_[kSquare].tensors[i] = torch::zeros_like(p);
        slots_[kStep].tensors[i] = torch::zeros({}, torch::kFloat32);
      }
      *slots_[kStep].tensors[i].data_ptr<float>() += 1;
      values.push_back(p);
      gradients.push_back(p.grad());
      averages.push_back(slots_[kAverage].tensors[i]);
      squares.push_back(slots_[kSquare].tensors[i]);
      steps.push_back(slots_[kStep].tensors[i]);
    }
    if (values.empty()) return;
    at::_fused_adamw_(values, gradients, averages, squares, {}, steps, lr, options_.beta1,
                      options_.beta2, options_.weight_decay, options_.epsilon, /*amsgrad=*/false,
                      /*maximize=*/false);
  }

 private:
  enum : std::size_t { kAverage, kSquare, kStep };
  OptimizerOptions options_;
};

}  // namespace

std::vector<NamedParameter> trainable_parameters(const torch::nn::Module& module) {
  std::vector<NamedParameter> out;
  for (const auto& p : module.named_parameters()) {
    if (p.value().requires_grad()) out.push_back({p.key(), p.value()});
  }
  return out;
}

Optimizer::Optimizer(std::vector<NamedParameter> parameters, std::vector<std::string> slot_names)
    : parameters_(std::move(parameters)) {
  for (std::string& name : slot_names) {
    slots_.push_back({std::move(name), std::vector<torch::Tensor>(parameters_.size())});
  }
}

void Optimizer::zero_grad() {
  for (NamedParameter& p : parameters_) p.tensor.mutable_grad().reset();
}

std::map<std::string, torch::Tensor> Optimizer::state() const {
  std::map<std::string, torch::Tensor> out;
  for (const Slot& slot : slots_) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (!slot.tensors[i].defined()) continue;
      out.emplace("optimizer." + slot.name + "." + parameters_[i].name, slot.tensors[i]);
    }
  }
  return out;
}

Status Optimizer::load_state(const std::map<std::string, torch::Tensor>& state) {
  std::vector<Slot> loaded = slots_;
  std::size_t used = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const torch::Tensor& p = parameters_[i].tensor;
    std::size_t present = 0;
    for (Slot& slot : loaded) {
      slot.tensors[i].reset();
      const std::string key = "optimizer." + slot.name + "." + parameters_[i].name;
      const auto found = state.find(key);
      if (found == state.end()) continue;
      const torch::Tensor& t = found->second;
      const bool fits = slot.scalar ? t.scalar_type() == torch::kFloat32 && t.numel() == 1
                                    : t.scalar_type() == p.scalar_type() && t.sizes() == p.sizes();
      if (!fits) {
        return invalid_argument("optimizer state '" + key + "' is " + describe(t) +
                                ", the parameter is " + describe(p) +
                                "; the checkpoint belongs to another model");
      }
      slot.tensors[i] = slot.scalar ? t.clone().reshape({}) : torch::empty_like(p).copy_(t);
      ++present;
      ++used;
    }
    if (present != 0 && present != loaded.size()) {
      return invalid_argument("optimizer state of '" + parameters_[i].name + "' has " +
                              std::to_string(present) + " of " + std::to_string(loaded.size()) +
                              " tensors; the checkpoint belongs to another optimizer");
    }
  }
  if (used != state.size()) {
    return invalid_argument("the checkpoint holds " + std::to_string(state.size()) +
                            " optimizer tensors, this optimizer knows " + std::to_string(used) +
                            " of them; resume with the optimizer and the model that wrote it");
  }
  slots_ = std::move(loaded);
  return {};
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          std::vector<NamedParameter> parameters) {
  if (options.kind == OptimizerOptions::Kind::kSgd) {
    return std::make_unique<Sgd>(options, std::move(parameters));
  }
  return std::make_unique<AdamW>(options, std::move(parameters));
}

double clip_gradients(const std::vector<NamedParameter>& parameters, double max_norm) {
  std::vector<torch::Tensor> tensors;
  for (const NamedParameter& p : parameters) tensors.push_back(p.tensor);
  return torch::nn::utils::clip_grad_norm_(tensors, max_norm);
}

}  // namespace stormo::train
