#pragma once

#include <memory>
#include <utility>

#include <torch/csrc/distributed/c10d/comm.hpp>

#include <stormo/c10d/backend.h>

namespace stormo::c10d {

/// The communication hook of a torch.nn.parallel.DistributedDataParallel: the average of each
/// bucket, in place. PyTorch's own hook divides in a pass of its own, and sums; here the division
/// is a part of the reduction.
///
/// On one host a bucket is reduced on the thread that calls, which would wait for a core otherwise.
/// Between hosts it is reduced in the background, while backward goes on.
class AverageHook final : public ::c10d::CommHookInterface {
 public:
  explicit AverageHook(std::shared_ptr<StormoBackend> group) : group_(std::move(group)) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(::c10d::GradBucket& bucket) override;
  at::Tensor parseHookResult(const c10::IValue& result) override {
    return ::c10d::detail::parseCppCommHookResult(result);
  }

 private:
  const std::shared_ptr<StormoBackend> group_;
};

}  // namespace stormo::c10d
