#include <stormo/train/autograd/precision.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/autocast_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/tensor.h>

#include <stormo/train/perform/perform.h>

namespace stormo::train {
namespace {

constexpr const char* kScale = "grad_scaler.scale";
constexpr const char* kGoodSteps = "grad_scaler.good_steps";

// Below it overflows are not the scale's: float16 gradients that large are lost anyway.
constexpr double kSmallestScale = 1.0 / 65536;

bool finite(const torch::Tensor& gradient) {
  if (!gradient.defined()) return true;
  const torch::NoGradGuard no_grad;
  const torch::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
  // The norm is one fast pass, but that of large finite numbers may overflow.
  return std::isfinite(at::linalg_vector_norm(values).item<double>()) ||
         at::isfinite(values).all().item<bool>();
}

bool is_number(const std::map<std::string, torch::Tensor>& state, const char* name,
               torch::ScalarType type) {
  const auto it = state.find(name);
  return it != state.end() && it->second.defined() && it->second.numel() == 1 &&
         it->second.scalar_type() == type;
}

}  // namespace

Autocast::Autocast(torch::DeviceType device, torch::ScalarType type)
    : device_(device),
      enabled_before_(at::autocast::is_autocast_enabled(device)),
      type_before_(at::autocast::get_autocast_dtype(device)) {
  if (type != torch::kBFloat16 && type != torch::kHalf) {
    throw Error(invalid_argument(std::string("Autocast computes in kBFloat16 or kHalf, not in ") +
                                 c10::toString(type)));
  }
  at::autocast::increment_nesting();
  if (type != type_before_) at::autocast::clear_cache();  // whose entries do not know their type
  at::autocast::set_autocast_enabled(device_, true);
  at::autocast::set_autocast_dtype(device_, type);
}

Autocast::~Autocast() {
  const bool outermost = at::autocast::decrement_nesting() == 0;
  if (outermost || at::autocast::get_autocast_dtype(device_) != type_before_) {
    at::autocast::clear_cache();
  }
  at::autocast::set_autocast_enabled(device_, enabled_before_);
  at::autocast::set_autocast_dtype(device_, type_before_);
}

GradScaler::GradScaler(comm::Communicator& world, const GradScalerOptions& options)
    : world_(world), options_(options), scale_(options.initial_scale) {
  const bool possible = std::isfinite(scale_) && scale_ > 0 && options.growth_factor > 1 &&
                        options.backoff_factor > 0 && options.backoff_factor < 1 &&
                        options.growth_interval > 0;
  if (!possible) {
    throw Error(invalid_argument(
        "GradScaler: the scale and the interval must be positive, the growth factor above 1 and "
        "the backoff factor between 0 and 1"));
  }
}

torch::Tensor GradScaler::scale(const torch::Tensor& loss) const {
  const torch::ScalarType type = c10::promoteTypes(loss.scalar_type(), torch::kFloat32);
  return loss.to(type) * scale_;
}

Result<bool> GradScaler::check(std::span<const torch::Tensor> gradients) {
  return check(std::all_of(gradients.begin(), gradients.end(), finite));
}

Result<bool> GradScaler::check(std::span<const NamedParameter> parameters) {
  return check(std::all_of(parameters.begin(), parameters.end(),
                           [](const NamedParameter& p) { return finite(p.tensor.grad()); }));
}

Result<bool> GradScaler::check(bool finite) {
  std::int64_t overflowed = finite ? 0 : 1;
  STORMO_RETURN_IF_ERROR(find_largest(world_, std::span(&overflowed, 1)).within("GradScaler"));
  step_ = overflowed != 0 ? Step::kOverflowed : Step::kGood;
  return overflowed == 0;
}

void GradScaler::update() {
  switch (std::exchange(step_, Step::kUnchecked)) {
    case Step::kUnchecked:
      throw Error(invalid_argument("GradScaler: update() follows check(), once for each step"));
    case Step::kOverflowed:
      good_steps_ = 0;
      scale_ *= options_.backoff_factor;
      if (scale_ < kSmallestScale) {
        throw Error(Status(Code::kException,
                           "GradScaler: gradients overflow at a loss scale of " +
                               std::to_string(scale_ / options_.backoff_factor) +
                               " too, so that it is not the reason; look for a non-finite input "
                               "or parameter, or lower the learning rate"));
      }
      return;
    case Step::kGood:
      if (++good_steps_ < options_.growth_interval) return;
      good_steps_ = 0;
      const double grown = scale_ * options_.growth_factor;
      if (std::isfinite(static_cast<float>(grown))) scale_ = grown;
      return;
  }
}

std::map<std::string, torch::Tensor> GradScaler::state() const {
  return {{kScale, torch::tensor({scale_}, torch::kFloat64)},
          {kGoodSteps, torch::tensor({good_steps_}, torch::kInt64)}};
}

Status GradScaler::load_state(const std::map<std::string, torch::Tensor>& state) {
  if (state.size() != 2 || !is_number(state, kScale, torch::kFloat64) ||
      !is_number(state, kGoodSteps, torch::kInt64)) {
    return invalid_argument(std::string("the state of a GradScaler is '") + kScale +
                            "', a float64 number, and '" + kGoodSteps + "', an int64 number");
  }
  const double scale = state.at(kScale).item<double>();
  const auto good_steps = state.at(kGoodSteps).item<std::int64_t>();
  if (!std::isfinite(scale) || scale <= 0 || good_steps < 0) {
    return invalid_argument("the state of a GradScaler has a scale of " + std::to_string(scale) +
                            " and " + std::to_string(good_steps) + " good steps");
  }
  scale_ = scale;
  good_steps_ = good_steps;
  return {};
}

}  // namespace stormo::train
