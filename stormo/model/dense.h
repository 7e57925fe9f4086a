#pragma once

#include <cstdint>

#include <torch/nn/modules/linear.h>

#include <stormo/model/chain.h>

namespace stormo::model {

/// A fully connected layer, with ReLU or without. Input [B, ...] is flattened to [B, in].
class Dense final : public Segment {
 public:
  enum class Activation : std::uint8_t { kNone, kRelu };

  Dense(std::int64_t in, std::int64_t out, Activation activation)
      : Segment("Dense"),
        flops_(2 * in * out),
        activation_(activation),
        linear_(register_module("linear", torch::nn::Linear(in, out))) {}

  torch::Tensor forward(torch::Tensor x) override {
    x = linear_(x.flatten(1));
    return activation_ == Activation::kRelu ? torch::relu(x) : x;
  }
  std::int64_t flops_per_sample() const override { return flops_; }

 private:
  std::int64_t flops_;
  Activation activation_;
  torch::nn::Linear linear_;
};

}  // namespace stormo::model
