#include <stormo/model/resnet20.h>

#include <string>

#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

namespace stormo::model {
namespace {

constexpr std::int64_t kSide = 3;  // of every kernel
constexpr std::int64_t kStages = 3;
constexpr std::int64_t kBlocksPerStage = 3;
constexpr std::int64_t kFirstChannels = 16;

torch::nn::Conv2d make_conv(std::int64_t in, std::int64_t out, std::int64_t stride) {
  torch::nn::Conv2d conv(
      torch::nn::Conv2dOptions(in, out, kSide).stride(stride).padding(1).bias(false));
  torch::nn::init::kaiming_normal_(conv->weight, 0, torch::kFanOut, torch::kReLU);
  return conv;
}

std::int64_t conv_flops(std::int64_t in, std::int64_t out, std::int64_t places) {
  return 2 * kSide * kSide * in * out * places;
}

class Stem final : public Segment {
 public:
  explicit Stem(const ResNet20Options& o)
      : Segment("Stem"),
        flops_(conv_flops(o.channels, kFirstChannels, o.height * o.width)),
        conv_(register_module("conv", make_conv(o.channels, kFirstChannels, 1))),
        norm_(register_module("norm", torch::nn::BatchNorm2d(kFirstChannels))) {}

  torch::Tensor forward(torch::Tensor x) override { return torch::relu(norm_(conv_(x))); }
  std::int64_t flops_per_sample() const override { return flops_; }

 private:
  std::int64_t flops_;
  torch::nn::Conv2d conv_;
  torch::nn::BatchNorm2d norm_;
};

/// relu(x + norm(conv(relu(norm(conv(x)))))); with more channels than x has, at half its size.
class ResidualBlock final : public Segment {
 public:
  /// `places`: pixels of the output.
  ResidualBlock(std::int64_t in, std::int64_t out, std::int64_t places)
      : Segment("ResidualBlock"),
        added_(out - in),
        stride_(out > in ? 2 : 1),
        flops_(conv_flops(in, out, places) + conv_flops(out, out, places)),
        conv1_(register_module("conv1", make_conv(in, out, stride_))),
        norm1_(register_module("norm1", torch::nn::BatchNorm2d(out))),
        conv2_(register_module("conv2", make_conv(out, out, 1))),
        norm2_(register_module("norm2", torch::nn::BatchNorm2d(out))) {}

  torch::Tensor forward(torch::Tensor x) override {
    const torch::Tensor y = norm2_(conv2_(torch::relu(norm1_(conv1_(x)))));
    return torch::relu(y + shortcut(x));
  }
  std::int64_t flops_per_sample() const override { return flops_; }

 private:
  // Every second pixel, and zeros as the new channels on both sides.
  torch::Tensor shortcut(const torch::Tensor& x) const {
    if (added_ == 0) return x;
    const torch::Tensor half =
        x.slice(2, 0, std::nullopt, stride_).slice(3, 0, std::nullopt, stride_);
    return at::constant_pad_nd(half, {0, 0, 0, 0, added_ / 2, added_ - added_ / 2});
  }

  std::int64_t added_;
  std::int64_t stride_;
  std::int64_t flops_;
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d norm1_;
  torch::nn::Conv2d conv2_;
  torch::nn::BatchNorm2d norm2_;
};

class PoolingHead final : public Segment {
 public:
  PoolingHead(std::int64_t channels, std::int64_t classes)
      : Segment("PoolingHead"),
        flops_(2 * channels * classes),
        linear_(register_module("linear", torch::nn::Linear(channels, classes))) {}

  torch::Tensor forward(torch::Tensor x) override { return linear_(x.mean({2, 3})); }
  std::int64_t flops_per_sample() const override { return flops_; }

 private:
  std::int64_t flops_;
  torch::nn::Linear linear_;
};

}  // namespace

ResNet20::ResNet20(const ResNet20Options& o) : Chain("ResNet20") {
  append("stem", std::make_shared<Stem>(o));
  std::int64_t channels = kFirstChannels, height = o.height, width = o.width;
  for (std::int64_t i = 0; i < kStages * kBlocksPerStage; ++i) {
    const std::int64_t out = kFirstChannels << (i / kBlocksPerStage);
    if (out > channels) {  // half the size, rounded up
      height = (height + 1) / 2;
      width = (width + 1) / 2;
    }
    append("block" + std::to_string(i),
           std::make_shared<ResidualBlock>(channels, out, height * width));
    channels = out;
  }
  append("head", std::make_shared<PoolingHead>(channels, o.classes));
}

}  // namespace stormo::model
