#include <stormo/model/resnet20.h>

#include <string>

#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <stormo/model/places.h>

namespace stormo::model {
namespace {

constexpr int kSide = 3;  // of every kernel
constexpr int kEdge = 1;
constexpr std::int64_t kStages = 3;
constexpr std::int64_t kBlocksPerStage = 3;
constexpr std::int64_t kFirstChannels = 16;

torch::nn::Conv2d make_conv(std::int64_t in, std::int64_t out, std::int64_t stride) {
  torch::nn::Conv2d conv(
      torch::nn::Conv2dOptions(in, out, kSide).stride(stride).padding(kEdge).bias(false));
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
        window_{o.channels, o.height, o.width, kSide, 1, kEdge},
        conv_(register_module("conv", make_conv(o.channels, kFirstChannels, 1))),
        norm_(register_module("norm", torch::nn::BatchNorm2d(kFirstChannels))) {}

  torch::Tensor forward(torch::Tensor x) override {
    return torch::relu(normalise(norm_, convolve(conv_, x, window_, grid()), grid()));
  }
  PlaceForm place_form() const override {
    return {.windows = {window_}, .norms = {kFirstChannels}};
  }
  std::int64_t flops_per_sample() const override { return flops_; }

 private:
  std::int64_t flops_;
  plan::Window window_;
  torch::nn::Conv2d conv_;
  torch::nn::BatchNorm2d norm_;
};

/// relu(x + norm(conv(relu(norm(conv(x)))))); with more channels than x has, at half its size.
class ResidualBlock final : public Segment {
 public:
  /// `height` and `width`: of the input.
  ResidualBlock(std::int64_t in, std::int64_t out, std::int64_t height, std::int64_t width)
      : Segment("ResidualBlock"),
        added_(out - in),
        stride_(out > in ? 2 : 1),
        window1_{in, height, width, kSide, stride_, kEdge},
        window2_{out, rows_out(window1_, height), rows_out(window1_, width), kSide, 1, kEdge},
        skipped_{in, height, width, 1, stride_},
        flops_(conv_flops(in, out, window2_.height * window2_.width) +
               conv_flops(out, out, window2_.height * window2_.width)),
        conv1_(register_module("conv1", make_conv(in, out, stride_))),
        norm1_(register_module("norm1", torch::nn::BatchNorm2d(out))),
        conv2_(register_module("conv2", make_conv(out, out, 1))),
        norm2_(register_module("norm2", torch::nn::BatchNorm2d(out))) {}

  torch::Tensor forward(torch::Tensor x) override {
    const torch::Tensor y = normalise(norm1_, convolve(conv1_, x, window1_, grid()), grid());
    const torch::Tensor z =
        normalise(norm2_, convolve_rectified(conv2_, y, window2_, grid()), grid());
    return torch::relu(z + shortcut(x));
  }
  PlaceForm place_form() const override {
    PlaceForm out{.windows = {window1_, window2_}, .norms = {window2_.channels, window2_.channels}};
    if (added_ > 0) out.windows.push_back(skipped_);
    return out;
  }
  std::int64_t flops_per_sample() const override { return flops_; }

 private:
  // Every second pixel, and zeros as the new channels on both sides.
  torch::Tensor shortcut(const torch::Tensor& whole) const {
    if (added_ == 0) return whole;
    const torch::Tensor x = grid() == nullptr
                                ? whole
                                : halo_exchange(whole, skipped_, grid()->rows(), grid()->columns());
    const torch::Tensor half =
        x.slice(2, 0, std::nullopt, stride_).slice(3, 0, std::nullopt, stride_);
    return at::constant_pad_nd(half, {0, 0, 0, 0, added_ / 2, added_ - added_ / 2});
  }

  std::int64_t added_;
  int stride_;
  plan::Window window1_, window2_, skipped_;
  std::int64_t flops_;
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d norm1_;
  torch::nn::Conv2d conv2_;
  torch::nn::BatchNorm2d norm2_;
};

class PoolingHead final : public Segment {
 public:
  PoolingHead(std::int64_t channels, std::int64_t height, std::int64_t width, std::int64_t classes)
      : Segment("PoolingHead"),
        map_{channels, height, width},
        flops_(2 * channels * classes),
        linear_(register_module("linear", torch::nn::Linear(channels, classes))) {}

  torch::Tensor forward(torch::Tensor x) override {
    if (grid() == nullptr) return linear_(x.mean({2, 3}));
    const auto places = static_cast<double>(map_.height * map_.width);
    return linear_(sum_over_places(x.sum({2, 3}), *grid()) / places);
  }
  PlaceForm place_form() const override {
    return {.windows = {map_}, .norms = {}, .sum = map_.channels};
  }
  std::int64_t flops_per_sample() const override { return flops_; }

 private:
  plan::Window map_;
  std::int64_t flops_;
  torch::nn::Linear linear_;
};

}  // namespace

ResNet20::ResNet20(const ResNet20Options& o) : Chain("ResNet20") {
  append("stem", [=] { return std::make_shared<Stem>(o); });
  std::int64_t channels = kFirstChannels, height = o.height, width = o.width;
  for (std::int64_t i = 0; i < kStages * kBlocksPerStage; ++i) {
    const std::int64_t out = kFirstChannels << (i / kBlocksPerStage);
    append("block" + std::to_string(i),
           [=] { return std::make_shared<ResidualBlock>(channels, out, height, width); });
    if (out > channels) {  // half the size, rounded up
      height = (height + 1) / 2;
      width = (width + 1) / 2;
    }
    channels = out;
  }
  append("head", [=] { return std::make_shared<PoolingHead>(channels, height, width, o.classes); });
}

}  // namespace stormo::model
