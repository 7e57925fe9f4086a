// Streaming DiLoCo: fragments of the parameters that are averaged in turn, while ranks go on. What
// they must be equal to, and what a resumed run goes on with.
#include <cmath>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/parallel/strategy/strategy.h>
#include <stormo/train/step/strategy.h>

#include "tests/unit/comm/ranks.h"
#include "trainer_run.h"

namespace stormo::train::streaming_diloco {
namespace {

using parallel::Streaming;
using test::distance;
using testing::HasSubstr;

constexpr parallel::OuterOptimizer kNesterov{parallel::OuterOptimizer::Kind::kNesterov, 0.7, 0.9};

// --- on quadratics, by the plan ------------------------------------------------------------------

const std::vector<std::int64_t> kSizes = {5, 3, 7, 4};  // of parameters

/// a / 2 |x - b_r|^2 for each parameter, of which b_r differs.
constexpr double kCurvature = 0.8, kRate = 0.1;
torch::Tensor target(int rank, std::size_t parameter) {
  return torch::arange(kSizes[parameter], torch::kFloat64) * (1.0 + rank) -
         static_cast<double>(parameter);
}
torch::Tensor begin(std::size_t parameter) {
  return torch::full({kSizes[parameter]}, 3.0, torch::kFloat64);
}

/// What one rank, or one replica of the oracle, trains.
struct Module {
  std::shared_ptr<torch::nn::Module> module = std::make_shared<torch::nn::Module>();
  std::vector<torch::Tensor> x;
  Module() {
    for (std::size_t p = 0; p < kSizes.size(); ++p) {
      x.push_back(module->register_parameter("x" + std::to_string(p), begin(p)));
    }
  }
  void set_gradients(int rank) {
    for (std::size_t p = 0; p < x.size(); ++p) {
      x[p].mutable_grad() = kCurvature * (x[p].detach() - target(rank, p));
    }
  }
  std::vector<torch::Tensor> values() const {
    std::vector<torch::Tensor> out;
    for (const torch::Tensor& p : x) out.push_back(p.detach().clone());
    return out;
  }
};

TrainerOptions options_of(int period, const Streaming& how) {
  TrainerOptions out;
  out.optimizer = {.kind = OptimizerOptions::Kind::kAdamW, .lr = kRate, .epsilon = 1e-2};
  out.strategy = {.kind = Strategy::Kind::kParameterAveraging,
                  .period = period,
                  .outer = kNesterov,
                  .streaming = how};
  return out;
}

plan::StepPlan plan_of(const TrainerOptions& options, int ranks) {
  plan::ModelShape shape{.segments = {{.name = "x", .parameters = {}, .borrowed = {}}}};
  for (std::size_t p = 0; p < kSizes.size(); ++p) {
    shape.segments[0].parameters.push_back(
        {.name = "x" + std::to_string(p), .elements = kSizes[p], .dtype = DType::kFloat64});
  }
  return parallel::plan_for(options.strategy, shape, {.ranks_per_host = {ranks}},
                            {.reduction = {.codec = options.gradients.codec}})
      .take_or_throw();
}

bool is_due(const plan::Action& a, int step, bool closes) {
  return closes || (step - a.offset) % a.every == 0;
}

/// By step, then by rank: the parameters after it.
using Course = std::vector<std::vector<std::vector<torch::Tensor>>>;

/// `closes`: by step, from 1.
Course course_of(const TrainerOptions& options, int ranks, const std::vector<bool>& closes) {
  const plan::StepPlan plan = plan_of(options, ranks);
  Course out(closes.size(),
             std::vector<std::vector<torch::Tensor>>(static_cast<std::size_t>(ranks)));
  comm::on_ranks(ranks, [&](comm::Communicator& world) {
    const AxisGroups groups(world, plan);
    Module mine;
    const auto store = make_store(plan, groups, mine.module, options);
    store->set_plan(plan);
    for (std::size_t i = 0; i < closes.size(); ++i) {
      mine.set_gradients(world.rank());
      throw_if_error(store->update({0, kSizes.size()}, {.lr = options.optimizer.lr}));
      for (const plan::Action& a : plan.actions) {
        const plan::ActionRow& row = row_of(a.kind);
        const bool due = is_due(a, static_cast<int>(i) + 1, closes[i]);
        if (due && (row.averages() || row.outer_updates())) throw_if_error(store->perform(a, 1));
      }
      out[i][static_cast<std::size_t>(world.rank())] = mine.values();
    }
  });
  return out;
}

/// The same, computed by one process that trains each replica by itself. A fragment's outer update
/// is its definition: with g the difference between the parameters of the outer optimizer and the
/// mean of what was sent, v <- m v + g and x <- x - lr (g + m v).
class Oracle {
 public:
  Oracle(const TrainerOptions& options, int ranks)
      : options_(options),
        plan_(plan_of(options, ranks)),
        replicas_(static_cast<std::size_t>(ranks)) {
    TrainerOptions alone = options;
    alone.strategy = {.kind = Strategy::Kind::kOneDevice};
    one_ = plan_of(alone, 1);
    for (std::size_t p = 0; p < kSizes.size(); ++p) {
      outer_.push_back(begin(p));
      momentum_.push_back(torch::zeros_like(outer_.back()));
      sent_.emplace_back();
    }
    group_ = comm::make_inproc_group(1).take_or_throw();
    groups_ = std::make_unique<AxisGroups>(*group_[0], one_);
    for (Module& m : replicas_) stores_.push_back(make_store(one_, *groups_, m.module, alone));
  }

