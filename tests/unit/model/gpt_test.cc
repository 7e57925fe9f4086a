#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <stormo/model/generate.h>
#include <stormo/model/gpt.h>
#include <stormo/model/loss.h>

namespace stormo::model {
namespace {

GptOptions small() {
  return {.vocabulary = 13, .context = 8, .layers = 2, .heads = 2, .width = 16, .tied = true};
}

std::int64_t count_parameters(const Gpt& model) {
  std::int64_t n = 0;
  for (const auto& p : model.parameters()) n += p.numel();
  return n;
}

TEST(Gpt, CountsItsParametersAsTheFormulaSays) {
  for (const std::int64_t layers : {1, 3}) {
    for (const std::int64_t width : {8, 20}) {
      for (const bool tied : {true, false}) {
        const GptOptions o{.vocabulary = 17,
                           .context = 5,
                           .layers = layers,
                           .heads = 4,
                           .width = width,
                           .tied = tied};
        // embeddings, 12 width^2 and two norms per block, the last norm, the head of its own
        const std::int64_t expected = (17 + 5) * width + layers * (12 * width * width + 2 * width) +
                                      width + (tied ? 0 : 17 * width);
        EXPECT_EQ(count_parameters(Gpt(o)), expected);
      }
    }
  }
}

TEST(Gpt, CountsItsFlops) {
  const plan::ModelShape shape = Gpt(small()).shape();
  ASSERT_EQ(shape.segments.size(), 4u);
  EXPECT_EQ(shape.segments[0].name, "embedding");
  EXPECT_EQ(shape.segments[1].name, "block0");
  EXPECT_EQ(shape.segments[3].name, "head");
  // two per weight and token; q k^T and the weighted sum of v take 2 T^2 C each
  EXPECT_EQ(shape.segments[2].flops_per_sample, 2 * 8 * 12 * 16 * 16 + 4 * 8 * 8 * 16);
  EXPECT_EQ(shape.segments[3].flops_per_sample, 2 * 8 * 16 * 13);
}

TEST(Gpt, SaysThatItsHeadReadsTheEmbeddingsWeight) {
  GptOptions options = small();
  const plan::ModelShape tied = Gpt(options).shape();
  ASSERT_EQ(tied.segments.back().borrowed.size(), 1u);
  const int borrowed = tied.segments.back().borrowed.front();
  EXPECT_EQ(flatten(tied)[static_cast<std::size_t>(borrowed)]->elements, 13 * 16);
  options.tied = false;
  EXPECT_TRUE(Gpt(options).shape().segments.back().borrowed.empty());
}

TEST(Gpt, NeverLooksAhead) {
  torch::manual_seed(3);
  Gpt model(small());
  model.to(torch::kFloat64);
  const torch::NoGradGuard no_grad;
  const torch::Tensor text = torch::randint(13, {1, 8});
  const torch::Tensor logits = model.forward(text);
  for (std::int64_t changed = 0; changed < 8; ++changed) {
    torch::Tensor other = text.clone();
    other[0][changed] = (other[0][changed].item<std::int64_t>() + 1) % 13;
    const torch::Tensor difference = (model.forward(other) - logits).abs().amax({0, 2});
    for (std::int64_t t = 0; t < 8; ++t) {
      if (t < changed) {
        EXPECT_EQ(difference[t].item<double>(), 0) << changed << " " << t;
      } else {
        EXPECT_GT(difference[t].item<double>(), 1e-9) << changed << " " << t;
      }
    }
  }
}

// Oracle: the textbook formulas, one head and one position at a time.
TEST(Gpt, AgreesWithTheNaiveAlgorithm) {
  torch::manual_seed(4);
  const GptOptions o{.vocabulary = 7, .context = 5, .layers = 1, .heads = 2, .width = 6};
  Gpt model(o);
  model.to(torch::kFloat64);
  const torch::NoGradGuard no_grad;
  for (auto& p : model.parameters()) p.normal_();
  const auto w = model.named_parameters();
  const auto norm = [](const torch::Tensor& x, const torch::Tensor& gain) {
    const auto centred = x - x.mean(-1, true);
    return centred / (centred.square().mean(-1, true) + 1e-5).sqrt() * gain;
  };
  const torch::Tensor text = torch::randint(7, {5});
  torch::Tensor x = w["embedding.token"].index_select(0, text) + w["embedding.position"];
  const torch::Tensor qkv = norm(x, w["block0.attention_norm"]).matmul(w["block0.qkv"].t());
  torch::Tensor mixed = torch::zeros({5, 6}, torch::kFloat64);
  for (int head = 0; head < 2; ++head) {
    for (int t = 0; t < 5; ++t) {
      const auto part = [&](int which, int position) {
        return qkv[position].slice(0, which * 6 + head * 3, which * 6 + head * 3 + 3);
      };
      std::vector<double> weight;
      double total = 0;
      for (int s = 0; s <= t; ++s) {
        weight.push_back(std::exp(part(0, t).dot(part(1, s)).item<double>() / std::sqrt(3.0)));
        total += weight.back();
      }
      for (int s = 0; s <= t; ++s) {
        mixed[t].slice(0, head * 3, head * 3 + 3) +=
            part(2, s) * (weight[static_cast<std::size_t>(s)] / total);
      }
    }
  }
  x = x + mixed.matmul(w["block0.projection"].t());
  const torch::Tensor up = norm(x, w["block0.mlp_norm"]).matmul(w["block0.up"].t());
  const torch::Tensor gelu = 0.5 * up * (1 + torch::erf(up / std::sqrt(2.0)));
  x = x + gelu.matmul(w["block0.down"].t());
  const torch::Tensor expected = norm(x, w["head.norm"]).matmul(w["embedding.token"].t());
  EXPECT_TRUE(torch::allclose(model.forward(text.unsqueeze(0))[0], expected, 1e-9, 1e-9));
}

TEST(Gpt, TiedHeadFollowsTheEmbedding) {
  Gpt model(small());
  model.to(torch::kFloat64);
  const torch::NoGradGuard no_grad;
  const auto before = model.named_parameters();
  EXPECT_FALSE(before.contains("head.weight"));
  before["embedding.token"].zero_();
  EXPECT_EQ(model.forward(torch::zeros({1, 3}, torch::kInt64)).abs().max().item<double>(), 0);
}

TEST(Gpt, TiedGradientIsTheSumOfBothUses) {
  torch::manual_seed(5);
  GptOptions untied = small();
  untied.tied = false;
  Gpt tied_model(small()), untied_model(untied);
  tied_model.to(torch::kFloat64);
  untied_model.to(torch::kFloat64);
  const auto t = tied_model.named_parameters();
  const auto u = untied_model.named_parameters();
  {
    const torch::NoGradGuard no_grad;
    for (const auto& item : u) {
      item.value().copy_(t[item.key() == "head.weight" ? "embedding.token" : item.key()]);
    }
  }
  const torch::Tensor text = torch::randint(13, {2, 8}), answer = torch::randint(13, {2, 8});
  cross_entropy(tied_model.forward(text), answer).backward();
  cross_entropy(untied_model.forward(text), answer).backward();
  EXPECT_TRUE(torch::allclose(t["embedding.token"].grad(),
                              u["embedding.token"].grad() + u["head.weight"].grad(), 1e-10, 1e-12));
}

TEST(Gpt, StartsCloseToAUniformGuess) {
  torch::manual_seed(6);
  Gpt model({.vocabulary = 65, .context = 32, .layers = 4, .heads = 4, .width = 64});
  const torch::NoGradGuard no_grad;
  const auto loss =
      cross_entropy(model.forward(torch::randint(65, {4, 32})), torch::randint(65, {4, 32}));
  EXPECT_NEAR(loss.item<double>(), std::log(65.0), 0.1);
  const auto w = model.named_parameters();
  EXPECT_NEAR(w["block0.up"].std().item<double>(), 0.02, 0.001);
  EXPECT_NEAR(w["block0.down"].std().item<double>(), 0.02 / std::sqrt(8.0), 0.0005);
}

TEST(Gpt, RefusesASequenceLongerThanItsContext) {
  Gpt model(small());
  EXPECT_THROW(model.forward(torch::zeros({1, 9}, torch::kInt64)), c10::ValueError);
}

TEST(Generate, ContinuesThePromptBySeedAlone) {
  torch::manual_seed(7);
  Gpt model(small());
  const torch::Tensor prompt = torch::tensor({1, 2, 3}, torch::kInt64);
  const auto draw = [&](std::uint64_t seed) {
    Rng rng(seed, "sample");
    return generate(model, prompt, 20, {.temperature = 0.9, .top_k = 5}, rng);
  };
  const torch::Tensor text = draw(1);
  EXPECT_EQ(text.sizes(), at::IntArrayRef({23}));
  EXPECT_TRUE(text.slice(0, 0, 3).equal(prompt));
  EXPECT_GE(text.min().item<std::int64_t>(), 0);
  EXPECT_LT(text.max().item<std::int64_t>(), 13);
  torch::manual_seed(99);  // libtorch's generator plays no part
  EXPECT_TRUE(draw(1).equal(text));
  EXPECT_FALSE(draw(2).equal(text));
  EXPECT_TRUE(draw(1).slice(0, 0, 3).equal(prompt));
}

TEST(Generate, TakesTheLikeliestTokenAtTemperatureZeroAndAtTopOne) {
  torch::manual_seed(8);
  Gpt model(small());
  const torch::NoGradGuard no_grad;
  for (auto& p : model.parameters()) p.normal_(0, 0.5);
  const torch::Tensor prompt = torch::full({1}, 4, torch::kInt64);
  Rng a(1, "sample"), b(2, "sample");
  const torch::Tensor greedy = generate(model, prompt, 7, {.temperature = 0}, a);
  EXPECT_TRUE(greedy.equal(generate(model, prompt, 7, {.temperature = 1, .top_k = 1}, b)));
  for (std::int64_t end = 1; end < 8; ++end) {
    const torch::Tensor logits = model.forward(greedy.slice(0, 0, end).unsqueeze(0))[0][-1];
    EXPECT_EQ(greedy[end].item<std::int64_t>(), logits.argmax().item<std::int64_t>());
  }
}

TEST(Generate, DrawsInProportionToTheProbabilities) {
  Gpt model({.vocabulary = 3, .context = 4, .layers = 1, .heads = 1, .width = 4});
  const torch::NoGradGuard no_grad;
  // with a zero embedding all logits are equal: each token in a third of the draws
  model.named_parameters()["embedding.token"].zero_();
  Rng rng(9, "sample");
  const torch::Tensor text = generate(model, torch::zeros({1}, torch::kInt64), 900, {}, rng);
  const torch::Tensor counts = text.bincount();
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(counts[i].item<double>(), 300, 75);  // 5 sigma
}

}  // namespace
}  // namespace stormo::model
