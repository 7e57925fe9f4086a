// The example of docs/guides/make-a-layer-tensor-parallel.md.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <stormo/analysis/transfer/collectives.h>
#include <stormo/base/event.h>
#include <stormo/model/chain.h>
#include <stormo/parallel/inside_layers/tensor_parallel.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pass.h>
#include <stormo/stormo.h>
#include <torch/torch.h>

#include <gtest/gtest.h>

namespace stormo::model {

/// x + down(relu(up(x))), with dropout of the hidden units. Input and output [B, width].
class FeedForward final : public Segment {
 public:
  FeedForward(std::int64_t width, std::int64_t hidden, double dropout = 0)
      : Segment("FeedForward"),
        width_(width),
        hidden_(hidden),
        dropout_(dropout),
        up_(register_module("up", torch::nn::Linear(width, hidden))),
        down_(register_module("down", torch::nn::Linear(hidden, width))) {}

  torch::Tensor forward(torch::Tensor x) override {
    torch::Tensor hidden = torch::relu(up_->forward(tensor::begin_split(x, ranks())));
    if (dropout_ > 0) {
      const tensor::SplitRandom random(ranks());
      hidden = torch::dropout(hidden, dropout_, is_training());
    }
    const torch::Tensor terms = torch::linear(hidden, down_->weight);
    return x + tensor::end_split(terms, ranks()) + down_->bias;  // the bias once
  }

  std::int64_t flops_per_sample() const override { return 4 * width_ * hidden_; }

  SplitForm split_form() const override {
    return {.parameters = {{"up.weight", {.units = hidden_}},
                           {"up.bias", {.units = hidden_}},
                           {"down.weight", {.dim = 1, .units = hidden_}}},
            .sums = {.forward = {width_}, .backward = {width_}, .loss = {}}};
  }

 private:
  std::int64_t width_, hidden_;
  double dropout_;
  torch::nn::Linear up_, down_;
};

}  // namespace stormo::model

namespace stormo::model {
namespace {

constexpr std::int64_t kWidth = 8, kHidden = 13, kRows = 5;

struct Net final : Chain {
  Net() : Chain("Net") {
    for (const char* name : {"first", "second"}) {
      append(name, std::make_shared<FeedForward>(kWidth, kHidden));
    }
  }
};

/// All of them are equal.
std::vector<std::shared_ptr<Net>> make_nets(int count) {
  std::vector<std::shared_ptr<Net>> out;
  for (int i = 0; i < count; ++i) {
    torch::manual_seed(1);
    out.push_back(std::make_shared<Net>());
    out.back()->to(torch::kFloat64);
  }
  return out;
}

torch::Tensor loss_of(Net& net, const torch::Tensor& x) { return net.forward(x).square().mean(); }

TEST(FeedForward, HasTheLossAndTheGradientsOfOneProcess) {
  const std::shared_ptr<Net> alone = make_nets(1)[0];
  const plan::ModelShape shape = alone->split_shape();
  const auto parameters = plan::flatten(shape);
  const torch::Tensor x = torch::randn({kRows, kWidth}, torch::kFloat64);
  const torch::Tensor expected = loss_of(*alone, x);
  expected.backward();
  const std::vector<torch::Tensor> whole = alone->parameters();
  for (const int n : {2, 3}) {
    const auto nets = make_nets(n);
    run_replicas(n, [&](comm::Communicator& world) {
      const std::shared_ptr<Net> net = nets[static_cast<std::size_t>(world.rank())];
      const tensor::TensorParallelGroup ranks(world);
      parallelize(*net, ranks);
      const torch::Tensor loss = loss_of(*net, x);
      loss.backward();
      EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-12);
      const std::vector<torch::Tensor> mine = net->parameters();
      for (std::size_t i = 0; i < mine.size(); ++i) {
        torch::Tensor gradient = whole[i].grad();
        const plan::Split& split = parameters[i]->split;
        if (split.units > 0) gradient = tensor::slice(gradient, split, ranks.part());
        EXPECT_LE((mine[i].grad() - gradient).abs().max().item<double>(), 1e-12)
            << parameters[i]->name;
      }
    });
  }
}

/// The bytes of a rank's all-reduces, in order.
struct Sums final : Sink {
  void record(const Event& event) override {
    const bool is_sum = event.lane == Lane::kCommunication && event.name == "all_reduce";
    if (is_sum) bytes.push_back(event.bytes);
  }
  std::vector<std::uint64_t> bytes;
};

TEST(FeedForward, AddsUpWhatItsPlanStates) {
  const auto nets = make_nets(2);
  const plan::StepPlan p =
      parallel::compose(parallel::one_device(nets[0]->split_shape()), parallel::tensor_parallel(2))
          .take_or_throw();
  EXPECT_NE(to_text(p).find("segment 0: first flops=416 sums 8 gradient_sums 8\n"),
            std::string::npos);
  analysis::StepSizes sizes;
  sizes.samples = kRows;
  std::vector<std::uint64_t> stated;
  for (std::size_t i = 0; i < p.actions.size(); ++i) {
    if (row_of(p.actions[i].kind).range != plan::RangeOf::kSegments) continue;  // forward, backward
    for (const analysis::Collective& c : analysis::collectives_of(p, i, sizes)) {
      stated.push_back(static_cast<std::uint64_t>(c.bytes()));
    }
  }
  const torch::Tensor x = torch::randn({kRows, kWidth}, torch::kFloat64);
  run_replicas(2, [&](comm::Communicator& world) {
    const std::shared_ptr<Net> net = nets[static_cast<std::size_t>(world.rank())];
    const tensor::TensorParallelGroup ranks(world);
    parallelize(*net, ranks);
    Sums sums;
    world.set_sink(&sums);
    loss_of(*net, x).backward();
    world.set_sink(nullptr);
    EXPECT_EQ(sums.bytes, stated);
  });
}

}  // namespace
}  // namespace stormo::model
