// What steps take with codecs, and which one is taken.
#include <stormo/comm/selection/step_price.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include <stormo/codec/loss_order.h>
#include <stormo/parallel/replicas/bucket.h>
#include <stormo/parallel/strategy/strategy.h>

namespace stormo::comm {
namespace {

using parallel::Strategy;

TEST(LeastLossy, IsTheFirstThatHides) {
  using Prices = std::vector<StepPrice>;
  EXPECT_EQ(least_lossy(Prices{{2, 1}}), 0u) << "there is nothing else";
  EXPECT_EQ(least_lossy(Prices{{1.04, 1}, {1.0, 1}}), 0u) << "though another one is faster";
  EXPECT_EQ(least_lossy(Prices{{kHidden, 1}, {1.0, 1}}), 0u) << "the limit itself";
  EXPECT_EQ(least_lossy(Prices{{1.0501, 1}, {1.0, 1}}), 1u);
  EXPECT_EQ(least_lossy(Prices{{3, 1}, {1.2, 1}, {1.05, 1}, {1, 1}}), 2u);
  EXPECT_EQ(least_lossy(Prices{{3, 1}, {1.3, 1}, {1.2, 1}, {1.4, 1}}), 2u) << "none hides";
  EXPECT_EQ(least_lossy(Prices{{3, 1}, {1.2, 1}, {1.2, 1}}), 1u) << "equally fast";
  EXPECT_EQ(least_lossy(Prices{{0, 0}, {0, 0}}), 0u) << "nothing takes time";
}

/// Layers of so many inputs and outputs.
plan::ModelShape layers(const std::vector<std::int64_t>& sizes) {
  plan::ModelShape model;
  for (std::size_t i = 0; i + 1 < sizes.size(); ++i) {
    const std::string name = "layer" + std::to_string(i);
    model.segments.push_back({.name = name,
                              .parameters = {{.name = name + ".weight",
                                              .elements = sizes[i] * sizes[i + 1],
                                              .rows = sizes[i + 1]},
                                             {.name = name + ".bias", .elements = sizes[i + 1]}},
                              .borrowed = {}});
  }
  return model;
}

/// A step of replicas on two hosts, whose layers compute for `seconds` together, a third of it
/// forward.
StepInput step_of(const plan::ModelShape& model, double seconds, Codec codec,
                  const Strategy& strategy = {.kind = Strategy::Kind::kDdp}) {
  plan::ModelShape shape = model;
  for (plan::SegmentShape& s : shape.segments) {
    for (plan::ParameterShape& p : s.parameters) {
      if (!row_of(codec).has_factors()) p.rows = 0;
    }
  }
  StepInput out{.plan = parallel::plan_for(
                            strategy, shape, {.ranks_per_host = {1, 1}},
                            {.bucket_bytes =
                                 strategy.kind == Strategy::Kind::kDdp ? std::int64_t{1} << 20 : 0,
                             .reduction = {.codec = codec}})
                            .take_or_throw(),
                .ranks_per_host = {1, 1}};
  const double each = seconds / static_cast<double>(model.segments.size());
  out.measured.emplace();
  out.measured->forward.assign(model.segments.size(), each / 3);
  out.measured->backward.assign(model.segments.size(), each * 2 / 3);
  return out;
}

/// Hosts with links of so many bits a second.
StepModel links_of(double bits) {
  plan::Topology links = plan::Topology::gigabit({1, 1});
  links.inter.seconds_per_byte = 8 / bits;
  return {"test", links};
}

double seconds_of(StepModel& model, StepInput step, const CodecSpeed& speed = {}) {
  step.codec = speed;
  return model.simulate(step, analysis::Timeline::kDrop).take_or_throw().seconds;
}

struct Case {
  std::string name;
  plan::ModelShape model;
  double seconds;  // that it computes
  double bits;     // of the links
  std::string taken;
};

/// What does not overlap is the sum of the first layer's gradients, whose backward comes last.
std::vector<Case> cases() {
  const auto narrow = layers({784, 512, 512, 10}), wide = layers({784, 2048, 2048, 10});
  return {
      {"a small model on a fast link", narrow, 50e-3, 10e9, "none"},
      {"a small model on a slow link", narrow, 50e-3, 100e6, "powersgd:4"},
      {"a large model on a fast link", wide, 60e-3, 10e9, "bfloat16"},
      {"a large model on 1 Gbit/s", wide, 200e-3, 1e9, "int4"},
      {"a large model that computes for longer on 1 Gbit/s", wide, 400e-3, 1e9, "int8"},
      {"a large model on a slow link", wide, 60e-3, 100e6, "powersgd:4"},
  };
}

TEST(LeastLossy, IsWithinFivePercentOfTheBestOfManyModelsAndLinks) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    StepModel model = links_of(c.bits);
    std::vector<StepPrice> prices;
    std::vector<Codec> codecs;
    for (const CodecLoss& loss : least_lossy_first()) {
      if (!loss.is_automatic) continue;
      const StepInput step = step_of(c.model, c.seconds, loss.codec);
      codecs.emplace_back(loss.codec);
      prices.push_back(price_of(model, step, seconds_of(model, step)).take_or_throw());
      EXPECT_GE(prices.back().seconds, prices.back().alone);
      EXPECT_NEAR(prices.back().alone, c.seconds, 1e-9);
    }
    const std::size_t taken = least_lossy(prices);
    const double best = std::ranges::min(prices, {}, &StepPrice::seconds).seconds;
    EXPECT_LE(prices[taken].seconds, 1.05 * best);
    EXPECT_EQ(to_string(codecs[taken]), c.taken);
    for (std::size_t i = 0; i < taken; ++i) {
      EXPECT_GT(prices[i].seconds, 1.05 * c.seconds) << to_string(codecs[i]) << " loses less";
    }
  }
}

