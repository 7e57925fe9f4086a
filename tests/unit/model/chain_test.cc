#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <stormo/model/cnn.h>
#include <stormo/model/dense.h>
#include <stormo/model/gpt.h>
#include <stormo/model/locally_connected.h>
#include <stormo/model/loss.h>
#include <stormo/model/mlp.h>
#include <stormo/model/resnet20.h>
#include <stormo/model/text_classifier.h>
#include <stormo/tensor/generator.h>
#include <stormo/tensor/memory.h>

namespace stormo::model {
namespace {

/// A segment's name, elements of its parameters and flops.
using Sizes = std::tuple<std::string, std::int64_t, std::int64_t>;
Sizes sizes_of(const plan::SegmentShape& s) {
  return {s.name, num_elements(s), s.flops_per_sample};
}
std::vector<Sizes> sizes_of(const plan::ModelShape& shape) {
  std::vector<Sizes> out;
  for (const plan::SegmentShape& s : shape.segments) out.push_back(sizes_of(s));
  return out;
}

/// What must hold for every model, with a batch that it accepts.
struct Sample {
  std::string name;
  std::function<std::shared_ptr<Chain>()> make;
  std::function<torch::Tensor(std::int64_t batch)> input;
  std::vector<std::int64_t> output_per_sample;
  std::int64_t classes;
};

std::vector<Sample> samples() {
  const auto image = [](std::int64_t batch) { return torch::randn({batch, 1, 28, 28}); };
  const auto text = [](std::int64_t batch) { return torch::randint(11, {batch, 6}); };
  const GptOptions gpt{.vocabulary = 11, .context = 6, .layers = 2, .heads = 2, .width = 8};
  const auto words = [](std::int64_t batch) {
    torch::Tensor ids = torch::randint(1, 11, {batch, 6});
    ids[0].slice(0, 4) = 0;  // a shorter text
    return ids;
  };
  const TextClassifierOptions bag{.vocabulary = 11, .classes = 3, .width = 8, .context = 6};
  TextClassifierOptions encoder = bag;
  encoder.layers = encoder.heads = 2;
  GptOptions untied = gpt;
  untied.tied = false;
  return {
      {"Mlp",
       [] {
         return std::make_shared<Mlp>(std::vector<std::int64_t>{784, 20, 10});
       },
       image,
       {10},
       10},
      {"Cnn",
       [] {
         return std::make_shared<Cnn>(CnnOptions{4, 6, 16, 10});
       },
       image,
       {10},
       10},
      {"ResNet20",
       [] {
         return std::make_shared<ResNet20>(
             ResNet20Options{.channels = 2, .height = 9, .width = 8, .classes = 4});
       },
       [](std::int64_t batch) {
         return torch::randn({batch, 2, 9, 8});
       },
       {4},
       4},
      {"BagOfWords", [bag] { return std::make_shared<TextClassifier>(bag); }, words, {3}, 3},
      {"TextEncoder",
       [encoder] { return std::make_shared<TextClassifier>(encoder); },
       words,
       {3},
       3},
      {"GptTied", [gpt] { return std::make_shared<Gpt>(gpt); }, text, {6, 11}, 11},
      {"GptUntied", [untied] { return std::make_shared<Gpt>(untied); }, text, {6, 11}, 11},
  };
}

class EveryModel : public ::testing::TestWithParam<Sample> {
 protected:
  void SetUp() override {
    torch::manual_seed(1);
    at::set_num_threads(1);
    chain_ = GetParam().make();
  }
  torch::Tensor target(std::int64_t batch) const {
    std::vector<std::int64_t> shape{batch};
    shape.insert(shape.end(), GetParam().output_per_sample.begin(),
                 GetParam().output_per_sample.end() - 1);
    return torch::randint(GetParam().classes, shape);
  }
  std::shared_ptr<Chain> chain_;
};

INSTANTIATE_TEST_SUITE_P(Models, EveryModel, ::testing::ValuesIn(samples()),
                         [](const auto& model) { return model.param.name; });

TEST_P(EveryModel, HasTheOutputShape) {
  for (const std::int64_t batch : {1, 2, 5}) {
    std::vector<std::int64_t> expected{batch};
    expected.insert(expected.end(), GetParam().output_per_sample.begin(),
                    GetParam().output_per_sample.end());
    EXPECT_EQ(chain_->forward(GetParam().input(batch)).sizes(), at::IntArrayRef(expected));
  }
}

TEST_P(EveryModel, IsTheCompositionOfItsSegments) {
  const torch::Tensor input = GetParam().input(3);
  torch::Tensor x = input;
  for (const auto& segment : chain_->segments()) x = segment->forward(x);
  EXPECT_TRUE(chain_->forward(input).equal(x));
}

TEST_P(EveryModel, ListsTheParametersOfItsSegmentsInOrder) {
  std::vector<torch::Tensor> expected;
  for (const auto& segment : chain_->segments()) {
    for (const auto& p : segment->parameters()) expected.push_back(p);
  }
  const auto actual = chain_->parameters();
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(actual[i].is_same(expected[i]));

  const plan::ModelShape shape = chain_->shape();
  ASSERT_EQ(shape.segments.size(), chain_->segments().size());
  std::int64_t elements = 0;
  for (const auto& segment : shape.segments) {
    elements += num_elements(segment);
    EXPECT_GT(segment.flops_per_sample, 0) << segment.name;
  }
  std::int64_t total = 0;
  for (const auto& p : actual) total += p.numel();
  EXPECT_EQ(elements, total);
  const auto named = chain_->named_parameters();
  const auto shapes = flatten(shape);
  ASSERT_EQ(shapes.size(), named.size());
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    EXPECT_EQ(*shapes[i], (plan::ParameterShape{named[i].key(), named[i].value().numel()}));
  }
}

TEST_P(EveryModel, GivesEveryParameterAGradient) {
  cross_entropy(chain_->forward(GetParam().input(4)), target(4)).backward();
  for (const auto& item : chain_->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_GT(item.value().grad().abs().sum().item<double>(), 0) << item.key();
  }
}

void expect_same_values_later(const std::function<std::shared_ptr<Chain>()>& make_model) {
  const auto make = [&](bool later) {
    torch::manual_seed(5);
    std::optional<ValuesLater> scope;
    if (later) scope.emplace();
    return make_model();
  };
  const auto wanted = make(false);
  const torch::Tensor random = torch::rand({3});
  const auto model = make(true);
  EXPECT_TRUE(torch::rand({3}).equal(random)) << "the generator goes on as if they had been made";
  EXPECT_TRUE(model->lacks_values());
  for (const auto& p : model->named_parameters()) {
    EXPECT_FALSE(tensor::has_memory(p.value())) << p.key();
    EXPECT_EQ(p.value().sizes(), wanted->named_parameters()[p.key()].sizes()) << p.key();
  }
  const torch::Tensor state = tensor::generator_state();
  // in any order
  for (std::size_t i = model->segments().size(); i-- > 0;) {
    EXPECT_TRUE(model->lacks_values(i));
    model->make_values(i);
    EXPECT_FALSE(model->lacks_values(i));
  }
  EXPECT_FALSE(model->lacks_values());
  EXPECT_TRUE(tensor::generator_state().equal(state));
  for (const auto& p : model->named_parameters()) {
    EXPECT_TRUE(p.value().equal(wanted->named_parameters()[p.key()])) << p.key();
    EXPECT_TRUE(p.value().requires_grad()) << p.key();
  }
}

TEST_P(EveryModel, MakesItsValuesLaterBitForBit) { expect_same_values_later(GetParam().make); }

TEST(LocalNet, MakesItsValuesLaterBitForBit) {
  expect_same_values_later([] { return std::make_shared<LocalNet>(); });
}

TEST(TextClassifier, MakesASparseTableLaterBitForBit) {
  expect_same_values_later([] {
    return std::make_shared<TextClassifier>(TextClassifierOptions{
        .vocabulary = 11, .classes = 3, .width = 8, .context = 6, .sparse = true});
  });
}

TEST_P(EveryModel, ConvertsAModelThatLacksValues) {
  torch::manual_seed(5);
  const auto wanted = GetParam().make();
  wanted->to(torch::kFloat64);
  torch::manual_seed(5);
  const auto model = [] {
    const ValuesLater later;
    return GetParam().make();
  }();
  model->to(torch::kFloat64);
  model->make_values();
  for (const auto& p : model->named_parameters()) {
    EXPECT_TRUE(p.value().equal(wanted->named_parameters()[p.key()])) << p.key();
  }
}

TEST_P(EveryModel, RunsInFloat64) {
  chain_->to(torch::kFloat64);
  torch::Tensor input = GetParam().input(2);
  if (input.is_floating_point()) input = input.to(torch::kFloat64);
  const torch::Tensor loss = cross_entropy(chain_->forward(input), target(2));
  EXPECT_EQ(loss.scalar_type(), torch::kFloat64);
  loss.backward();
  for (const auto& p : chain_->parameters()) EXPECT_EQ(p.grad().scalar_type(), torch::kFloat64);
}

TEST_P(EveryModel, LearnsATinyBatchByHeart) {
  const torch::Tensor input = GetParam().input(4);
  // a text must be learnable: the answer is a function of the token
  const torch::Tensor answer = GetParam().output_per_sample.size() == 1
                                   ? target(4)
                                   : (3 * input + 1).remainder(GetParam().classes);
  torch::optim::AdamW optimizer(chain_->parameters(), torch::optim::AdamWOptions(1e-2));
  const double first = cross_entropy(chain_->forward(input), answer).item<double>();
  for (int step = 0; step < 200; ++step) {
    optimizer.zero_grad();
    cross_entropy(chain_->forward(input), answer).backward();
    optimizer.step();
  }
  const torch::Tensor output = chain_->forward(input);
  EXPECT_LT(cross_entropy(output, answer).item<double>(), first / 10);
  EXPECT_EQ(count_correct(output, answer), answer.numel());
}

TEST(Chain, HasTheValuesOfSegmentsThatWereMadeOutside) {
  struct Net : Chain {
    Net() : Chain("Net") {
      append("made", std::make_shared<Dense>(3, 4, Dense::Activation::kRelu));
      append("left", [] { return std::make_shared<Dense>(4, 2, Dense::Activation::kNone); });
    }
  };
  const ValuesLater later;
  const Net net;
  EXPECT_FALSE(net.lacks_values(0));
  EXPECT_TRUE(net.lacks_values(1));
}

TEST(Chain, KeepsTheFirstValuesThatFit) {
  torch::manual_seed(5);
  const Mlp wanted({3, 4, 2, 2});
  torch::manual_seed(5);
  const auto make = [](std::int64_t kept) {
    const ValuesLater later(kept);
    return std::make_shared<Mlp>(std::vector<std::int64_t>{3, 4, 2, 2});
  };
  const std::int64_t first = 4 * (3 * 4 + 4), second = 4 * (4 * 2 + 2);
  const auto model = make(first + second);
  EXPECT_FALSE(model->lacks_values(0));
  EXPECT_TRUE(model->lacks_values(1));
  EXPECT_TRUE(model->lacks_values(2));
  model->make_values();
  for (const auto& p : model->named_parameters()) {
    EXPECT_TRUE(p.value().equal(wanted.named_parameters()[p.key()])) << p.key();
  }
  EXPECT_FALSE(make(1 << 20)->lacks_values());
}

TEST(Mlp, CountsItsParametersAndFlops) {
  const plan::ModelShape shape = Mlp({784, 512, 512, 10}).shape();
  const std::vector<Sizes> expected = {{"layer0", 784 * 512 + 512, 2 * 784 * 512},
                                       {"layer1", 512 * 512 + 512, 2 * 512 * 512},
                                       {"layer2", 512 * 10 + 10, 2 * 512 * 10}};
  EXPECT_EQ(sizes_of(shape), expected);
}

TEST(Cnn, CountsItsParametersAndFlops) {
  const plan::ModelShape shape = Cnn({.channels1 = 3, .channels2 = 5, .hidden = 7}).shape();
  const std::vector<Sizes> expected = {{"conv1", 25 * 3 + 3, 2 * 25 * 3 * 24 * 24},
                                       {"conv2", 25 * 3 * 5 + 5, 2 * 25 * 3 * 5 * 8 * 8},
                                       {"dense1", 5 * 4 * 4 * 7 + 7, 2 * 5 * 4 * 4 * 7},
                                       {"dense2", 7 * 10 + 10, 2 * 7 * 10}};
  EXPECT_EQ(sizes_of(shape), expected);
}

TEST(ResNet20, CountsItsParametersAndFlops) {
  // He et al. 2016, section 4.2: 0.27 million parameters; 41 million multiply-adds per image
  const plan::ModelShape shape = ResNet20().shape();
  ASSERT_EQ(shape.segments.size(), 11u);
  std::int64_t parameters = 0, flops = 0;
  for (const auto& segment : shape.segments) {
    parameters += num_elements(segment);
    flops += segment.flops_per_sample;
  }
  EXPECT_EQ(parameters, 269722);
  EXPECT_NEAR(static_cast<double>(flops), 2 * 40.8e6, 2 * 0.3e6);
  EXPECT_EQ(sizes_of(shape.segments[4]), (Sizes{"block3", 9 * (16 * 32 + 32 * 32) + 4 * 32,
                                                2 * 9 * (16 * 32 + 32 * 32) * 16 * 16}));
}

TEST(ResNet20, KeepsRunningStatisticsInBuffersAndUsesThemInEvaluation) {
  torch::manual_seed(1);
  ResNet20 model;
  EXPECT_EQ(model.named_buffers().size(), 3u * 19);  // mean, variance and count of each norm
  const torch::Tensor one = torch::randn({1, 3, 32, 32});
  for (int step = 0; step < 3; ++step) model.forward(torch::randn({8, 3, 32, 32}));
  model.eval();
  const torch::Tensor alone = model.forward(one);
  const torch::Tensor among = model.forward(torch::cat({torch::randn({5, 3, 32, 32}), one}));
  EXPECT_TRUE(among[5].allclose(alone[0], 1e-4, 1e-5));
}

TEST(TextClassifier, DoesNotSeePadding) {
  torch::manual_seed(1);
  for (const std::int64_t layers : {0, 2}) {
    TextClassifier model({.vocabulary = 9, .width = 8, .layers = layers, .heads = 2});
    model.to(torch::kFloat64);
    const torch::Tensor text = torch::tensor({{3, 1, 8}}, torch::kInt64);
    const torch::Tensor longer =
        torch::tensor({{4, 4, 4, 5, 6, 7}, {3, 1, 8, 0, 0, 0}}, torch::kInt64);
    EXPECT_TRUE(model.forward(longer)[1].allclose(model.forward(text)[0], 1e-12, 1e-12)) << layers;
    EXPECT_EQ(model.forward(torch::zeros({0, 4}, torch::kInt64)).sizes(), at::IntArrayRef({0, 2}));
  }
}

TEST(TextClassifier, ASparseBagOfWordsDiffersInTheFormOfItsGradientAlone) {
  const torch::Tensor words = torch::tensor({{5, 2, 5, 7}, {2, 8, 0, 0}}, torch::kInt64);
  const auto train = [&](bool sparse) {
    torch::manual_seed(1);
    TextClassifier model({.vocabulary = 9, .classes = 3, .width = 4, .sparse = sparse});
    const torch::Tensor out = model.forward(words);
    out.square().sum().backward();
    const auto p = model.named_parameters();
    return std::pair(out, p[sparse ? "embedding.token.weight" : "embedding.token"].grad());
  };
  const auto [dense_out, dense] = train(false);
  const auto [sparse_out, rows] = train(true);
  EXPECT_TRUE(sparse_out.equal(dense_out));
  ASSERT_TRUE(rows.is_sparse());
  EXPECT_EQ(rows.coalesce().indices().size(1), 4);
  EXPECT_TRUE(rows.to_dense().allclose(dense, 1e-6, 1e-7));
}

TEST(TextClassifier, BagOfWordsIsALinearLayerOverTheMeanVector) {
  torch::manual_seed(1);
  TextClassifier model({.vocabulary = 9, .classes = 3, .width = 4});
  const auto p = model.named_parameters();
  const torch::Tensor words = torch::tensor({5, 2, 5, 7}, torch::kInt64);
  const torch::Tensor mean = p["embedding.token"].index_select(0, words).mean(0);
  const torch::Tensor expected = at::linear(mean, p["head.linear.weight"], p["head.linear.bias"]);
  EXPECT_TRUE(model.forward(words.unsqueeze(0))[0].allclose(expected, 1e-5, 1e-6));
}

TEST(CrossEntropy, IsTheMeanOverAllPositions) {
  const torch::Tensor logits = torch::randn({3, 4, 5}, torch::kFloat64);
  const torch::Tensor answer = torch::randint(5, {3, 4});
  double sum = 0;
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 4; ++j) {
      double total = 0;
      for (int k = 0; k < 5; ++k) total += std::exp(logits[i][j][k].item<double>());
      sum += std::log(total) - logits[i][j][answer[i][j].item<std::int64_t>()].item<double>();
    }
  }
  EXPECT_NEAR(cross_entropy(logits, answer).item<double>(), sum / 12, 1e-12);
}

TEST(CountCorrect, CountsTheLargestLogits) {
  const torch::Tensor logits = torch::tensor({{1.0, 3.0}, {5.0, 2.0}, {0.0, 1.0}});
  EXPECT_EQ(count_correct(logits, torch::tensor({1, 0, 0})), 2);
  EXPECT_EQ(count_correct(logits.unsqueeze(0), torch::tensor({{1, 0, 1}})), 3);
}

}  // namespace
}  // namespace stormo::model
