// Momentum of the ranks (Deep Gradient Compression), and densities of a warm-up.
#include <stormo/codec/momentum_correction.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace stormo::codec {
namespace {

TEST(MomentumCorrection, IsAWordOfPlans) {
  const MomentumCorrection plain{.momentum = 0.9}, clips{.momentum = 0.5, .clip_norm = 0.25};
  EXPECT_EQ(to_string(plain), "momentum_0.9");
  EXPECT_EQ(to_string(clips), "momentum_0.5_clip_0.25");
  for (const MomentumCorrection& c : {plain, clips})
    EXPECT_EQ(momentum_correction_of(to_string(c)), c);
  for (const char* other : {"", "ring_all_reduce", "momentum", "momentum_", "momentum_x",
                            "momentum_0.9_", "momentum_0.9_clip_", "momentum_0.9_clip_1x"}) {
    EXPECT_FALSE(momentum_correction_of(other)) << other;
  }
}

TEST(MomentumCorrection, ClipsToARanksShareOfTheNorm) {
  const MomentumCorrection c{.momentum = 0.9, .clip_norm = 6};
  EXPECT_NEAR(clip_factor(c, 30, 9), 2.0 / 30, 1e-8);
  EXPECT_EQ(clip_factor(c, 1.9, 9), 1);
  EXPECT_EQ(clip_factor(c, std::numeric_limits<double>::quiet_NaN(), 9), 1);
}

/// A rank that sends the numbers of these places in each step.
struct Sender {
  MomentumCorrection correction{.momentum = 0.5};
  std::vector<float> u = {0, 0}, v = {0, 0}, sent = {0, 0};

  void step(const std::vector<float>& terms, const std::vector<std::size_t>& places) {
    std::vector<std::byte> late(2);
    add_momentum(correction, terms, 1, u, v, late);
    sent = {0, 0};
    for (const std::size_t i : places) std::swap(sent[i], v[i]);
    mask_momentum(v, late, u);
  }
};

TEST(MomentumCorrection, WhatIsLateComesWithItsMomentumAndEndsIt) {
  Sender s;
  s.step({4, 2}, {0});
  EXPECT_EQ(s.sent, (std::vector<float>{4, 0}));
  EXPECT_EQ(s.u, (std::vector<float>{4, 2})) << "nothing was late";
  s.step({0, 0}, {1});
  EXPECT_EQ(s.sent, (std::vector<float>{0, 3})) << "2, and 1 of its momentum";
  EXPECT_EQ(s.u, (std::vector<float>{2, 0})) << "masked where something late was sent";
  EXPECT_EQ(s.v, (std::vector<float>{2, 0}));
  s.step({-3, 8}, {});
  EXPECT_EQ(s.u, (std::vector<float>{-2, 8}));
  EXPECT_EQ(s.v, (std::vector<float>{0, 8})) << "a sum of 0 is not sent";
}

TEST(MomentumCorrection, WhereAllTravelsItIsThatOfOneProcess) {
  Sender s;
  float buffer = 0;
  for (const float g : {3.f, -1.f, 0.f, 7.f, 0.5f}) {
    buffer = 0.5f * buffer + g;
    s.step({g, 0}, {0, 1});
    EXPECT_EQ(s.sent[0], buffer);
  }
}

TEST(MomentumCorrection, WhatIsNotFiniteIsForgotten) {
  Sender s;
  s.step({std::numeric_limits<float>::infinity(), 2}, {0});
  EXPECT_EQ(s.u, (std::vector<float>{0, 2}));
  s.step({1, 0}, {0});
  EXPECT_EQ(s.sent[0], 1);
}

TEST(DensityInStep, FallsByAFactorOfFour) {
  std::vector<double> found;
  for (int step = 1; step <= 10; ++step) found.push_back(density_in_step(0.01, step, 8));
  const double a = 0.25, b = 0.0625, c = 0.015625, d = 0.01;
  EXPECT_EQ(found, (std::vector<double>{a, a, a, b, b, b, c, c, d, d}));
}

TEST(DensityInStep, NeverRisesAndEndsAtItsOwn) {
  for (const double density : {1e-9, 0.001, 0.0625, 0.1, 0.25, 0.7, 1.0}) {
    for (const std::int64_t steps : {0, 1, 2, 7, 1000}) {
      double before = 1;
      for (std::int64_t n = 1; n <= steps; ++n) {
        const double now = density_in_step(density, n, steps);
        EXPECT_LE(now, before);
        EXPECT_GE(now, density);
        before = now;
      }
      EXPECT_EQ(density_in_step(density, steps + 1, steps), density);
    }
  }
}

}  // namespace
}  // namespace stormo::codec
