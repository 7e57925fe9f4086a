// Sums of few numbers, whose ranks have a momentum: what ranks get, and what is kept.
#include <stormo/comm/codec/sum_of_codes.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <numeric>
#include <utility>

#include "stormo/base/rng.h"
#include "tests/unit/comm/ranks.h"

namespace stormo::comm {
namespace {

using codec::MomentumCorrection;
using Numbers = std::vector<float>;

constexpr MomentumCorrection kMomentum{.momentum = 0.9};
const std::vector<Codec::Kind> kCodecs = {Codec::kTopK, Codec::kThreshold, Codec::kRandomK};

Numbers term(int rank, int step, std::int64_t count) {
  Rng rng(static_cast<std::uint64_t>(1000 * rank + step), "momentum_sums_test");
  Numbers out(static_cast<std::size_t>(count));
  for (float& v : out) v = static_cast<float>(8 * rng.uniform() - 4);
  return out;
}

Status add_up(Communicator& c, SumOfCodes& sum, Numbers& values) {
  const Buffer buffer = values;
  return c.run({.kind = OperationKind::kAllReduce,
                .in = {&buffer, 1},
                .out = {&buffer, 1},
                .encoding = &sum},
               Deadline::never());
}

Numbers copy_of(std::span<const float> values) { return {values.begin(), values.end()}; }

/// Of one step, by rank.
struct Step {
  std::vector<Numbers> in, out, residual, velocity;
  explicit Step(int ranks)
      : in(static_cast<std::size_t>(ranks)), out(in), residual(in), velocity(in) {}
  int ranks() const { return static_cast<int>(in.size()); }
};

struct Sums {
  Codec codec;
  MomentumCorrection correction = kMomentum;
  std::int64_t count = 211;
  int steps = 12;
  std::pair<int, int> not_finite = {-1, -1};  ///< the step and the rank

  std::vector<Step> on(const std::vector<int>& hosts) const {
    std::mutex mutex;
    std::vector<Step> out;
    on_hosts(hosts, [&](Communicator& c) {
      SumOfCodes sum(c, row_of(codec), count, codec.density, correction);
      for (int step = 0; step < steps; ++step) {
        Numbers values = term(c.rank(), step, count);
        if (not_finite == std::pair(step, c.rank())) {
          values[7] = std::numeric_limits<float>::quiet_NaN();
        }
        const Numbers in = values;
        EXPECT_OK(add_up(c, sum, values));
        const std::lock_guard lock(mutex);
        if (std::ssize(out) == step) out.emplace_back(c.size());
        Step& own = out[static_cast<std::size_t>(step)];
        const auto rank = static_cast<std::size_t>(c.rank());
        own.in[rank] = in;
        own.out[rank] = values;
        own.residual[rank] = copy_of(sum.residual());
        own.velocity[rank] = copy_of(sum.velocity());
      }
    });
    return out;
  }
};

/// What all ranks together keep of number `i`, of the terms and of their sums.
double lost(const Step& s, std::size_t i) {
  const std::size_t each = s.velocity[0].size() / s.in.size(), owner = i / each;
  double out = s.residual[owner][each * s.in.size() + i % each];
  for (const Numbers& own : s.residual) out += own[i];
  return out;
}

double momentum(const Step& s, std::size_t i) {
  double out = 0;
  for (const Numbers& own : s.velocity) out += own[i];
  return out;
}

// Momentum and what was kept before are what is delivered and what is kept now.
TEST(MomentumSums, LoseNothingInAnyStep) {
  for (const Codec::Kind kind : kCodecs) {
    for (const auto& hosts : std::vector<std::vector<int>>{{1}, {2}, {1, 1}, {5}}) {
      const std::vector<Step> steps = Sums{.codec = {kind, 0.05}}.on(hosts);
      Step before(steps[0].ranks());
      for (const Step& s : steps) {
        for (const Numbers& one : s.out) ASSERT_EQ(one, s.out[0]) << "other bits";
        for (std::size_t i = 0; i < s.in[0].size(); ++i) {
          const bool first = before.out[0].empty();
          double in = first ? 0 : lost(before, i) + 0.9 * momentum(before, i);
          for (const Numbers& own : s.in) in += own[i];
          ASSERT_NEAR(in, s.out[0][i] + lost(s, i), 2e-4)
              << to_string(kind) << " on " << s.ranks() << " ranks, number " << i;
        }
        before = s;
      }
    }
  }
}

/// Ranks of top_k one after the other, in one process.
struct Oracle {
  int ranks;
  std::size_t count;
  double density;
  std::size_t each =
      (count + static_cast<std::size_t>(ranks) - 1) / static_cast<std::size_t>(ranks);
  std::vector<Numbers> u = std::vector<Numbers>(static_cast<std::size_t>(ranks), Numbers(count));
  std::vector<Numbers> v = u;
  Numbers sums = Numbers(count);  ///< what their owners keep

