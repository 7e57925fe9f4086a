#include <stormo/train/backward_reducer.h>

#include <utility>

namespace stormo::train {

BackwardReducer::BackwardReducer(comm::Communicator& world, std::vector<NamedParameter> parameters,
                                 const Reduction& how)
    : reducer_(world, parameters, how), count_(parameters.size()) {
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
  if (last) reducer_.begin_pass();
}

Status BackwardReducer::start(double weight) {
  reducer_.set_weight(weight);
  travelling_ = true;
  return reducer_.start();
}

Status BackwardReducer::finish() {
  return each_averaged([](std::size_t, std::size_t) { return Status(); });
}

Status BackwardReducer::each_averaged(const GradientReducer::Averaged& averaged) {
  if (!travelling_) return averaged(0, count_);
  travelling_ = false;
  return reducer_.finish(averaged);
}

}  // namespace stormo::train
