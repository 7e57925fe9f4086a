// Muon: matrices of hidden layers by its formula, all else by AdamW; on one rank, on replicas, and
// on ranks that meet rarely.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/model/gpt.h>
#include <stormo/model/mlp.h>
#include <stormo/train/optimizer/fused_optimizer.h>
#include <stormo/train/planner/planned_step.h>
#include <stormo/train/step/strategy.h>
#include <stormo/train/store/averaged_state.h>

#include "trainer_run.h"

namespace stormo::train {
namespace {

using AdjustLr = OptimizerOptions::AdjustLr;
using Kind = OptimizerOptions::Kind;
using test::distance;
using test::Seeded;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr OptimizerOptions kMuon{
    .kind = Kind::kMuon, .lr = 0.02, .momentum = 0.95, .nesterov = true, .weight_decay = 0.1};

using Matrix = std::vector<std::vector<double>>;

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix out(a.size(), std::vector<double>(b[0].size()));
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t k = 0; k < b.size(); ++k) {
      for (std::size_t j = 0; j < b[0].size(); ++j) out[i][j] += a[i][k] * b[k][j];
    }
  }
  return out;
}

/// x * a + y * b
Matrix sum(double x, const Matrix& a, double y, const Matrix& b) {
  Matrix out = a;
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < a[0].size(); ++j) out[i][j] = x * a[i][j] + y * b[i][j];
  }
  return out;
}

Matrix transposed(const Matrix& a) {
  Matrix out(a[0].size(), std::vector<double>(a.size()));
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < a[0].size(); ++j) out[j][i] = a[i][j];
  }
  return out;
}

Matrix orthogonalised(Matrix x) {
  if (x.size() > x[0].size()) return transposed(orthogonalised(transposed(x)));
  double squares = 0;
  for (const auto& row : x) {
    for (const double v : row) squares += v * v;
  }
  x = sum(1 / std::max(std::sqrt(squares), 1e-7), x, 0, x);
  for (int i = 0; i < 5; ++i) {
    const Matrix a = product(x, transposed(x));
    x = sum(3.4445, x, 1, product(sum(-4.7750, a, 2.0315, product(a, a)), x));
  }
  return x;
}

/// The formula of torch.optim.Muon without its rounding to bfloat16.
struct Formula {
  Matrix weights, momentum;
  void step(const OptimizerOptions& o, const Matrix& g) {
    momentum = sum(o.momentum, momentum, 1 - o.momentum, g);
    const Matrix u = o.nesterov ? sum(1 - o.momentum, g, o.momentum, momentum) : momentum;
    const auto m = static_cast<double>(g.size()), n = static_cast<double>(g[0].size());
    const double factor = o.adjust_lr == AdjustLr::kOriginal ? std::sqrt(std::max(1.0, m / n))
                                                             : 0.2 * std::sqrt(std::max(m, n));
    weights = sum(1 - o.lr * o.weight_decay, weights, -o.lr * factor, orthogonalised(u));
  }
};

Matrix matrix_of(const torch::Tensor& t) {
  const torch::Tensor values = t.detach().to(torch::kFloat64).contiguous();
  const auto at = values.accessor<double, 2>();
  Matrix out(static_cast<std::size_t>(t.size(0)));
  for (std::int64_t i = 0; i < t.size(0); ++i) {
    for (std::int64_t j = 0; j < t.size(1); ++j) {
      out[static_cast<std::size_t>(i)].push_back(at[i][j]);
    }
  }
  return out;
}

double distance_of(const torch::Tensor& t, const Matrix& m) {
  const Matrix ours = matrix_of(t);
  double most = 0;
  for (std::size_t i = 0; i < m.size(); ++i) {
    for (std::size_t j = 0; j < m[0].size(); ++j)
      most = std::max(most, std::abs(ours[i][j] - m[i][j]));
  }
  return most;
}

/// The optimizer of one matrix of a hidden layer.
FusedOptimizer optimizer_of(const OptimizerOptions& options, const torch::Tensor& matrix) {
  return {options, {{.name = "w", .tensor = matrix, .hidden = true}}};
}

void expect_formula(const OptimizerOptions& options, std::pair<std::int64_t, std::int64_t> shape,
                    torch::ScalarType type, double most) {
  const Seeded seeded(7);
  const torch::Tensor w = torch::randn({shape.first, shape.second}, type);
  Formula formula{.weights = matrix_of(w), .momentum = matrix_of(torch::zeros_like(w))};
  FusedOptimizer optimizer = optimizer_of(options, w);
  for (int step = 0; step < 5; ++step) {
    w.mutable_grad() = torch::randn_like(w);
    formula.step(options, matrix_of(w.grad()));
    w.mutable_grad().mul_(4);
    ASSERT_TRUE(optimizer.step({.lr = options.lr, .gradient_scale = 0.25}, 0, 1).ok());
    EXPECT_LT(distance_of(w, formula.weights), most)
        << shape.first << " x " << shape.second << ", step " << step;
  }
}

