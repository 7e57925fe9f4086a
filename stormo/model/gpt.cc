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
        vocabulary_(o.vocabulary),
        context_(o.context),
        token_(register_parameter("token", normal({o.vocabulary, o.width}))),
        position_(register_parameter("position", normal({o.context, o.width}))) {}

  torch::Tensor forward(torch::Tensor x) override {
    const std::int64_t here = x.size(1);
    const std::int64_t length = context() == nullptr ? here : here * context()->part().parts;
    TORCH_CHECK_VALUE(length <= context_, "a sequence of ", length,
                      " tokens is longer than the model's context of ", context_,
                      "; cut it or build the model with a larger context");
    const torch::Tensor words = embed(token_, x, vocabulary_, ranks());
    const torch::Tensor numbers = positions(words.size(1));
    return words +
           (numbers.defined() ? position_.index_select(0, numbers) : position_.slice(0, 0, length));
  }
  std::int64_t flops_per_sample() const override { return flops_; }
  SplitForm split_form() const override {
    return {.parameters = {{"token", {.units = vocabulary_}}}, .sums = {.forward = {flops_}}};
  }
  ContextForm context_form() const override { return {.positions = context_}; }
  const torch::Tensor& token() const { return token_; }

 private:
  std::int64_t flops_;
  std::int64_t vocabulary_;
  std::int64_t context_;
  torch::Tensor token_;
  torch::Tensor position_;
};

/// x += attention(norm(x)); x += mlp(norm(x)).
class Block final : public Segment {
 public:
  explicit Block(const GptOptions& o)
      : Segment("Block"),
        head_width_(o.width / o.heads),
        flops_(flops(o)),
        split_form_(split_of_block(o.heads, o.width, o.context)),
        context_form_{.positions = o.context, .keys = 2 * o.context * o.width} {
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
    return x + mlp(layer_norm(x, mlp_norm_));
  }
  std::int64_t flops_per_sample() const override { return flops_; }
  SplitForm split_form() const override { return split_form_; }
  ContextForm context_form() const override { return context_form_; }

 private:
  static std::int64_t flops(const GptOptions& o) {
    const std::int64_t weights = 12 * o.width * o.width;  // 3 + 1 + 4 + 4 matrices of width^2
    return 2 * o.context * weights + 4 * o.context * o.context * o.width;
  }

  torch::Tensor mlp(const torch::Tensor& x) const {
    const torch::Tensor hidden = at::gelu(at::linear(tensor::begin_split(x, ranks()), up_));
    return tensor::end_split(at::linear(hidden, down_), ranks());
  }

  torch::Tensor attention(const torch::Tensor& x) const {
    const torch::Tensor qkv = at::linear(tensor::begin_split(x, ranks()), qkv_);
    const std::int64_t batch = qkv.size(0), length = qkv.size(1);
    const std::int64_t heads = projection_.size(1) / head_width_;  // that are computed here
    // [B, T, 3 C] -> three times [B, heads, T, C / heads]
    const auto parts =
        qkv.view({batch, length, 3, heads, head_width_}).permute({2, 0, 3, 1, 4}).unbind(0);
    const torch::Tensor mixed =
        tensor::attention(parts[0], parts[1], parts[2], /*causal=*/true, context());
    const torch::Tensor joined =
        mixed.transpose(1, 2).reshape({batch, length, projection_.size(1)});
    return tensor::end_split(at::linear(joined, projection_), ranks());
  }

  std::int64_t head_width_;
  std::int64_t flops_;
  SplitForm split_form_;
  ContextForm context_form_;
  torch::Tensor attention_norm_, qkv_, projection_, mlp_norm_, up_, down_;
};

/// Final norm and projection onto the vocabulary.
class Head final : public Segment {
 public:
  /// `tied` is the weight to share, undefined for one of its own. Being the same tensor, it follows
  /// every in-place change and every Module::to() of its owner.
  Head(const GptOptions& o, const torch::Tensor& tied)
      : Segment("Head"), options_(o), tied_(tied.defined()) {
    norm_ = register_parameter("norm", torch::ones({o.width}));
    weight_ = tied.defined() ? tied : register_parameter("weight", normal({o.vocabulary, o.width}));
  }

  torch::Tensor forward(torch::Tensor x) override {
    return at::linear(tensor::begin_split(layer_norm(x, norm_), ranks()), weight_);
  }
  std::int64_t flops_per_sample() const override {
    return 2 * options_.context * options_.width * options_.vocabulary;
  }
  // By the vocabulary, as the embedding. The loss adds up as split_cross_entropy() says.
  SplitForm split_form() const override {
    SplitForm out{.parameters = {},
                  .sums = {.backward = {options_.context * options_.width},
                           .loss = {options_.context, 2 * options_.context}},
                  .splits_output = true};
    if (!tied_) out.parameters = {{"weight", {.units = options_.vocabulary}}};
    return out;
  }
  ContextForm context_form() const override { return {.positions = options_.context}; }
  std::vector<torch::Tensor> borrowed_parameters() const override {
    return tied_ ? std::vector<torch::Tensor>{weight_} : std::vector<torch::Tensor>();
  }

 private:
  GptOptions options_;
  bool tied_;
  torch::Tensor norm_, weight_;
};

}  // namespace

Gpt::Gpt(const GptOptions& o) : Chain("Gpt"), options_(o) {
  STORMO_CHECK(o.heads > 0 && o.width % o.heads == 0, "width must be divisible by heads");
  const auto embedding = append("embedding", [o] { return std::make_shared<Embedding>(o); });
  for (std::int64_t i = 0; i < o.layers; ++i) {
    append("block" + std::to_string(i), [o] { return std::make_shared<Block>(o); });
  }
  const torch::Tensor tied = o.tied ? embedding->token() : torch::Tensor();
  append("head", [o, tied] { return std::make_shared<Head>(o, tied); });
}

}  // namespace stormo::model
