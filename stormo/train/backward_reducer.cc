#include <stormo/train/backward_reducer.h>

#include <utility>

namespace stormo::train {

BackwardReducer::BackwardReducer(comm::Communicator& world, std::vector<NamedParameter> parameters,
                                 const Reduction& how)
    : reducer_(world, parameters, how) {
  if (world.size() == 1 || how.overlap == Overlap::at_the_end()) return;
  std::vector<torch::Tensor> tensors;
  for (const NamedParameter& p : parameters) tensors.push_back(p.tensor);
  hooks_ = std::make_unique<BackwardHooks>(
      tensors, BackwardHooks::Events{.ready = [this](std::size_t i) { reducer_.ready(i); },
                                     .nested = [this] { reducer_.hold(); },
                                     .end = [] {},
                                     .abandoned = [this] { reducer_.abandon(); }});
}

void BackwardReducer::begin_pass(double weight, bool last) {
  reducer_.set_weight(weight);
  if (hooks_ != nullptr) hooks_->enable(last);
}

Status BackwardReducer::reduce(double weight) {
  reducer_.set_weight(weight);
  return reducer_.reduce();
}

}  // namespace stormo::train
