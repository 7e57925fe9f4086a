#include <stormo/train/reduction/backward_reducer.h>

#include <utility>

namespace stormo::train {

BackwardReducer::BackwardReducer(comm::Communicator& world, std::vector<NamedParameter> parameters)
    : reducer_(world, parameters) {
  for (const NamedParameter& p : parameters) tensors_.push_back(p.tensor);
}

void BackwardReducer::set_plan(const plan::StepPlan& plan, DoneAction done) {
  hooks_.reset();
  reducer_.on_done(std::move(done));
  reducer_.set_plan(plan);
  if (!reducer_.can_start_early()) return;
  hooks_ = std::make_unique<BackwardHooks>(
      tensors_, BackwardHooks::Events{.ready = [this](std::size_t i) { reducer_.ready(i); },
                                      .nested = [this] { reducer_.defer(); },
                                      .end = [] {},
                                      .abandoned = [this] { reducer_.abandon(); }});
}

void BackwardReducer::begin_backward(bool last) {
  if (hooks_ == nullptr) return;
  hooks_->enable(last);
  if (last) hooks_->renew();
}

}  // namespace stormo::train
