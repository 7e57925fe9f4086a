#include <stormo/c10d/average_hook.h>

namespace stormo::c10d {

c10::intrusive_ptr<c10::ivalue::Future> AverageHook::runHook(::c10d::GradBucket& bucket) {
  std::vector<at::Tensor> tensors{bucket.getBufferRef()};
  ::c10d::AllreduceOptions options;
  options.reduceOp = ::c10d::ReduceOp::AVG;
  options.asyncOp = group_->communicator().cross_size() > 1;
  return group_->allreduce(tensors, options)->getFuture();
}

}  // namespace stormo::c10d
