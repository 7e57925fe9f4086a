// Operations on the memory of devices, over an engine that takes host memory only.
#include <gtest/gtest.h>

#include <optional>

#include <stormo/tensor/bridge.h>
#include <stormo/tensor/host_staging.h>

#include "tests/device/stub_device.h"
#include "tests/unit/train/sharded_problem.h"

namespace stormo::test {
namespace {

/// The sum of a tensor of device `rank` over two ranks of which rank 0 loses its device meanwhile,
/// or `before` its tensor is read.
void expect_failure_of_rank_0(bool asynchronous, bool before) {
  Group group = comm::make_hosts({2});
  on_ranks(group, [&](comm::Communicator& host) {
    tensor::HostStaging world(host, stub_device(host.rank()));
    const torch::Tensor t =
        torch::ones({5}, torch::TensorOptions(torch::kFloat32).device(stub_device(host.rank())));
    const comm::Buffer b = tensor::buffer_of(t);
    std::optional<LostStubDevice> lost;
    if (host.rank() == 0) lost.emplace(0, before);
    const Status outcome = asynchronous
                               ? world.all_reduce_async({&b, 1}, comm::ReduceOp::kSum).wait()
                               : world.all_reduce(b, comm::ReduceOp::kSum);
    if (host.rank() == 0) {
      EXPECT_EQ(outcome.code(), Code::kException);
      EXPECT_NE(outcome.message().find("the device is lost"), std::string::npos)
          << outcome.message();
    } else if (outcome.ok()) {
      EXPECT_TRUE(t.cpu().equal(torch::full({5}, 2.0f)));
    }
    EXPECT_FALSE(world.barrier().ok()) << "rank 1 must not wait for a rank without the result";
  });
}

TEST(HostStaging, AFailedCopyIsTheOutcomeOfItsOperation) {
  for (const bool asynchronous : {false, true}) {
    for (const bool before : {false, true}) expect_failure_of_rank_0(asynchronous, before);
  }
}

}  // namespace
}  // namespace stormo::test
