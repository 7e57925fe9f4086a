#include <stormo/train/store/host_shared_store.h>

#include <utility>

#include <stormo/train/perform/perform.h>

namespace stormo::train {

HostSharedStore::HostSharedStore(const AxisGroups& groups, const OptimizerOptions& options,
                                 const std::vector<NamedParameter>& parameters)
    : ParameterStore(/*whole=*/false),
      saves_(groups.world().cross_rank() == 0),
      shared_(groups.world(), *groups.over({"host"}).take_or_throw(), parameters),
      optimizer_(options, parameters, shared_.owned(),
                 [&host = shared_.host()](std::span<double> v) { return add_up(host, v); }) {
  if (groups.world().cross_size() == 1) return;
  between_hosts_ = std::make_unique<GradientReducer>(groups.world(), parameters);
  between_hosts_->on_done([this](const plan::Action& a) { done(a); });
}

void HostSharedStore::begin_backward(bool last) {
  if (between_hosts_) between_hosts_->begin_backward(last);
}

void HostSharedStore::set_plan(const plan::StepPlan& plan) {
  if (!between_hosts_) return;
  between_hosts_->set_plan(plan);
  between_hosts_->observe_backward();
}

Status HostSharedStore::perform(const plan::Action& action, double weight) {
  if (!row_of(action.kind).barrier) {
    between_hosts_->set_weight(weight);
    return between_hosts_->perform(action);
  }
  const bool gradients = places(action, plan::Value::kGradients, plan::Placement::kShared);
  STORMO_RETURN_IF_ERROR(gradients ? shared_.publish(weight) : shared_.release());
  done(action);
  return {};
}

Result<double> HostSharedStore::gradient_norm() {
  if (!between_hosts_) return optimizer_.gradient_norm(shared_.gradients());
  STORMO_RETURN_IF_ERROR(between_hosts_->finish());
  return optimizer_.gradient_norm();
}

Status HostSharedStore::update(const ParameterRange& all, const StepRate& rate) {
  if (!between_hosts_) return optimizer_.step(rate, shared_.gradients());
  // others of this host may still read parameters in their backward until all has been averaged
  GradientReducer& reducer = *between_hosts_;
  if (shared_.host().size() > 1) {
    STORMO_RETURN_IF_ERROR(reducer.finish());
    return optimizer_.step(rate, all.first, all.last);
  }
  return reducer.finish(all, [&](const ParameterRange& averaged) {
    return optimizer_.step(rate, averaged.first, averaged.last);
  });
}

void HostSharedStore::zero_grad() {
  if (between_hosts_) between_hosts_->next_pass();
  optimizer_.zero_grad();
}

std::vector<TensorPiece> HostSharedStore::pieces() const {
  if (!saves_) return {};
  std::vector<TensorPiece> out = optimizer_.state_pieces();
  for (std::size_t i = 0; i < optimizer_.parameters().size(); ++i) {
    const NamedParameter& p = optimizer_.parameters()[i];
    const OwnedRange& own = shared_.owned()[i];
    out.push_back({.name = p.name,
                   .shape = p.tensor.sizes().vec(),
                   .begin = own.begin,
                   .end = own.end,
                   .values = p.tensor.detach().flatten().slice(0, own.begin, own.end)});
  }
  return out;
}

}  // namespace stormo::train
