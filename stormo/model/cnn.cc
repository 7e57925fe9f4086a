#include <stormo/model/cnn.h>

#include <torch/nn/modules/conv.h>

#include <stormo/model/dense.h>
#include <stormo/model/places.h>

namespace stormo::model {
namespace {

constexpr int kKernel = 5;
constexpr int kPool = 2;

/// Side of the feature map behind one convolution (no padding) and one 2 x 2 pooling.
constexpr std::int64_t side_after(std::int64_t side) { return (side - kKernel + 1) / kPool; }

class ConvSegment final : public Segment {
 public:
  ConvSegment(std::int64_t in, std::int64_t out, std::int64_t height, std::int64_t width)
      : Segment("ConvSegment"),
        flops_(2 * in * kKernel * kKernel * out * (height - kKernel + 1) * (width - kKernel + 1)),
        convolved_{in, height, width, kKernel},
        pooled_{out, height - kKernel + 1, width - kKernel + 1, kPool, kPool},
        conv_(register_module("conv", torch::nn::Conv2d(in, out, kKernel))) {}

  // Pooling before ReLU gives the same numbers (both are monotone) and rectifies a quarter of them.
  torch::Tensor forward(torch::Tensor x) override {
    return torch::relu(max_pool(convolve(conv_, x, convolved_, grid()), pooled_, grid()));
  }
  PlaceForm place_form() const override { return {.windows = {convolved_, pooled_}, .norms = {}}; }
  std::int64_t flops_per_sample() const override { return flops_; }

 private:
  std::int64_t flops_;
  plan::Window convolved_, pooled_;
  torch::nn::Conv2d conv_;
};

}  // namespace

Cnn::Cnn(const CnnOptions& o) : Chain("Cnn") {
  const std::int64_t height1 = side_after(o.height), width1 = side_after(o.width);
  const DenseMap map{o.channels2, side_after(height1), side_after(width1)};
  append("conv1",
         [=] { return std::make_shared<ConvSegment>(o.channels, o.channels1, o.height, o.width); });
  append("conv2",
         [=] { return std::make_shared<ConvSegment>(o.channels1, o.channels2, height1, width1); });
  append("dense1", [=] {
    return std::make_shared<Dense>(map.channels * map.height * map.width, o.hidden,
                                   Dense::Activation::kRelu, DenseCut::kByOutputs, map);
  });
  append("dense2", [=] {
    return std::make_shared<Dense>(o.hidden, o.classes, Dense::Activation::kNone,
                                   DenseCut::kByInputs);
  });
}

}  // namespace stormo::model