TEST(Muon, FollowsItsFormula) {
  for (const auto& [m, n] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {4, 4}, {7, 3}, {3, 11}, {1, 5}, {5, 1}, {33, 17}}) {
    for (const AdjustLr adjust : {AdjustLr::kOriginal, AdjustLr::kMatchRmsAdamW}) {
      OptimizerOptions options = kMuon;
      options.adjust_lr = adjust;
      for (const bool nesterov : {false, true}) {
        options.nesterov = nesterov;
        expect_formula(options, {m, n}, torch::kFloat64, 1e-10);
        expect_formula(options, {m, n}, torch::kFloat32, 1e-5);
      }
    }
  }
}

TEST(Muon, MovesByAMatrixThatIsNearlyOrthogonal) {
  for (const auto& [m, n] : {std::pair(48, 20), {20, 48}, {30, 30}}) {
    const Seeded seeded(3);
    const torch::Tensor w = torch::zeros({m, n}, torch::kFloat64);
    FusedOptimizer optimizer =
        optimizer_of({.kind = Kind::kMuon, .momentum = 0.9, .adjust_lr = AdjustLr::kOriginal}, w);
    w.mutable_grad() = 100 * torch::randn_like(w);
    ASSERT_TRUE(optimizer.step(1).ok());
    const double factor = std::sqrt(std::max(1.0, static_cast<double>(m) / n));
    const torch::Tensor values = torch::linalg_svdvals(w) / factor;
    EXPECT_GT(values.max().item<double>(), 0.9);
    EXPECT_LT(values.max().item<double>(), 1.3);
    // the smallest of a square matrix may be near 0
    EXPECT_GT((m == n ? values.median() : values.min()).item<double>(), 0.6);
  }
}

TEST(Muon, LeavesAMatrixWithoutAGradientAlone) {
  const torch::Tensor w = torch::ones({3, 2}, torch::kFloat64);
  FusedOptimizer optimizer = optimizer_of(kMuon, w);
  ASSERT_TRUE(optimizer.step(1).ok());
  EXPECT_TRUE(torch::equal(w, torch::ones({3, 2}, torch::kFloat64)));
  w.mutable_grad() = torch::zeros_like(w);  // has no direction
  ASSERT_TRUE(optimizer.step(1).ok());
  EXPECT_TRUE(torch::allclose(w, torch::full({3, 2}, 0.9, torch::kFloat64)));  // decays
}

TEST(Muon, TakesStridesAnd16Bits) {
  const Seeded seeded(9);
  const torch::Tensor plain = torch::randn({6, 4}).to(torch::kBFloat16).to(torch::kFloat32);
  const torch::Tensor strided = plain.t().contiguous().t(), half = plain.to(torch::kBFloat16);
  ASSERT_FALSE(strided.is_contiguous());
  FusedOptimizer of_plain = optimizer_of(kMuon, plain), of_strided = optimizer_of(kMuon, strided),
                 of_half = optimizer_of(kMuon, half);
  for (int step = 0; step < 3; ++step) {
    half.mutable_grad() = torch::randn({6, 4}).to(torch::kBFloat16);
    plain.mutable_grad() = strided.mutable_grad() = half.grad().to(torch::kFloat32);
    for (FusedOptimizer* o : {&of_plain, &of_strided, &of_half}) ASSERT_TRUE(o->step(0.02).ok());
  }
  EXPECT_TRUE(torch::allclose(plain, strided, 1e-5, 1e-6));
  EXPECT_TRUE(torch::equal(half, plain.to(torch::kBFloat16)));  // of a master in float32
}

std::shared_ptr<model::Mlp> mlp() {
  const Seeded seeded(3);
  auto net = std::make_shared<model::Mlp>(std::vector<std::int64_t>{20, 32, 24, 3});
  net->to(torch::kFloat64);
  return net;
}

std::vector<std::string> hidden_in(const torch::nn::Module& module) {
  std::vector<std::string> out;
  for (const NamedParameter& p : trainable_parameters(module)) {
    if (p.hidden) out.push_back(p.name);
  }
  return out;
}

TEST(Muon, HiddenMatricesAreThoseBetweenTheFirstAndTheLastSegment) {
  EXPECT_THAT(hidden_in(*mlp()), ElementsAre("layer1.linear.weight"));
  const auto gpt = std::make_shared<model::Gpt>(
      model::GptOptions{.vocabulary = 11, .context = 6, .layers = 1, .heads = 2, .width = 8});
  EXPECT_THAT(hidden_in(*gpt),
              ElementsAre("block0.qkv", "block0.projection", "block0.up", "block0.down"));
  EXPECT_THAT(hidden_in(*test::make_toy_module(3)), ElementsAre());
}

