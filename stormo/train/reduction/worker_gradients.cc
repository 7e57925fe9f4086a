#include <stormo/train/reduction/worker_gradients.h>

namespace stormo::train {

WorkerGradients::WorkerGradients(comm::Communicator& ranks,
                                 const std::vector<NamedParameter>& parameters, DoneAction done)
    : reducer_(ranks, parameters), done_(std::move(done)) {
  reducer_.on_done(done_);
}

Status WorkerGradients::perform(const plan::Action& action, double weight) {
  reducer_.set_weight(weight);
  const bool counts = makes(action, plan::Value::kWeights);
  if (!counts && reducer_.total_weight() == 0) {
    done_(action);
    return {};
  }
  STORMO_RETURN_IF_ERROR(reducer_.perform(action));
  if (counts) samples_ += reducer_.total_weight();
  return {};
}

}  // namespace stormo::train
