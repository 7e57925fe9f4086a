#include <stormo/train/store/host_copy_store.h>

#include <cmath>
#include <span>
#include <utility>

#include <stormo/tensor/dtype.h>
#include <stormo/train/perform/perform.h>

namespace stormo::train {

HostCopyStore::HostCopyStore(const AxisGroups& groups, std::unique_ptr<Optimizer> optimizer)
    : world_(groups.world()),
      host_(*groups.over({"host"}).take_or_throw()),
      optimizer_(std::move(optimizer)) {
  if (world_.cross_size() == 1) return;
  between_hosts_ = std::make_unique<GradientReducer>(world_, optimizer_->parameters());
  between_hosts_->on_done([this](const plan::Action& a) { done(a); });
}

Status HostCopyStore::share(const HostCopy::Kept& before, bool has_state) {
  if (!between_hosts_) {
    posted_ = std::make_unique<HostGradients>(world_, host_, optimizer_->parameters());
  }
  // a rule without norms has no other optimizer
  auto& optimizer = dynamic_cast<FusedOptimizer&>(*optimizer_);
  STORMO_ASSIGN_OR_RETURN(copy_, HostCopy::create(host_, optimizer, before, has_state));
  return {};
}

std::unique_ptr<Optimizer> HostCopyStore::take_optimizer() {
  between_hosts_.reset();
  return std::move(optimizer_);
}

void HostCopyStore::set_plan(const plan::StepPlan& plan) {
  if (!copy_) throw_if_error(share({}, /*has_state=*/true));
  if (!between_hosts_) return;
  between_hosts_->set_plan(plan);
  between_hosts_->observe_backward();
}

void HostCopyStore::begin_backward(bool last) {
  if (between_hosts_) between_hosts_->begin_backward(last);
}

Status HostCopyStore::perform(const plan::Action& action, double weight) {
  if (!row_of(action.kind).barrier) {
    between_hosts_->set_weight(weight);
    return between_hosts_->perform(action);
  }
  if (places(action, plan::Value::kGradients, plan::Placement::kShared)) {
    STORMO_RETURN_IF_ERROR(posted_->publish(weight));
  } else {
    STORMO_RETURN_IF_ERROR(host_.barrier());
    copy_->note_changes();
  }
  done(action);
  return {};
}

Status HostCopyStore::finish_gradients() {
  return between_hosts_ ? between_hosts_->finish() : Status();
}

std::vector<RangeGradient> HostCopyStore::gradients() {
  const std::vector<NamedParameter>& parameters = optimizer_->parameters();
  reduced_.assign(parameters.size(), {});
  reduced_terms_.assign(parameters.size(), {});
  std::vector<RangeGradient> out;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    std::span<const optim::GradientTerm> terms;
    if (posted_) {
      terms = posted_->terms(i);
    } else if (const torch::Tensor& gradient = parameters[i].tensor.grad(); gradient.defined()) {
      reduced_[i] = gradient.contiguous();
      reduced_terms_[i].data = reduced_[i].const_data_ptr();
      terms = {&reduced_terms_[i], 1};
    }
    if (terms.empty()) continue;
    out.push_back({.parameter = i,
                   .sources = terms,
                   .dtype = *tensor::dtype_of(parameters[i].tensor.scalar_type())});
  }
  return out;
}

Result<double> HostCopyStore::gradient_norm() {
  STORMO_RETURN_IF_ERROR(finish_gradients());
  double squares = copy_->gradient_squares(gradients());
  STORMO_RETURN_IF_ERROR(add_up(host_, {&squares, 1}).within("norm of gradients"));
  return std::sqrt(squares);
}

Status HostCopyStore::update(const ParameterRange& /*all*/, const StepRate& rate) {
  STORMO_RETURN_IF_ERROR(copy_->update(rate, gradients()));
  return is_alone_ ? finish_update() : Status();
}

Status HostCopyStore::finish_update() { return copy_->finish(say_); }

void HostCopyStore::zero_grad() {
  if (between_hosts_) between_hosts_->next_pass();
  if (posted_) posted_->release();
  reduced_.clear();
  optimizer_->zero_grad();
}

}  // namespace stormo::train