void set_gradients(const model::Mlp& net, std::uint64_t seed) {
  const Seeded seeded(seed);
  for (const torch::Tensor& p : net.parameters()) p.mutable_grad() = torch::randn_like(p);
}

TEST(Muon, UpdatesAllElseByAdamW) {
  const auto a = mlp(), b = mlp();
  OptimizerOptions adamw = kMuon;
  adamw.kind = Kind::kAdamW;
  const auto muon = make_optimizer(kMuon, trainable_parameters(*a)),
             rest = make_optimizer(adamw, trainable_parameters(*b));
  for (std::uint64_t step = 0; step < 3; ++step) {
    set_gradients(*a, step);
    set_gradients(*b, step);
    EXPECT_EQ(*muon->gradient_norm(), *rest->gradient_norm());
    ASSERT_TRUE(muon->step(0.02).ok());
    ASSERT_TRUE(rest->step(0.02).ok());
  }
  for (const auto& p : a->named_parameters()) {
    const bool hidden = p.key() == "layer1.linear.weight";
    EXPECT_EQ(torch::equal(p.value(), b->named_parameters()[p.key()]), !hidden) << p.key();
  }
}

TEST(Muon, GoesOnFromItsStateBitForBit) {
  const auto uncut = mlp(), cut = mlp();
  const auto whole = make_optimizer(kMuon, trainable_parameters(*uncut)),
             before = make_optimizer(kMuon, trainable_parameters(*cut)),
             after = make_optimizer(kMuon, trainable_parameters(*cut));
  for (std::uint64_t step = 0; step < 6; ++step) {
    set_gradients(*uncut, step);
    set_gradients(*cut, step);
    if (step == 3) {
      ASSERT_TRUE(after->load_state(before->state()).ok());
    }
    ASSERT_TRUE(whole->step(0.02).ok());
    ASSERT_TRUE((step < 3 ? before : after)->step(0.02).ok());
  }
  for (const auto& p : uncut->named_parameters()) {
    EXPECT_TRUE(torch::equal(p.value(), cut->named_parameters()[p.key()])) << p.key();
  }
  const auto state = whole->state();
  EXPECT_EQ(state.at("optimizer.momentum_buffer.layer1.linear.weight").sizes(),
            (std::vector<std::int64_t>{24, 32}));
  EXPECT_EQ(state.count("optimizer.exp_avg.layer1.linear.weight"), 0u);
  EXPECT_EQ(state.count("optimizer.exp_avg_sq.layer1.linear.bias"), 1u);
  EXPECT_EQ(state.at("optimizer.step.layer0.linear.weight").item<float>(), 6);
  OptimizerOptions adamw = kMuon;
  adamw.kind = Kind::kAdamW;
  const auto other = make_optimizer(adamw, trainable_parameters(*cut));
  EXPECT_THAT(other->load_state(state).message(), HasSubstr("resume with the optimizer"));
}

TEST(Muon, RefusesPartsOfAMatrix) {
  const torch::Tensor w = torch::zeros({4, 5}).requires_grad_();
  const std::vector<NamedParameter> parameters = {{.name = "w", .tensor = w, .hidden = true}};
  try {
    FusedOptimizer part(kMuon, parameters, {{.begin = 0, .end = 10}});
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("'w' is none, or a part of it is here"));
  }
  FusedOptimizer whole(kMuon, parameters);
  const optim::GradientTerm term{.data = w.const_data_ptr()};
  const RangeGradient gradient{.parameter = 0, .sources = {&term, 1}};
  EXPECT_THAT(whole.step({.lr = 1}, std::span(&gradient, 1)).message(),
              HasSubstr("not from terms of it"));
}

// What a matrix lacks, the second moment, is not there after an average either.
TEST(Muon, StatesHaveAnAverage) {
  const std::array nets = {mlp(), mlp()};
  std::vector<std::unique_ptr<FusedOptimizer>> optimizers;
  std::array<std::map<std::string, torch::Tensor>, 2> before;
  std::vector<std::unique_ptr<AveragedState>> states;
  for (std::size_t i = 0; i < 2; ++i) {
    optimizers.push_back(std::make_unique<FusedOptimizer>(kMuon, trainable_parameters(*nets[i])));
    states.push_back(std::make_unique<AveragedState>(*optimizers[i]));
    set_gradients(*nets[i], 20 + i);
    ASSERT_TRUE(optimizers[i]->step(0.02).ok());
    for (const auto& [name, tensor] : optimizers[i]->state()) before[i][name] = tensor.clone();
  }
  const std::array both = {states[0].get(), states[1].get()};
  ASSERT_TRUE(average_together(both, std::array{1.0, 3.0}));
  for (const auto& optimizer : optimizers) {
    const auto state = optimizer->state();
    ASSERT_EQ(state.size(), before[0].size());
    for (const auto& [name, tensor] : state) {
      EXPECT_TRUE(
          torch::allclose(tensor, (before[0][name] + 3 * before[1][name]) / 4, 1e-12, 1e-12))
          << name;
    }
  }
}

