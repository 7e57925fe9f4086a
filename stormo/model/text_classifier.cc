#include <stormo/model/text_classifier.h>

#include <string>

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <stormo/base/check.h>
#include <stormo/model/transformer_parts.h>

namespace stormo::model {
namespace {

constexpr std::int64_t kPadding = 0;

/// Mean of the vectors of each text's words. Costs as much as there are words: padding is taken
/// out.
class BagOfWords final : public Segment {
 public:
  explicit BagOfWords(const TextClassifierOptions& o)
      : Segment("BagOfWords"), flops_(o.context * o.width), sparse_(o.sparse) {
    const torch::Tensor vectors = normal({o.vocabulary, o.width});
    if (sparse_) {
      const auto table = register_module(
          "token",
          torch::nn::EmbeddingBag(
              torch::nn::EmbeddingBagOptions(o.vocabulary, o.width).sparse(true)._weight(vectors)));
      token_ = table->weight;
    } else {
      token_ = register_parameter("token", vectors);
    }
  }

  torch::Tensor forward(torch::Tensor ids) override {
    const torch::Tensor is_word = ids.ne(kPadding);
    const torch::Tensor lengths = is_word.sum(1);
    const torch::Tensor begin = lengths.cumsum(0) - lengths;
    constexpr std::int64_t kMean = 1;
    return std::get<0>(at::embedding_bag(token_, ids.masked_select(is_word), begin,
                                         /*scale_grad_by_freq=*/false, kMean, sparse_));
  }
  std::int64_t flops_per_sample() const override { return flops_; }

 private:
  std::int64_t flops_;
  bool sparse_;
  torch::Tensor token_;
};

/// Word embedding plus learned position, and the channel that marks words.
class MarkedEmbedding final : public Segment {
 public:
  explicit MarkedEmbedding(const TextClassifierOptions& o)
      : Segment("MarkedEmbedding"),
        flops_(o.context * o.width),
        vocabulary_(o.vocabulary),
        context_(o.context),
        token_(register_parameter("token", normal({o.vocabulary, o.width}))),
        position_(register_parameter("position", normal({o.context, o.width}))) {}

  torch::Tensor forward(torch::Tensor ids) override {
    const std::int64_t length = ids.size(1);
    TORCH_CHECK_VALUE(length <= context_, "a text of ", length,
                      " words is longer than the model's context of ", context_,
                      "; cut it or build the model with a larger context");
    const torch::Tensor x =
        embed(token_, ids, vocabulary_, ranks()) + position_.slice(0, 0, length);
    return torch::cat({x, ids.ne(kPadding).to(x.scalar_type()).unsqueeze(2)}, 2);
  }
  std::int64_t flops_per_sample() const override { return flops_; }
  SplitForm split_form() const override {
    return {.parameters = {{"token", {.units = vocabulary_}}}, .sums = {.forward = {flops_}}};
  }

 private:
  std::int64_t flops_;
  std::int64_t vocabulary_;
  std::int64_t context_;
  torch::Tensor token_, position_;
};

/// x += attention(norm(x)) over the words; x += mlp(norm(x)).
class EncoderBlock final : public Segment {
 public:
  explicit EncoderBlock(const TextClassifierOptions& o)
      : Segment("EncoderBlock"),
        head_width_(o.width / o.heads),
        split_form_(split_of_block(o.heads, o.width, o.context)),
        flops_(24 * o.context * o.width * o.width + 4 * o.context * o.context * o.width),
        attention_norm_(register_parameter("attention_norm", torch::ones({o.width}))),
        qkv_(register_parameter("qkv", normal({3 * o.width, o.width}))),
        projection_(register_parameter("projection", normal({o.width, o.width}))),
        mlp_norm_(register_parameter("mlp_norm", torch::ones({o.width}))),
        up_(register_parameter("up", normal({4 * o.width, o.width}))),
        down_(register_parameter("down", normal({o.width, 4 * o.width}))) {}

