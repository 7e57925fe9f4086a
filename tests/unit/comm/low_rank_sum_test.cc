// Sums of gradients as factors of low rank: what ranks get, what is kept for the next sum, and what
// they send.
#include <stormo/comm/codec/low_rank_sum.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <string>
#include <utility>

#include "stormo/base/rng.h"
#include "tests/unit/comm/ranks.h"

namespace stormo::comm {
namespace {

using codec::MatrixShape;

/// Two matrices of odd sizes, and gradients without factors around them.
const std::vector<MatrixShape> kGradients = {{.columns = 13},
                                             {.rows = 19, .columns = 31},
                                             {.rows = 3, .columns = 5},
                                             {.rows = 41, .columns = 17},
                                             {.columns = 1}};
constexpr std::int64_t kCount = 13 + 19 * 31 + 15 + 41 * 17 + 1;
constexpr int kRank = 2;
constexpr std::int64_t kLeft = kRank * (19 + 41) + 13 + 15 + 1, kRight = kRank * (31 + 17);

std::vector<float> numbers(int rank, int step) {
  Rng rng(static_cast<std::uint64_t>(1000 * rank + step), "low_rank_sum_test");
  std::vector<float> out(static_cast<std::size_t>(kCount));
  for (float& v : out) v = static_cast<float>(8 * rng.uniform() - 4);
  return out;
}

Request request(const Buffer& buffer, EncodedSum& sum) {
  return {
      .kind = OperationKind::kAllReduce, .in = {&buffer, 1}, .out = {&buffer, 1}, .encoding = &sum};
}

/// Replaces `values` by the sum of those of all ranks.
void add_up(Communicator& c, LowRankSum& sum, std::vector<float>& values, bool blocks = true) {
  const Buffer buffer = values;
  const Request r = request(buffer, sum);
  EXPECT_OK(blocks ? c.run(r, Deadline::never()) : c.submit(r).wait());
}

/// Of the sums of one step, by rank.
struct Step {
  std::vector<std::vector<float>> in, out, lost, right;
};

std::vector<Step> steps_of(const std::vector<int>& hosts, int steps) {
  std::mutex mutex;
  const auto ranks = static_cast<std::size_t>(std::accumulate(hosts.begin(), hosts.end(), 0));
  const std::vector<std::vector<float>> each(ranks);
  std::vector<Step> out(static_cast<std::size_t>(steps), {each, each, each, each});
  on_hosts(hosts, [&](Communicator& c) {
    const auto rank = static_cast<std::size_t>(c.rank());
    LowRankSum sum(c, kGradients, kRank);
    for (int step = 0; step < steps; ++step) {
      std::vector<float> values = numbers(c.rank(), step);
      const std::vector<float> in = values;
      add_up(c, sum, values, step % 2 == 0);
      const std::vector<EncodedSum::Kept> kept = sum.kept();
      const std::lock_guard lock(mutex);
      Step& own = out[static_cast<std::size_t>(step)];
      own.in[rank] = in;
      own.out[rank] = values;
      own.lost[rank].assign(kept[0].numbers.begin(), kept[0].numbers.end());
      own.right[rank].assign(kept[1].numbers.begin(), kept[1].numbers.end());
    }
  });
  return out;
}

double sum_of(const std::vector<std::vector<float>>& ranks, std::size_t i) {
  double out = 0;
  for (const std::vector<float>& one : ranks) out += one[i];
  return out;
}

// Whatever the number of ranks, in a host and between hosts. In each step what goes in with what
// was lost before is what comes out with what is lost now.
TEST(LowRankSum, AllRanksGetTheSameBitsAndNothingIsLost) {
  const std::vector<std::vector<int>> places = {{1}, {2}, {3}, {4}, {5}, {1, 1, 1}, {2, 1}, {2, 3}};
  for (const std::vector<int>& hosts : places) {
    const std::string what = ::testing::PrintToString(hosts);
    std::vector<double> before(kCount);
    double lost = 0;
    for (const Step& s : steps_of(hosts, 8)) {
      for (std::size_t r = 0; r < s.out.size(); ++r) {
        ASSERT_EQ(s.out[r], s.out[0]) << what;
        ASSERT_EQ(s.right[r], s.right[0]) << what;
      }
      for (std::size_t i = 0; i < before.size(); ++i) {
        const double now = sum_of(s.lost, i);
        ASSERT_NEAR(sum_of(s.in, i) + before[i], s.out[0][i] + now, 1e-4) << what << ", " << i;
        before[i] = now;
        lost += std::fabs(now);
      }
    }
    EXPECT_GT(lost, 100) << what;
  }
}

// So no rank has to know how the others' matrices differ.
TEST(LowRankSum, WhatOneRankHasLostIsOrthogonalToWhatIsDelivered) {
  const Step step = steps_of({3}, 1).front();
  for (const std::vector<float>& lost : step.lost) {
    for (std::size_t column = 0; column < 31; ++column) {  // of the first matrix
      double product = 0, size = 0;
      for (std::size_t row = 0; row < 19; ++row) {
        const std::size_t i = 13 + 31 * row + column;
        product += static_cast<double>(lost[i]) * step.out[0][i];
        size += std::fabs(static_cast<double>(lost[i]) * step.out[0][i]);
      }
      EXPECT_LT(std::fabs(product), 1e-4 * (1 + size));
    }
  }
}

// The sum of two products is of rank two, though each rank has one of full rank beside it.
TEST(LowRankSum, ASumOfItsRankComesOutWhole) {
  on_hosts({2, 1}, [](Communicator& c) {
    LowRankSum sum(c, {{.rows = 23, .columns = 29}}, 2);
    const double sign = c.rank() == 0 ? 1 : c.rank() == 1 ? -1 : 0;  // what cancels out
    std::vector<float> values(23 * 29), wanted(values.size());
    Rng rng(5, "low_rank_sum_test");
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto row = static_cast<double>(i / 29), column = static_cast<double>(i % 29);
      const double product = std::sin(row) * std::cos(column) + 0.3 * row / (1 + column);
      values[i] = static_cast<float>(product + sign * rng.uniform());
      wanted[i] = static_cast<float>(3 * product);
    }
    add_up(c, sum, values);
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(values[i], wanted[i], 1e-4);
  });
}

// Above the rank of any matrix all travel as they are, in one message.
TEST(LowRankSum, WithoutFactorsItIsAPlainSum) {
  on_hosts({2, 1}, [](Communicator& c) {
    LowRankSum sum(c, kGradients, 41);
    std::vector<float> values = numbers(c.rank(), 0), plain = values;
    add_up(c, sum, values);
    EXPECT_OK(c.all_reduce(plain, ReduceOp::kSum));
    EXPECT_EQ(values, plain);
    EXPECT_EQ(sum.kept().size(), 1u);
  });
}

TEST(LowRankSum, ARankSendsTwoMessagesOfFactors) {
  on_hosts({1, 1, 1}, [](Communicator& c) {
    LowRankSum sum(c, kGradients, kRank);
    const auto sent_by = [&](const auto& work) {
      const std::uint64_t before = c.bytes_sent();
      work();
      return c.bytes_sent() - before;
    };
    std::vector<float> values = numbers(c.rank(), 0), left(kLeft), right(kRight);
    const std::uint64_t plain = sent_by([&] {
      EXPECT_OK(c.all_reduce(left, ReduceOp::kSum));
      EXPECT_OK(c.all_reduce(right, ReduceOp::kSum));
    });
    EXPECT_EQ(sent_by([&] { add_up(c, sum, values); }), plain);
    EXPECT_GT(plain, 0u);
  });
}

// What it keeps is all that it needs.
TEST(LowRankSum, AnotherOneGoesOnBitForBit) {
  on_ranks(3, [](Communicator& c) {
    LowRankSum first(c, kGradients, kRank), second(c, kGradients, kRank);
    for (int step = 0; step < 6; ++step) {
      std::vector<float> values = numbers(c.rank(), step), again = values;
      add_up(c, first, values);
      if (step < 3) continue;
      add_up(c, second, again);
      if (step > 3) {
        EXPECT_EQ(again, values);
      }
      const std::vector<EncodedSum::Kept> from = first.kept(), to = second.kept();
      for (std::size_t i = 0; i < from.size(); ++i) {
        std::ranges::copy(from[i].numbers, to[i].numbers.begin());
      }
      second.set_sums(first.sums());
    }
  });
}

// All ranks see in which gradient it is, and the sums after it are sound.
TEST(LowRankSum, ANumberThatIsNotFiniteComesOutOnAllRanksInItsMatrix) {
  on_ranks(3, [](Communicator& c) {
    LowRankSum sum(c, kGradients, kRank);
    for (int step = 0; step < 3; ++step) {
      std::vector<float> values = numbers(c.rank(), step);
      constexpr std::ptrdiff_t kBegin = 13, kEnd = 13 + 19 * 31;
      if (step == 1 && c.rank() == 2) values[100] = std::numeric_limits<float>::quiet_NaN();
      add_up(c, sum, values);
      const auto finite = [](float v) { return std::isfinite(v); };
      const auto begin = values.begin() + kBegin, end = values.begin() + kEnd;
      EXPECT_TRUE(std::all_of(values.begin(), begin, finite));
      EXPECT_TRUE(std::all_of(end, values.end(), finite));
      EXPECT_EQ(std::count_if(begin, end, finite), step == 1 ? 0 : kEnd - kBegin);
    }
  });
}

// Each rank has a minimum of its own; together they reach the mean, as with plain sums.
TEST(LowRankSum, DescentReachesTheMinimum) {
  on_ranks(3, [](Communicator& c) {
    LowRankSum sum(c, kGradients, kRank);
    const std::vector<float> own = numbers(c.rank(), 0);
    std::vector<float> x(own.size()), gradient(own.size()), wanted(own.size());
    for (int r = 0; r < 3; ++r) {
      const std::vector<float> minimum = numbers(r, 0);
      for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += minimum[i] / 3;
    }
    for (int step = 0; step < 400; ++step) {
      for (std::size_t i = 0; i < x.size(); ++i) gradient[i] = (x[i] - own[i]) / 3;
      add_up(c, sum, gradient);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] -= 0.05f * gradient[i];
    }
    double end = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      end = std::max(end, std::fabs(static_cast<double>(x[i]) - wanted[i]));
    }
    EXPECT_LT(end, 0.01);
  });
}

TEST(LowRankSum, RefusesWhatItCannotDo) {
  on_ranks(2, [](Communicator& c) {
    LowRankSum sum(c, {{.rows = 20, .columns = 20}}, 1);
    std::vector<float> values(400), part(200);
    const Buffer whole = values, half = part;
    Request scatter = request(whole, sum);
    scatter.kind = OperationKind::kReduceScatter;
    scatter.out = {&half, 1};
    const Status refused = c.run(scatter, Deadline::never());
    EXPECT_EQ(refused.message(), "a sum in codec powersgd: only all_reduce");
    EXPECT_EQ(c.run(request(half, sum), Deadline::never()).code(), Code::kInvalidArgument);
    EXPECT_OK(c.run(request(whole, sum), Deadline::never()));
  });
}

}  // namespace
}  // namespace stormo::comm
