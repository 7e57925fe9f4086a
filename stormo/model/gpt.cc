#include <stormo/model/gpt.h>

#include <cmath>
#include <string>
#include <utility>

#include <stormo/base/check.h>
#include <stormo/model/transformer_parts.h>

namespace stormo::model {
namespace {

/// Token embedding plus learned position embedding.
class Embedding final : public Segment {
 public:
  explicit Embedding(const GptOptions& o)
      : Segment("Embedding"),
        flops_(o.context * o.width),
        context_(o.context),
        token_(register_parameter("token", normal({o.vocabulary, o.width}))),
        position_(register_parameter("position", normal({o.context, o.width}))) {}

  torch::Tensor forward(torch::Tensor x) override {
    const std::int64_t length = x.size(1);
    TORCH_CHECK_VALUE(length <= context_, "a sequence of ", length,
                      " tokens is longer than the model's context of ", context_,
                      "; cut it or build the model with a larger context");
    return at::embedding(token_, x) + position_.slice(0, 0, length);
  }
  std::int64_t flops_per_sample() const override { return flops_; }
  const torch::Tensor& token() const { return token_; }

 private:
  std::int64_t flops_;
  std::int64_t context_;
  torch::Tensor token_;
  torch::Tensor position_;
};

/// x += attention(norm(x)); x += mlp(norm(x)).
class Block final : public Segment {
 public:
  explicit Block(const GptOptions& o) : Segment("Block"), heads_(o.heads), flops_(flops(o)) {
    // As in GPT-2, so that the sum over all residual branches keeps the scale of one.
    const double residual = kTransformerStddev / std::sqrt(2.0 * static_cast<double>(o.layers));
    const std::int64_t c = o.width;
    attention_norm_ = register_parameter("attention_norm", torch::ones({c}));
    qkv_ = register_parameter("qkv", normal({3 * c, c}));
    projection_ = register_parameter("projection", normal({c, c}, residual));
    mlp_norm_ = register_parameter("mlp_norm", torch::ones({c}));
    up_ = register_parameter("up", normal({4 * c, c}));
    down_ = register_parameter("down", normal({c, 4 * c}, residual));
  }

  torch::Tensor forward(torch::Tensor x) override {
    x = x + attention(layer_norm(x, attention_norm_));
    return x + at::linear(at::gelu(at::linear(layer_norm(x, mlp_norm_), up_)), down_);
  }
  std::int64_t flops_per_sample() const override { return flops_; }

 private:
  static std::int64_t flops(const GptOptions& o) {
    const std::int64_t weights = 12 * o.width * o.width;  // 3 + 1 + 4 + 4 matrices of width^2
    return 2 * o.context * weights + 4 * o.context * o.context * o.width;
  }

  torch::Tensor attention(const torch::Tensor& x) {
    const std::int64_t batch = x.size(0), length = x.size(1), width = x.size(2);
    // [B, T, 3 C] -> three times [B, heads, T, C / heads]
    const auto parts = at::linear(x, qkv_)
                           .view({batch, length, 3, heads_, width / heads_})
                           .permute({2, 0, 3, 1, 4})
                           .unbind(0);
    const auto mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {},
                                                        /*dropout_p=*/0.0, /*is_causal=*/true);
    return at::linear(mixed.transpose(1, 2).reshape({batch, length, width}), projection_);
  }

  std::int64_t heads_;
  std::int64_t flops_;
  torch::Tensor attention_norm_, qkv_, projection_, mlp_norm_, up_, down_;
};

/// Final norm and projection onto the vocabulary.
class Head final : public Segment {
 public:
  /// `tied` is the weight to share, undefined for one of its own. Being the same tensor, it follows
  /// every in-place change and every Module::to() of its owner.
  Head(const GptOptions& o, const torch::Tensor& tied)
      : Segment("Head"), flops_(2 * o.context * o.width * o.vocabulary), tied_(tied.defined()) {
    norm_ = register_parameter("norm", torch::ones({o.width}));
    weight_ = tied.defined() ? tied : register_parameter("weight", normal({o.vocabulary, o.width}));
  }

  torch::Tensor forward(torch::Tensor x) override {
    return at::linear(layer_norm(x, norm_), weight_);
  }
  std::int64_t flops_per_sample() const override { return flops_; }
  std::vector<torch::Tensor> borrowed_parameters() const override {
    return tied_ ? std::vector<torch::Tensor>{weight_} : std::vector<torch::Tensor>();
  }

 private:
  std::int64_t flops_;
  bool tied_;
  torch::Tensor norm_, weight_;
};

}  // namespace

Gpt::Gpt(const GptOptions& o) : Chain("Gpt"), options_(o) {
  STORMO_CHECK(o.heads > 0 && o.width % o.heads == 0, "width must be divisible by heads");
  const auto embedding = std::make_shared<Embedding>(o);
  append("embedding", embedding);
  for (std::int64_t i = 0; i < o.layers; ++i) {
    append("block" + std::to_string(i), std::make_shared<Block>(o));
  }
  append("head", std::make_shared<Head>(o, o.tied ? embedding->token() : torch::Tensor()));
}

}  // namespace stormo::model
