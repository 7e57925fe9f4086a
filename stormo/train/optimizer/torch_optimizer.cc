#include <stormo/train/optimizer/torch_optimizer.h>

#include <algorithm>
#include <sstream>

#include <torch/serialize.h>

namespace stormo::train {
namespace {

constexpr const char* kArchive = "optimizer.archive";

/// Takes the gradients of all parameters outside [first, last) away while it lives, so that the
/// optimizer leaves these alone.
class Hidden {
 public:
  Hidden(std::vector<NamedParameter>& parameters, std::size_t first, std::size_t last) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (first <= i && i < last) continue;
      torch::Tensor& gradient = parameters[i].tensor.mutable_grad();
      hidden_.emplace_back(&gradient, std::move(gradient));
      gradient = torch::Tensor();
    }
  }
  ~Hidden() {
    for (auto& [place, gradient] : hidden_) *place = std::move(gradient);
  }
  Hidden(const Hidden&) = delete;
  Hidden& operator=(const Hidden&) = delete;

 private:
  std::vector<std::pair<torch::Tensor*, torch::Tensor>> hidden_;
};

}  // namespace

TorchOptimizer::TorchOptimizer(std::unique_ptr<torch::optim::Optimizer> optimizer,
                               std::vector<NamedParameter> parameters)
    : Optimizer(std::move(parameters)), optimizer_(std::move(optimizer)) {
  for (const auto& group : optimizer_->param_groups()) {
    for (const torch::Tensor& t : group.params()) {
      const bool known = std::any_of(parameters_.begin(), parameters_.end(),
                                     [&](const NamedParameter& p) { return p.tensor.is_same(t); });
      if (!known) {
        throw Error(invalid_argument("the optimizer updates a tensor that is not among the " +
                                     std::to_string(parameters_.size()) +
                                     " parameters it is used for; make it from the same module"));
      }
    }
  }
}

Status TorchOptimizer::step(const StepRate& rate, std::size_t first, std::size_t last) {
  for (auto& group : optimizer_->param_groups()) group.options().set_lr(rate.lr);
  const Hidden others(parameters_, first, last);
  if (rate.gradient_scale != 1) {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = first; i < last; ++i) {
      torch::Tensor gradient = parameters_[i].tensor.grad();
      if (gradient.defined()) gradient.mul_(rate.gradient_scale);
    }
  }
  optimizer_->step();
  return {};
}

std::map<std::string, torch::Tensor> TorchOptimizer::state() const {
  return archive_of(*optimizer_);
}

Status TorchOptimizer::load_state(const std::map<std::string, torch::Tensor>& state) {
  return load_archive(*optimizer_, state);
}

std::map<std::string, torch::Tensor> archive_of(const torch::optim::Optimizer& optimizer) {
  std::ostringstream out;
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  archive.save_to(out);
  const std::string bytes = out.str();
  torch::Tensor tensor = torch::empty({static_cast<std::int64_t>(bytes.size())}, torch::kUInt8);
  std::copy(bytes.begin(), bytes.end(), static_cast<char*>(tensor.data_ptr()));
  return {{kArchive, tensor}};
}

Status load_archive(torch::optim::Optimizer& optimizer,
                    const std::map<std::string, torch::Tensor>& state) {
  const auto found = state.find(kArchive);
  if (state.size() != 1 || found == state.end()) {
    return invalid_argument(
        "the checkpoint was not written with an optimizer of torch::optim; resume with the "
        "optimizer that wrote it");
  }
  const torch::Tensor bytes = found->second.contiguous();
  try {
    torch::serialize::InputArchive archive;
    archive.load_from(static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes());
    optimizer.load(archive);
  } catch (const c10::Error& error) {
    return invalid_argument(std::string("the optimizer's state cannot be read: ") +
                            error.what_without_backtrace() +
                            "; resume with the optimizer that wrote it");
  }
  return {};
}

}  // namespace stormo::train
