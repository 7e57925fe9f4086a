#include <stormo/train/host_shared_store.h>

#include <utility>

namespace stormo::train {

HostSharedStore::HostSharedStore(comm::Communicator& world, const OptimizerOptions& options,
                                 const std::vector<NamedParameter>& parameters,
                                 const Reduction& how)
    : saves_(world.cross_rank() == 0),
      shared_(world, parameters),
      optimizer_(options, parameters, shared_.owned(),
                 [&host = shared_.host()](std::span<double> v) {
                   return host.all_reduce(comm::buffer_of(v), comm::ReduceOp::kSum);
                 }) {
  if (world.cross_size() == 1) return;
  between_hosts_ = std::make_unique<BackwardReducer>(world, parameters, how);
}

void HostSharedStore::begin_pass(double weight, bool last) {
  if (between_hosts_) between_hosts_->begin_pass(weight, last);
}

// Between hosts one all-reduce does both: it too is a reduction inside hosts, then one of parts
// between them, and can overlap with backward.
Status HostSharedStore::reduce_scatter(const ParameterRange&, double weight) {
  return between_hosts_ ? Status() : shared_.publish(weight);
}

Status HostSharedStore::all_reduce(const ParameterRange&, double weight) {
  return between_hosts_->start(weight);
}

Result<double> HostSharedStore::gradient_norm() {
  if (!between_hosts_) return optimizer_.gradient_norm(shared_.gradients());
  STORMO_RETURN_IF_ERROR(between_hosts_->finish());
  return optimizer_.gradient_norm();
}

Status HostSharedStore::update(const ParameterRange&, const StepRate& rate) {
  if (!between_hosts_) return optimizer_.step(rate, shared_.gradients());
  // others of this host may still read parameters in their backward until all has been averaged
  if (shared_.host().size() > 1) STORMO_RETURN_IF_ERROR(between_hosts_->finish());
  return between_hosts_->each_averaged(
      [&](std::size_t first, std::size_t last) { return optimizer_.step(rate, first, last); });
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

std::string HostSharedStore::describe() const {
  const std::string one = "one copy of parameters and optimizer state per host";
  return between_hosts_ ? one + "; " + between_hosts_->describe() : one;
}

}  // namespace stormo::train
