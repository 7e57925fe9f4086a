#include <stormo/model/locally_connected.h>

#include <cmath>
#include <string>

#include <ATen/ops/baddbmm.h>
#include <ATen/ops/im2col.h>
#include <torch/nn/init.h>

#include <stormo/model/dense.h>

namespace stormo::model {

LocallyConnected2d::LocallyConnected2d(const plan::Window& window, std::int64_t channels,
                                       Input input)
    : Segment("LocallyConnected2d"), window_(window), channels_(channels), input_(input) {
  if (height() < 1 || width() < 1) {
    throw Error(invalid_argument("LocallyConnected2d: a map of " + std::to_string(window.height) +
                                 " x " + std::to_string(window.width) +
                                 " places has no window of side " + std::to_string(window.kernel)));
  }
  weight_ = register_parameter("weight", torch::empty({height(), width(), inputs(), channels}));
  bias_ = register_parameter("bias", torch::empty({height(), width(), channels}));
  const double most = 1 / std::sqrt(static_cast<double>(inputs()));
  torch::nn::init::uniform_(weight_, -most, most);
  torch::nn::init::uniform_(bias_, -most, most);
}

/// What this rank's places of the output read, with zeros beyond the edges of the map.
torch::Tensor LocallyConnected2d::read(const torch::Tensor& x) const {
  const tensor::Line all;
  if (ranks() == nullptr) return halo_exchange(x, window_, all, all);
  const tensor::Line rows = ranks()->line();
  if (input_ == Input::kRows) return halo_exchange(x, window_, rows, all);
  const plan::Share mine = rows.share(height());
  return halo_exchange(x, window_, all, all)
      .narrow(2, mine.begin * window_.stride, (mine.size() - 1) * window_.stride + window_.kernel);
}

// For each place a product of [B, inputs] and [inputs, channels].
torch::Tensor LocallyConnected2d::forward(torch::Tensor x) {
  const std::int64_t batch = x.size(0), rows = weight_.size(0);
  const torch::Tensor windows = at::im2col(read(x), {window_.kernel, window_.kernel}, {1, 1},
                                           {0, 0}, {window_.stride, window_.stride})
                                    .permute({2, 0, 1});
  const torch::Tensor y =
      at::baddbmm(bias_.flatten(0, 1).unsqueeze(1), windows, weight_.flatten(0, 1));
  return torch::relu(y.permute({1, 2, 0}).reshape({batch, channels_, rows, width()}));
}

std::int64_t LocallyConnected2d::flops_per_sample() const {
  return 2 * inputs() * channels_ * height() * width();
}

SplitForm LocallyConnected2d::split_form() const {
  SplitForm out;
  out.parameters = {{"weight", {.units = height()}}, {"bias", {.units = height()}}};
  if (input_ == Input::kRows) out.windows = {window_};
  return out;
}

LocalNet::LocalNet(const LocalNetOptions& o) : Chain("LocalNet") {
  struct Layer {
    std::int64_t channels;
    int kernel, stride;
  };
  plan::Window window{.channels = o.channels, .height = o.height, .width = o.width};
  int number = 0;
  for (const auto& [channels, kernel, stride] :
       {Layer{8, 5, 2}, Layer{8, 3, 1}, Layer{16, 3, 2}, Layer{16, 3, 1}}) {
    window.kernel = kernel;
    window.stride = stride;
    window.padding = (kernel - 1) / 2;
    const auto input =
        number == 0 ? LocallyConnected2d::Input::kWhole : LocallyConnected2d::Input::kRows;
    const auto layer = append("local" + std::to_string(++number), [=, channels = channels] {
      return std::make_shared<LocallyConnected2d>(window, channels, input);
    });
    window.channels = channels;
    window.height = layer->height();
    window.width = layer->width();
  }
  const DenseMap map{window.channels, window.height, window.width};
  append("dense", [=] {
    return std::make_shared<Dense>(map.channels * map.height * map.width, o.classes,
                                   Dense::Activation::kNone, DenseCut::kByRows, map);
  });
}

}  // namespace stormo::model
