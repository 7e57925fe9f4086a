#pragma once

#include <cstdint>

#include <stormo/model/chain.h>

namespace stormo::model {

/// A locally connected layer with ReLU: each place of the output reads a window of the input, as in
/// a convolution, but with weights of its own. Input [B, C, H, W], output [B, channels, h, w].
///
/// Ranks of a TensorParallelGroup have shares of the rows of the output, with their weights: there
/// is nothing of weights to add up. Each place of the input that another rank reads is sent there
/// once, and its gradient comes back once. J. Dean et al., "Large scale distributed deep networks",
/// NIPS 2012 (model parallelism of DistBelief).
class LocallyConnected2d final : public Segment {
 public:
  /// The input of ranks that compute it together.
  enum class Input : std::uint8_t {
    kWhole,  ///< each has all of it, as of samples
    kRows    ///< each has its share of the rows, as of the output of such a layer
  };

  /// `window`: what it reads. Throws Error (kInvalidArgument) unless the output has places.
  LocallyConnected2d(const plan::Window& window, std::int64_t channels, Input input);

  torch::Tensor forward(torch::Tensor x) override;
  std::int64_t flops_per_sample() const override;
  SplitForm split_form() const override;
  /// Rows and columns of the output.
  std::int64_t height() const { return rows_out(window_, window_.height); }
  std::int64_t width() const { return rows_out(window_, window_.width); }

 private:
  torch::Tensor read(const torch::Tensor& x) const;
  /// Numbers that one place of the output reads.
  std::int64_t inputs() const { return window_.channels * window_.kernel * window_.kernel; }

  plan::Window window_;
  std::int64_t channels_;
  Input input_;
  torch::Tensor weight_;  // [h, w, inputs, channels]
  torch::Tensor bias_;    // [h, w, channels]
};

/// Sizes of a LocalNet; all positive.
struct LocalNetOptions {
  std::int64_t channels = 1;  ///< of the input, like height and width
  std::int64_t height = 28;
  std::int64_t width = 28;
  std::int64_t classes = 10;
};

/// Five layers: locally connected ones with 5 x 5 windows and 8 channels at half the size of the
/// image, 3 x 3 and 8, 3 x 3 and 16 at a quarter of the size, 3 x 3 and 16, then a fully connected
/// one. Five Segments "local1" to "local4" and "dense". Input [B, channels, height, width], output
/// [B, classes] logits.
class LocalNet : public Chain {
 public:
  explicit LocalNet(const LocalNetOptions& options = {});
};

}  // namespace stormo::model