  /// Takes the largest numbers out of a part. No two have the same magnitude.
  Numbers largest(std::span<float> values) const {
    const auto share = std::nearbyint(density * static_cast<double>(values.size()));
    const auto kept = std::max<std::size_t>(1, static_cast<std::size_t>(share));
    std::vector<std::size_t> order(values.size());
    std::iota(order.begin(), order.end(), 0u);
    std::ranges::sort(order, std::greater(), [&](std::size_t i) { return std::fabs(values[i]); });
    Numbers out(values.size());
    for (std::size_t i = 0; i < kept; ++i) std::swap(out[order[i]], values[order[i]]);
    return out;
  }

  Numbers step(const std::vector<Numbers>& in) {
    Numbers out(count);
    for (std::size_t begin = 0; begin < count; begin += each) {
      const std::size_t size = std::min(each, count - begin);
      for (std::size_t r = 0; r < in.size(); ++r) {
        std::vector<bool> late(size);
        for (std::size_t i = 0; i < size; ++i) {
          late[i] = v[r][begin + i] != 0;
          u[r][begin + i] = 0.9f * u[r][begin + i] + in[r][begin + i];
          v[r][begin + i] += u[r][begin + i];
        }
        const Numbers sent = largest(std::span(v[r]).subspan(begin, size));
        for (std::size_t i = 0; i < size; ++i) {
          sums[begin + i] += sent[i];
          if (late[i] && sent[i] != 0) u[r][begin + i] = 0;
        }
      }
      const Numbers sent = largest(std::span(sums).subspan(begin, size));
      std::ranges::copy(sent, out.begin() + static_cast<std::ptrdiff_t>(begin));
    }
    return out;
  }
};

TEST(MomentumSums, HaveTheBitsOfOneProcess) {
  for (const int ranks : {1, 2, 3, 5}) {
    for (const double density : {0.03, 0.3}) {
      const std::vector<Step> steps = Sums{.codec = {Codec::kTopK, density}}.on({ranks});
      Oracle oracle{.ranks = ranks, .count = 211, .density = density};
      for (const Step& s : steps) {
        ASSERT_EQ(s.out[0], oracle.step(s.in)) << ranks << " ranks, density " << density;
        for (std::size_t r = 0; r < s.in.size(); ++r) {
          ASSERT_TRUE(std::ranges::equal(oracle.u[r], std::span(s.velocity[r]).first(211)));
          ASSERT_TRUE(std::ranges::equal(oracle.v[r], std::span(s.residual[r]).first(211)));
        }
      }
    }
  }
}

// The law by which momentum is masked only where something was late.
TEST(MomentumSums, WithAllNumbersHaveTheMomentumOfOneProcess) {
  for (const Codec::Kind kind : kCodecs) {
    const std::vector<Step> steps = Sums{.codec = {kind, 1}, .steps = 30}.on({3});
    std::vector<double> buffer(211);
    for (const Step& s : steps) {
      for (std::size_t i = 0; i < buffer.size(); ++i) {
        buffer[i] *= 0.9;
        for (const Numbers& own : s.in) buffer[i] += own[i];
        ASSERT_NEAR(s.out[0][i], buffer[i], 1e-4) << to_string(kind) << ", number " << i;
        ASSERT_EQ(lost(s, i), 0) << to_string(kind);
      }
    }
  }
}

TEST(MomentumSums, MaskWhatWasSentLate) {
  const std::vector<Step> steps = Sums{.codec = {Codec::kTopK, 0.5}, .steps = 40}.on({3});
  int masked = 0, kept = 0;
  for (std::size_t n = 1; n < steps.size(); ++n) {
    for (std::size_t r = 0; r < 3; ++r) {
      for (std::size_t i = 0; i < 211; ++i) {
        const bool is_sent = steps[n].residual[r][i] == 0;
        const bool was_late = steps[n - 1].residual[r][i] != 0;
        EXPECT_EQ(steps[n].velocity[r][i] == 0, is_sent && was_late);
        if (is_sent) ++(was_late ? masked : kept);
      }
    }
  }
  EXPECT_GT(masked, 1000);
  EXPECT_GT(kept, 0);
}

TEST(MomentumSums, ClipEachRanksTermByItsShareOfTheNorm) {
  constexpr double kClip = 0.5;
  const Sums run{
      .codec = {Codec::kTopK, 1}, .correction = {.momentum = 0.9, .clip_norm = kClip}, .steps = 1};
  const std::vector<Step> steps = run.on({4});
  for (std::size_t r = 0; r < 4; ++r) {
    const Numbers& u = steps[0].velocity[r];
    const double squares = std::inner_product(u.begin(), u.end(), u.begin(), 0.0);
    EXPECT_NEAR(std::sqrt(squares), kClip / 2, 1e-5);
    const Numbers& in = steps[0].in[r];
    EXPECT_NEAR(u[3] / u[5], in[3] / in[5], 1e-5);
  }
}

// The step is skipped; those after it are sound, and go on with all else that was kept.
TEST(MomentumSums, ANumberThatIsNotFiniteIsForgottenByAllRanks) {
  for (const Codec::Kind kind : kCodecs) {
    const std::vector<Step> steps = Sums{.codec = {kind, 0.05}, .not_finite = {5, 1}}.on({3});
    for (std::size_t n = 0; n < steps.size(); ++n) {
      const auto is_finite = [](float v) { return std::isfinite(v); };
      EXPECT_EQ(std::ranges::all_of(steps[n].out[0], is_finite), n != 5) << to_string(kind);
      for (std::size_t r = 0; r < 3; ++r) {
        EXPECT_TRUE(std::ranges::all_of(steps[n].residual[r], is_finite)) << to_string(kind);
        EXPECT_TRUE(std::ranges::all_of(steps[n].velocity[r], is_finite)) << to_string(kind);
      }
    }
  }
}

TEST(MomentumSums, AnotherOneGoesOnBitForBit) {
  for (const Codec::Kind kind : kCodecs) {
    on_ranks(3, [&](Communicator& c) {
      const CodecRow& row = row_of(kind);
      SumOfCodes first(c, row, 500, 0.1, kMomentum), second(c, row, 500, 0.1, kMomentum);
      for (int step = 0; step < 6; ++step) {
        Numbers values = term(c.rank(), step, 500), others = values;
        if (step == 3) {
          second.set_sums(first.sums());
          std::ranges::copy(first.kept().at(0).numbers, second.kept().at(0).numbers.begin());
        }
        EXPECT_OK(add_up(c, first, values));
        if (step < 3) continue;
        EXPECT_OK(add_up(c, second, others));
        EXPECT_EQ(values, others) << to_string(kind);
      }
    });
  }
}

}  // namespace
}  // namespace stormo::comm
