// Gradients on a device: reduced in place, packed, in codecs, and those that some ranks lack.
#include <gtest/gtest.h>

#include <vector>

#include <stormo/tensor/host_staging.h>
#include <stormo/train/reduction/gradient_reducer.h>

#include "tests/device/stub_device.h"
#include "tests/unit/train/sharded_problem.h"

namespace stormo::test {
namespace {

using train::GradientReducer;
using train::NamedParameter;

/// Ranks 0 and 1 of weights 1 and 3 have gradients of 4 and 8, so the mean is 7; one parameter has
/// none on rank 0, which counts as 0, and one has none at all.
void expect_means(Codec codec, double rounding) {
  Group group = comm::make_hosts({2});
  on_ranks(group, [&](comm::Communicator& host) {
    const torch::Device device = stub_device(host.rank());
    tensor::HostStaging world(host, device);
    const auto options = torch::dtype(torch::kFloat32).device(device);
    std::vector<NamedParameter> parameters;
    for (const auto& [name, elements] : std::vector<std::pair<std::string, std::int64_t>>{
             {"large", 1 << 17}, {"small", 5}, {"of_one", 7}, {"unused", 3}}) {
      parameters.push_back({name, torch::zeros({elements}, options).requires_grad_()});
    }
    GradientReducer reducer(world, parameters);
    reducer.set_plan(train::plan_of_replicas(
        parameters, 2, {.overlap = train::Overlap::at_the_end(), .codec = codec}));
    for (int step = 0; step < 2; ++step) {
      reducer.set_weight(host.rank() == 0 ? 1 : 3);
      for (NamedParameter& p : parameters) {
        p.tensor.mutable_grad().reset();
        if (p.name == "unused" || (p.name == "of_one" && host.rank() == 0)) continue;
        p.tensor.mutable_grad() = torch::full_like(p.tensor, host.rank() == 0 ? 4 : 8).detach();
      }
      throw_if_error(reducer.reduce());
      for (const NamedParameter& p : parameters) {
        ASSERT_EQ(p.tensor.grad().defined(), p.name != "unused") << p.name;
        if (p.name == "unused") continue;
        const double mean = p.name == "of_one" ? 6 : 7;
        const torch::Tensor error = (p.tensor.grad().cpu() - mean).abs().max();
        EXPECT_LE(error.item<double>(), rounding * mean) << p.name << ", step " << step;
      }
    }
  });
}

TEST(ReductionOnDevices, AveragesWhatLiesThere) { expect_means(Codec::kNone, 1e-6); }
TEST(ReductionOnDevices, In16Bits) { expect_means(Codec::kBFloat16, 1.0 / 128); }
TEST(ReductionOnDevices, InBlocks) { expect_means(Codec::kInt8, 1.0 / 64); }

}  // namespace
}  // namespace stormo::test