  torch::Tensor forward(torch::Tensor marked) override {
    const std::int64_t width = marked.size(2) - 1;
    const torch::Tensor mark = marked.narrow(2, width, 1);
    torch::Tensor x = marked.narrow(2, 0, width);
    x = x + attention(layer_norm(x, attention_norm_), mark);
    x = x + mlp(layer_norm(x, mlp_norm_));
    return torch::cat({x, mark}, 2);
  }
  std::int64_t flops_per_sample() const override { return flops_; }
  SplitForm split_form() const override { return split_form_; }

 private:
  torch::Tensor mlp(const torch::Tensor& x) const {
    const torch::Tensor hidden = at::gelu(at::linear(tensor::begin_split(x, ranks()), up_));
    return tensor::end_split(at::linear(hidden, down_), ranks());
  }

  torch::Tensor attention(const torch::Tensor& x, const torch::Tensor& mark) const {
    const std::int64_t batch = x.size(0), length = x.size(1);
    const std::int64_t heads = projection_.size(1) / head_width_;  // that are computed here
    // [B, T, 3 C] -> three times [B, heads, T, C / heads]
    const auto parts = at::linear(tensor::begin_split(x, ranks()), qkv_)
                           .view({batch, length, 3, heads, head_width_})
                           .permute({2, 0, 3, 1, 4})
                           .unbind(0);
    const torch::Tensor attended = mark.view({batch, 1, 1, length}).ne(0);
    const auto mixed = at::scaled_dot_product_attention(
        parts[0], parts[1], parts[2], attended.expand({batch, heads, length, length}));
    const torch::Tensor joined =
        mixed.transpose(1, 2).reshape({batch, length, projection_.size(1)});
    return tensor::end_split(at::linear(joined, projection_), ranks());
  }

  std::int64_t head_width_;
  SplitForm split_form_;
  std::int64_t flops_;
  torch::Tensor attention_norm_, qkv_, projection_, mlp_norm_, up_, down_;
};

/// Linear layer over the vector of a text; behind an encoder, over the mean of its words' vectors.
class ClassifierHead final : public Segment {
 public:
  explicit ClassifierHead(const TextClassifierOptions& o)
      : Segment("ClassifierHead"),
        encoded_(o.layers > 0),
        flops_(2 * o.width * o.classes),
        linear_(register_module("linear", torch::nn::Linear(o.width, o.classes))) {
    if (encoded_) norm_ = register_parameter("norm", torch::ones({o.width}));
  }

  torch::Tensor forward(torch::Tensor x) override {
    return linear_(encoded_ ? mean_of_words(x) : x);
  }
  std::int64_t flops_per_sample() const override { return flops_; }

 private:
  torch::Tensor mean_of_words(const torch::Tensor& marked) {
    const std::int64_t width = marked.size(2) - 1;
    const torch::Tensor mark = marked.narrow(2, width, 1);
    const torch::Tensor x = layer_norm(marked.narrow(2, 0, width), norm_);
    return (x * mark).sum(1) / mark.sum(1);
  }

  bool encoded_;
  std::int64_t flops_;
  torch::nn::Linear linear_;
  torch::Tensor norm_;
};

}  // namespace

TextClassifier::TextClassifier(const TextClassifierOptions& o) : Chain("TextClassifier") {
  STORMO_CHECK(o.layers == 0 || o.width % o.heads == 0, "width must be divisible by heads");
  if (o.layers == 0) {
    append("embedding", [=] { return std::make_shared<BagOfWords>(o); });
  } else {
    append("embedding", [=] { return std::make_shared<MarkedEmbedding>(o); });
  }
  for (std::int64_t i = 0; i < o.layers; ++i) {
    append("block" + std::to_string(i), [=] { return std::make_shared<EncoderBlock>(o); });
  }
  append("head", [=] { return std::make_shared<ClassifierHead>(o); });
}

}  // namespace stormo::model