  void step(int number, bool closes) {
    for (std::size_t r = 0; r < replicas_.size(); ++r) {
      replicas_[r].set_gradients(static_cast<int>(r));
      throw_if_error(stores_[r]->update({0, kSizes.size()}, {.lr = options_.optimizer.lr}));
    }
    const torch::NoGradGuard no_grad;
    for (const plan::Action& a : plan_.actions) {
      const plan::ActionRow& row = row_of(a.kind);
      if (!is_due(a, number, closes)) continue;
      for (int p = a.range.first; p <= a.range.last; ++p) {
        const auto at = static_cast<std::size_t>(p);
        if (row.averages()) send(at, number, mixing_of(a));
        if (row.outer_updates()) come_back(at, number, a.mixing);
      }
    }
  }
  std::vector<torch::Tensor> values(std::size_t rank) const { return replicas_[rank].values(); }
  const std::vector<torch::Tensor>& outer() const { return outer_; }

 private:
  double mixing_of(const plan::Action& average) const {
    for (const plan::Action& a : plan_.actions) {
      if (row_of(a.kind).outer_updates() && a.range == average.range) return a.mixing;
    }
    return 0;
  }
  void send(std::size_t p, int step, double mixing) {
    come_back(p, step, mixing);
    torch::Tensor sum = torch::zeros_like(outer_[p]);
    for (const Module& m : replicas_) sum += m.x[p].detach();
    sent_[p] = sum * (1.0 / static_cast<double>(replicas_.size()));
    sent_at_[p] = step;
  }
  void come_back(std::size_t p, int step, double mixing) {
    if (!sent_[p].defined()) return;
    const torch::Tensor mean = sent_[p], g = outer_[p] - mean;
    sent_[p] = torch::Tensor();
    momentum_[p] = kNesterov.momentum * momentum_[p] + g;
    outer_[p] = mean - momentum_[p] * (kNesterov.lr * kNesterov.momentum) + g * (1 - kNesterov.lr);
    const double own = sent_at_[p] == step ? 0 : mixing;
    for (Module& m : replicas_) {
      if (own < 1)
        m.x[p].copy_(own == 0 ? outer_[p] : torch::add(m.x[p] * own, outer_[p], 1 - own));
    }
  }