// By hand: each of two ranks sends the code of half of its numbers twice, and nothing overlaps.
TEST(StepPrice, OfACodecIsThatOfItsBytesAndItsArithmetic) {
  const plan::ModelShape model = layers({1000, 1000});
  StepModel links = links_of(1e9);
  StepInput step = step_of(model, 0.01, Codec::kInt8);
  const double without = seconds_of(links, step);
  const double code = 1e6 * (1 + 4.0 / 256);  // bytes of all numbers
  EXPECT_NEAR(without, 0.01 + code * 8 / 1e9, 1e-3);
  const CodecSpeed speed{.encode = 1e-9, .decode = 2e-9};
  const double numbers = 1e6 + 1000;
  EXPECT_NEAR(seconds_of(links, step, speed) - without, numbers * (1.5 * 1e-9 + 2 * 2e-9), 1e-6);
  EXPECT_EQ(seconds_of(links, step_of(model, 0.01, Codec::kNone), speed),
            seconds_of(links, step_of(model, 0.01, Codec::kNone)))
      << "nothing is encoded";
}

TEST(StepPrice, OfAveragesIsSpreadOverThePeriod) {
  const plan::ModelShape model = layers({1000, 1000});
  StepModel links = links_of(1e9);
  double added = 0;  // by an average in each step
  for (const int period : {1, 2, 5, 64}) {
    const StepInput step = step_of(model, 0.01, Codec::kNone,
                                   {.kind = Strategy::Kind::kParameterAveraging, .period = period});
    const StepPrice price = price_of(links, step, seconds_of(links, step)).take_or_throw();
    EXPECT_NEAR(price.alone, 0.01, 1e-9);
    if (period == 1) added = price.seconds - price.alone;
    EXPECT_GT(added, 0.01) << "4 MB and more at 1 Gbit/s";
    EXPECT_NEAR(price.seconds - price.alone, added / period, 0.01 * added);
  }
}

// Of three arrays of equal size, one for each period.
TEST(StepPrice, OfASlotIsSpreadOverItsOwnPeriod) {
  const plan::ModelShape model = layers({1000, 1000});
  StepModel links = links_of(1e9);
  const auto added = [&](std::vector<std::int64_t> periods) {
    StepInput step =
        step_of(model, 0.01, Codec::kNone,
                {.kind = Strategy::Kind::kParameterAveraging, .state_periods = std::move(periods)});
    step.sizes.averaged_slots = 2;
    const StepPrice price = price_of(links, step, seconds_of(links, step)).take_or_throw();
    EXPECT_NEAR(price.alone, 0.01, 1e-9);
    return price.seconds - price.alone;
  };
  const double alike = added({8, 8});
  EXPECT_NEAR(alike, added({}), 0.01 * alike);
  EXPECT_NEAR(added({16, 80}), alike / 3 * (1 + 0.5 + 0.1), 0.01 * alike);
}

TEST(StepPrice, OfTheRanksOfAHostIsThatOfTheirPeriod) {
  const plan::ModelShape model = layers({1000, 1000});
  StepModel links("test", plan::Topology::gigabit({2, 2}));
  const auto added = [&](int period, int local_period) {
    StepInput step = step_of(model, 0.01, Codec::kNone);
    step.ranks_per_host = {2, 2};
    step.plan = parallel::plan_for({.kind = Strategy::Kind::kParameterAveraging,
                                    .period = period,
                                    .local_period = local_period},
                                   model, {.ranks_per_host = {2, 2}})
                    .take_or_throw();
    return price_of(links, step, seconds_of(links, step)).take_or_throw().seconds - 0.01;
  };
  const double of_all = added(12, 0), of_host = added(12, 1) - of_all;
  EXPECT_GT(of_host, 0);
  EXPECT_NEAR(added(12, 4), of_all + of_host / 4, 1e-3 * of_all);
}

// Fragments that travel while ranks go on are simulated for a whole period.
TEST(StepPrice, OfFragmentsIsThatOfAPeriod) {
  const plan::ModelShape model = layers({1000, 1000, 1000});
  StepModel links = links_of(1e9);
  Strategy strategy{.kind = Strategy::Kind::kParameterAveraging, .period = 8};
  strategy.outer.kind = parallel::OuterOptimizer::Kind::kNesterov;
  strategy.streaming = {.fragments = 2, .delay = 2};
  const StepInput step = step_of(model, 0.1, Codec::kNone, strategy);
  const double simulated = seconds_of(links, step);
  const StepPrice price = price_of(links, step, simulated).take_or_throw();
  EXPECT_DOUBLE_EQ(price.seconds, simulated);
  EXPECT_TRUE(hides(price)) << "two steps of 100 ms hide half of 32 ms and more";
}

}  // namespace
}  // namespace stormo::comm
