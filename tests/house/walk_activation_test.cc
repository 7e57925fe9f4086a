// The values that docs/walk-activation.md follows: an activation goes to the next stage, its
// gradient comes back.
#include <gtest/gtest.h>

#include <stormo/tensor/allocator.h>
#include <stormo/train/world/stage_link.h>

#include "tests/unit/train/cut_model.h"

namespace stormo::train {
namespace {

constexpr StageLink::Key kActivation = 0, kGradient = 1;

void first_stage(StageLink& link, bool in_host) {
  const torch::Tensor w = torch::tensor({{1.0f, 2.0f}}).requires_grad_();
  const torch::Tensor x = torch::tensor({{1.0f, 0.0f}, {0.0f, 1.0f}});
  const torch::Tensor h = x.mm(w.t());
  throw_if_error(link.send(1, kActivation, h, x.sizes()));
  EXPECT_EQ(link.bytes_copied(), in_host ? 8u : 0u);
  throw_if_error(link.expect(1, kGradient, x.sizes()));
  const torch::Tensor gradient = link.receive(1, kGradient).take_or_throw();
  EXPECT_TRUE(gradient.equal(torch::tensor({{4.5f}, {9.0f}})));
  h.backward(gradient);
  EXPECT_TRUE(w.grad().equal(torch::tensor({{4.5f, 9.0f}})));
}

void last_stage(StageLink& link) {
  const torch::Tensor v = torch::tensor({{3.0f}}).requires_grad_();
  throw_if_error(link.expect(0, kActivation, {2, 2}));
  torch::Tensor h = link.receive(0, kActivation).take_or_throw();
  EXPECT_TRUE(h.equal(torch::tensor({{1.0f}, {2.0f}})));
  const torch::Tensor loss = h.requires_grad_().mm(v).square().mean() / 2;
  EXPECT_EQ(loss.item<float>(), 11.25f);
  loss.backward();
  EXPECT_TRUE(v.grad().equal(torch::tensor({{7.5f}})));
  throw_if_error(link.send(0, kGradient, h.grad(), {2, 2}));
}

TEST(WalkActivation, GoesToTheNextStageAndItsGradientComesBack) {
  for (const std::vector<int>& ranks_of_hosts : {std::vector<int>{2}, {1, 1}}) {
    test::Group group = comm::make_hosts(ranks_of_hosts);
    test::on_ranks(group, [&](comm::Communicator& stages) {
      const tensor::ThreadArena arena(stages.arena());
      StageLink link(stages);
      link.stage() == 0 ? first_stage(link, ranks_of_hosts.size() == 1) : last_stage(link);
    });
  }
}

}  // namespace
}  // namespace stormo::train