  const TrainerOptions& options_;
  plan::StepPlan plan_, one_;
  std::vector<Module> replicas_;
  std::vector<std::unique_ptr<comm::Communicator>> group_;
  std::unique_ptr<AxisGroups> groups_;
  std::vector<std::unique_ptr<ParameterStore>> stores_;
  std::vector<torch::Tensor> outer_, momentum_, sent_;
  std::map<std::size_t, int> sent_at_;
};

const std::vector<Streaming> kWays = {
    {.fragments = 2},
    {.fragments = 3},
    {.delay = 5, .mixing = 0.25},
    {.delay = 1, .mixing = 0},
    {.fragments = 2, .delay = 3},
    {.fragments = 4, .delay = 1, .mixing = 1},
};

/// Of `steps` steps those that are given, from 1.
std::vector<bool> closing(std::size_t steps, const std::vector<std::size_t>& which) {
  std::vector<bool> out(steps);
  for (const std::size_t s : which) out[s - 1] = true;
  return out;
}

// Meetings come in the middle of delays, too. The sum of two numbers has no order.
TEST(StreamingDiLoCo, IsThatOfOneProcessBitForBit) {
  constexpr int kRanks = 2;
  for (const Streaming& way : kWays) {
    SCOPED_TRACE(testing::Message() << way.fragments << " fragments, delay " << way.delay);
    const TrainerOptions options = options_of(8, way);
    const std::vector<bool> closes = closing(45, {13, 14, 29});
    const Course course = course_of(options, kRanks, closes);
    Oracle oracle(options, kRanks);
    for (std::size_t i = 0; i < closes.size(); ++i) {
      oracle.step(static_cast<int>(i) + 1, closes[i]);
      for (std::size_t r = 0; r < kRanks; ++r) {
        for (std::size_t p = 0; p < kSizes.size(); ++p) {
          ASSERT_TRUE(course[i][r][p].equal(oracle.values(r)[p]))
              << "step " << i + 1 << ", rank " << r << ", parameter " << p;
          ASSERT_TRUE(!closes[i] || course[i][r][p].equal(oracle.outer()[p])) << "they meet";
        }
      }
    }
  }
}

TEST(StreamingDiLoCo, OneFragmentWithoutDelayIsDiLoCo) {
  const plan::StepPlan plain = plan_of(options_of(8, {}), 3);
  EXPECT_EQ(plan_of(options_of(8, {.fragments = 1, .delay = 0}), 3), plain);
  // Where all meet, fragments that travel by themselves are the whole: only there ranks exchange.
  const std::vector<bool> closes = closing(24, {6, 12, 18, 24});
  const Course diloco = course_of(options_of(6, {}), 2, closes);
  for (Streaming way : kWays) {
    way.delay = std::min(way.delay, 1);
    if (way.delay == 0) way.mixing = -1;
    const Course course = course_of(options_of(1000, way), 2, closes);
    // offsets of fragments are beyond the last step
    for (std::size_t i = 0; i < closes.size(); ++i) {
      for (std::size_t p = 0; p < kSizes.size(); ++p) {
        ASSERT_TRUE(course[i][1][p].equal(diloco[i][1][p])) << "step " << i + 1;
      }
    }
  }
}

// With a share of 1 nothing comes back to the inner runs, and outer parameters move all the same.
TEST(StreamingDiLoCo, WithMixingOneInnerRunsAreIndependentBitForBit) {
  constexpr std::size_t kSteps = 40;
  const TrainerOptions options = options_of(8, {.fragments = 2, .delay = 2, .mixing = 1});
  const std::vector<bool> closes = closing(kSteps, {kSteps});
  const Course course = course_of(options, 2, closes);
  TrainerOptions alone = options;
  alone.strategy = {.kind = Strategy::Kind::kOneDevice};
  for (int rank = 0; rank < 2; ++rank) {
    Module mine;
    comm::on_ranks(1, [&](comm::Communicator& world) {
      const plan::StepPlan plan = plan_of(alone, 1);
      const AxisGroups groups(world, plan);
      const auto store = make_store(plan, groups, mine.module, alone);
      for (std::size_t i = 0; i + 1 < kSteps; ++i) {
        mine.set_gradients(rank);
        throw_if_error(store->update({0, kSizes.size()}, {.lr = alone.optimizer.lr}));
        for (std::size_t p = 0; p < kSizes.size(); ++p) {
          ASSERT_TRUE(course[i][static_cast<std::size_t>(rank)][p].equal(mine.x[p].detach()));
        }
      }
    });
  }
  for (std::size_t p = 0; p < kSizes.size(); ++p) {
    EXPECT_TRUE(course.back()[0][p].equal(course.back()[1][p])) << "at the end they meet";
    EXPECT_GT((course.back()[0][p] - begin(p)).abs().max().item<double>(), 0.1);
  }
}

// Each fragment follows the recurrence of DiLoCo, in steps of its own. Its first period is shorter.
TEST(StreamingDiLoCo, EachFragmentFollowsTheClosedRecurrence) {
  constexpr int kRanks = 3, kPeriod = 8, kRounds = 50;
  TrainerOptions options = options_of(kPeriod, {.fragments = 4});
  options.optimizer = {.lr = kRate};  // x_r = b_r + q^H (x - b_r)
  const double q = 1 - kRate * kCurvature;
  const std::size_t steps = kPeriod * kRounds;
  const Course course = course_of(options, kRanks, std::vector<bool>(steps));
  for (const plan::Action& a : plan_of(options, kRanks).actions) {
    if (!row_of(a.kind).averages()) continue;
    ASSERT_EQ(a.range.size(), 1);
    const auto p = static_cast<std::size_t>(a.range.first);
    const torch::Tensor mean = (target(0, p) + target(1, p) + target(2, p)) / kRanks;
    torch::Tensor e = begin(p) - mean, v = torch::zeros_like(e);
    std::size_t before = 0;
    for (std::size_t s = a.offset == 0 ? kPeriod : static_cast<std::size_t>(a.offset); s <= steps;
         s += kPeriod) {
      const double moved = 1 - std::pow(q, s - before);
      v = moved * e + kNesterov.momentum * v;
      e = e - kNesterov.lr * (moved * e + kNesterov.momentum * v);
      before = s;
      ASSERT_LE((course[s - 1][2][p] - mean - e).abs().max().item<double>(), 1e-12)
          << "parameter " << p << ", step " << s;
    }
  }
}

// A codec changes what ranks learn, but not that they learn the same.
TEST(StreamingDiLoCo, RanksMeetInTheSameBitsInAnyCodec) {
  const std::vector<bool> closes = closing(24, {9, 24});
  const Course plain = course_of(options_of(8, {.fragments = 2, .delay = 2}), 3, closes);
  for (const Codec codec : {Codec::kBFloat16, Codec::kInt8, Codec::kInt4, Codec::kQsgd}) {
    SCOPED_TRACE(to_string(codec));
    for (const int delay : {0, 2}) {
      TrainerOptions options = options_of(8, {.fragments = 2, .delay = delay});
      options.gradients.codec = codec;
      const Course course = course_of(options, 3, closes);
      for (std::size_t p = 0; p < kSizes.size(); ++p) {
        for (const std::size_t step : {9, 24}) {
          EXPECT_TRUE(course[step - 1][0][p].equal(course[step - 1][2][p]));
        }
        const double apart = (course[23][0][p] - plain[23][0][p]).abs().max().item<double>();
        EXPECT_GT(apart, 0);
        if (delay == 2) {
          EXPECT_LT(apart, codec == Codec::kBFloat16 ? 0.1 : 2.0);
        }
      }
    }
  }
}

// --- with the Trainer ----------------------------------------------------------------------------

class StreamingRun : public test::TrainerRun {
 protected:
  StreamingRun() : TrainerRun("stormo_streaming_") {
    options = options_of(8, {.fragments = 2, .delay = 3});
    options.optimizer = {.kind = OptimizerOptions::Kind::kAdamW, .lr = 0.01};
    options.global_batch = 13;  // unequal shares
    options.log_every = 1;
    options.seed = 11;
    options.checkpoint = {.directory = folder, .every = 6};
  }
};

// Fragments travel from 4 to 7, 8 to 11, 12 to 15, ... A save ends what is under way.
TEST_F(StreamingRun, ResumedRunsEndInTheSameBits) {
  for (const Codec codec : {Codec::kNone, Codec::kBFloat16, Codec::kInt8, Codec::kQsgd}) {
    SCOPED_TRACE(to_string(codec));
    options.gradients.codec = codec;
    for (const int delay : {0, 3}) {
      options.strategy.streaming.delay = delay;
      expect_bits_of_whole_run(3, {6, 12, 18}, "delay " + std::to_string(delay));
    }
  }
}

TEST_F(StreamingRun, GoesOnWithOtherRanksAndInOtherTraining) {
  options.overwrite = true;
  options.gradients.codec = Codec::kInt8;
  const Strategy streaming = options.strategy;
  accepted_changes = {"strategy"};
  options.steps = 6;
  run(3);
  options.steps = 12;
  EXPECT_TRUE(std::isfinite(resumed(2).end.train_loss));
  options.steps = 18;
  options.gradients.codec = Codec::kNone;
  options.strategy = {.kind = Strategy::Kind::kMirrored,
                      .parameters = Strategy::Parameters::kReplicated};
  EXPECT_TRUE(std::isfinite(resumed(2).end.train_loss));
  options.steps = 24;
  options.strategy = streaming;
  EXPECT_TRUE(std::isfinite(resumed(4).end.train_loss));
}

// Averages come in their own steps, and are of what a rank did since that of the same fragment.
TEST_F(StreamingRun, EachActionIsDoneInItsSteps) {
  options.checkpoint = {};
  options.steps = 21;
  options.averaging.warmup_steps = 2;
  std::string done;
  std::mutex telling;
  int step = 0;
  on_action = [&](Rank rank, const plan::Action& a) {
    const std::lock_guard lock(telling);
    if (rank != 0) return;
    const plan::ActionRow& row = row_of(a.kind);
    if (row.makes.has(plan::Value::kBatch)) ++step;
    const std::string what = row.averages()        ? "average"
                             : row.outer_updates() ? "update"
                             : row.all_batches     ? "agree"
                                                   : "";
    if (what.empty()) return;
    done += std::to_string(step) + what;
    if (!row.all_batches) done += a.range.first == 0 ? "0" : "1";
    done += a.asynchronous ? "* " : " ";
  };
  run(2);
  EXPECT_EQ(done,
            "1average0 1average1 1agree 2average0 2average1 2agree "
            "3update0 3agree "  // nothing is under way
            "4average1* 7update1 8average0* 11update0 11agree 12average1* 15update1 16average0* "
            "19update0 19agree 20average1* 21average0* 21update0 21average1* 21update1 21agree ");
}

TEST_F(StreamingRun, RefusesAPeriodThatAdapts) {
  options.averaging.max_distance = 1;
  EXPECT_THAT(try_run(2).status().message(),
              HasSubstr("leave out max_distance and period_seconds, or fragments and delay"));
}

}  // namespace
}  // namespace stormo::train::streaming_diloco