class MuonRun : public test::TrainerRun {
 protected:
  MuonRun() : TrainerRun("stormo_muon_") {
    options.optimizer = kMuon;
    make_task = mlp_task;
  }
  static Task mlp_task() {
    const auto net = mlp();
    Task task;
    task.module = net;
    task.forward = [net](const torch::Tensor& x) { return net->forward(x); };
    task.loss = model::cross_entropy;
    task.correct = model::count_correct;
    return task;
  }
  void diloco() {
    options.strategy = {.kind = Strategy::Kind::kParameterAveraging, .period = 4};
    options.strategy.outer = {parallel::OuterOptimizer::Kind::kNesterov, 0.7, 0.5};
  }
  std::string refusal() const { return strategy_of(options).status().message(); }
};

TEST_F(MuonRun, ReplicasAreOneProcess) {
  options.clip_norm = 0.5;
  options.verify_every = 1;
  options.strategy = {.kind = Strategy::Kind::kDdp};
  const Outcome one = run(1);
  for (const int ranks : {2, 3}) EXPECT_LE(distance(run(ranks).values, one.values), 1e-9);
  const auto shares = [this](Kind kind) {
    options.optimizer.kind = kind;
    return planned_step(options, mlp_task(), {3}).take_or_throw().plan.mesh.find("host") >= 0;
  };
  EXPECT_FALSE(shares(Kind::kMuon));
  EXPECT_TRUE(shares(Kind::kAdamW));
}

TEST_F(MuonRun, TrainsWhereRanksMeetRarely) {
  options.steps = 48;
  std::vector<Strategy> strategies(3);
  strategies[0] = {.kind = Strategy::Kind::kParameterAveraging, .period = 4};
  diloco();
  strategies[1] = options.strategy;
  strategies[2] = {.kind = Strategy::Kind::kGossip, .period = 8};
  for (const Strategy& strategy : strategies) {
    options.strategy = strategy;
    const Outcome out = run(3);
    EXPECT_LT(out.steps.back().loss, 0.5 * out.steps.front().loss)
        << parallel::strategy_names()[static_cast<std::size_t>(strategy.kind)];
  }
}

TEST_F(MuonRun, ResumedRunsEndInTheSameBits) {
  options.checkpoint = {.directory = folder, .every = 6};
  for (const bool outer : {true, false}) {
    diloco();
    if (!outer) options.strategy.outer = {};  // averages have the state, too
    expect_bits_of_whole_run(3, {6, 12}, outer ? "diloco" : "averages");
    options.steps = 24;
    EXPECT_TRUE(std::isfinite(resumed(2).end.train_loss));
  }
  options.strategy = {.kind = Strategy::Kind::kDdp};
  accepted_changes = {"strategy"};
  options.steps = 28;
  EXPECT_TRUE(std::isfinite(resumed(2).end.train_loss));
}

TEST_F(MuonRun, IsRefusedWhereRanksLackMatrices) {
  using enum Strategy::Kind;
  for (const auto kind : {kCentralStorage, kFsdp, kParameterServer, kElasticAveraging, kVertical}) {
    options.strategy = {.kind = kind};
    EXPECT_THAT(refusal(), HasSubstr("does not have on each rank: use 'ddp', 'mirrored', "
                                     "'parameter_averaging' or 'gossip', or another optimizer"));
  }
  options.strategy = {.kind = kDdp, .parameters = Strategy::Parameters::kHostShared};
  EXPECT_THAT(refusal(), HasSubstr("leave out strategy.parameters, or set it to replicated"));
  EXPECT_EQ(try_run(2).status().message(), refusal());
  for (const auto& [pipeline, tensor] : {std::pair(2, 1), {1, 2}}) {
    options.strategy = {.kind = kDdp, .pipeline = pipeline, .tensor = tensor};
    EXPECT_THAT(refusal(), HasSubstr("leave out strategy.pipeline and tensor"));
  }
  options.strategy = {.kind = kDdp};
  options.commits = true;
  EXPECT_THAT(refusal(), HasSubstr("an optimizer other than lbfgs and muon"));
}

TEST_F(MuonRun, IsRefusedForAModelThatDoesNotSayWhatIsHidden) {
  make_task = [] { return test::toy_task(test::make_toy_module(3)); };
  EXPECT_THAT(try_run(2).status().message(),
              HasSubstr("between the first and the last segment of a model::Chain"));
}

}  // namespace
}  // namespace stormo::train
