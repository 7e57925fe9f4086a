#include <stormo/train/store/host_shared_store.h>

#include <utility>

#include <stormo/train/parameters/model_parameters.h>

namespace stormo::train {

HostSharedStore::HostSharedStore(const AxisGroups& groups, const OptimizerOptions& options,
                                 const std::vector<NamedParameter>& parameters,
                                 const plan::ModelShape& model)
    : groups_(groups),
      all_(all_parameters(model)),
      saves_(groups.world().cross_rank() == 0),
      shared_(groups.world(), *groups.over({"host"}).take_or_throw(), parameters),
      optimizer_(options, parameters, shared_.owned(),
                 [&host = shared_.host()](std::span<double> v) {
                   return host.all_reduce(v, comm::ReduceOp::kSum);
                 }) {
  if (groups.world().cross_size() == 1) return;
  between_hosts_ = std::make_unique<BackwardReducer>(groups.world(), parameters);
}

void HostSharedStore::begin_backward(bool last) {
  if (between_hosts_) between_hosts_->begin_backward(last);
}

Status HostSharedStore::check(const plan::StepPlan& plan) const {
  using enum plan::ActionKind;
  STORMO_RETURN_IF_ERROR(check_mesh(plan, groups_.mesh()));
  const auto host = static_cast<std::size_t>(plan.mesh.find("host"));
  if (plan.parameters[host] != plan::Placement::kShared) {
    return Status(Code::kBadPlan, "there is one copy per host: state parameters shared over host");
  }
  const plan::ActionKind reduction = between_hosts_ ? kAllReduce : kShareGradients;
  std::size_t reduced = 0;
  bool released = false;
  for (std::size_t i = 0; i < plan.actions.size(); ++i) {
    const plan::Action& a = plan.actions[i];
    if (!moves(a.kind) && a.kind != kUpdate) continue;
    if (a.kind == kCount && between_hosts_) continue;
    if (a.kind != reduction && a.kind != kShareParameters && a.kind != kUpdate) {
      return cannot(
          plan, i,
          "one copy per host takes " + std::string(to_string(reduction)) + " and share_parameters");
    }
    if (a.kind == kAllReduce && a.axes.size() != plan.mesh.axes.size()) {
      return cannot(plan, i, "one copy per host averages gradients over all ranks at once");
    }
    if (a.kind != kAllReduce && a.range != all_) {
      return cannot(plan, i, "one copy per host is updated as a whole");
    }
    if (a.kind == reduction) reduced += size_of(trainable_in(plan.model, a.range));
    released = released || a.kind == kShareParameters;
  }
  // a host of one rank can verify without
  if (reduced != optimizer_.parameters().size() || !released) {
    return Status(Code::kBadPlan, "one copy per host takes " + std::string(to_string(reduction)) +
                                      " of every gradient once, and share_parameters");
  }
  return {};
}

void HostSharedStore::follow(const plan::StepPlan& plan) {
  if (between_hosts_) between_hosts_->follow(plan, [this](const plan::Action& a) { done(a); });
}

Status HostSharedStore::perform(const plan::Action& action, double weight) {
  using enum plan::ActionKind;
  if (action.kind == kCount || action.kind == kAllReduce) {
    between_hosts_->reducer().set_weight(weight);
    return between_hosts_->reducer().perform(action);
  }
  const bool gradients = action.kind == kShareGradients;
  STORMO_RETURN_IF_ERROR(gradients ? shared_.publish(weight) : shared_.release());
  done(action);
  return {};
}

Result<double> HostSharedStore::gradient_norm() {
  if (!between_hosts_) return optimizer_.gradient_norm(shared_.gradients());
  STORMO_RETURN_IF_ERROR(between_hosts_->reducer().finish());
  return optimizer_.gradient_norm();
}

Status HostSharedStore::update(const ParameterRange& all, const StepRate& rate) {
  if (!between_hosts_) return optimizer_.step(rate, shared_.gradients());
  // others of this host may still read parameters in their backward until all has been averaged
  GradientReducer& reducer = between_hosts_->reducer();
  if (shared_.host().size() > 1) {
    STORMO_RETURN_IF_ERROR(reducer.finish());
    return optimizer_.step(rate, all.first, all.last);
  }
  return reducer.finish(all, [&](const ParameterRange& averaged) {
    return optimizer_.step(rate, averaged.first, averaged.last);
  });
}

void HostSharedStore::zero_grad() {
  if (between_hosts_) between_hosts_->reducer().next_pass();
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
