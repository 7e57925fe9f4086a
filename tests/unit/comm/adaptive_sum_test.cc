// Gradients that ranks combine by Adasum: what they get, and what they send.
#include <stormo/comm/codec/adaptive_sum.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <string>

#include "stormo/base/rng.h"
#include "tests/unit/codec/combined.h"
#include "tests/unit/comm/ranks.h"

namespace stormo::comm {
namespace {

using codec::MatrixShape;
using Numbers = std::vector<float>;

const std::vector<MatrixShape> kGradients = {
    {.columns = 13}, {.rows = 19, .columns = 31}, {.rows = 3, .columns = 5}, {.columns = 1}};
constexpr std::int64_t kCount = 13 + 19 * 31 + 15 + 1;

Numbers numbers(int rank, int step) {
  Rng rng(static_cast<std::uint64_t>(1000 * rank + step), "adaptive_sum_test");
  Numbers out(static_cast<std::size_t>(kCount));
  for (float& v : out) v = static_cast<float>(8 * rng.uniform() - 3);
  return out;
}

Request request(const Buffer& buffer, EncodedSum& sum) {
  return {
      .kind = OperationKind::kAllReduce, .in = {&buffer, 1}, .out = {&buffer, 1}, .encoding = &sum};
}

/// Replaces `values` by what the ranks' become.
void combine(Communicator& c, AdaptiveSum& sum, Numbers& values, bool blocks = true) {
  const Buffer buffer = values;
  const Request r = request(buffer, sum);
  EXPECT_OK(blocks ? c.run(r, Deadline::never()) : c.submit(r).wait());
}

/// What the ranks get in the last of several steps.
std::vector<Numbers> outcomes(const std::vector<int>& hosts) {
  std::mutex mutex;
  std::vector<Numbers> out(
      static_cast<std::size_t>(std::accumulate(hosts.begin(), hosts.end(), 0)));
  on_hosts(hosts, [&](Communicator& c) {
    AdaptiveSum sum(c, kGradients);
    Numbers values;
    for (int step = 0; step < 3; ++step) {
      values = numbers(c.rank(), step);
      combine(c, sum, values, step % 2 == 0);
    }
    const std::lock_guard lock(mutex);
    out[static_cast<std::size_t>(c.rank())] = values;
  });
  return out;
}

// In a host and between hosts, at a size that no number of ranks divides.
TEST(AdaptiveSum, AllRanksGetTheSameBitsOnOneToNineRanks) {
  std::vector<std::vector<int>> places = {{1, 1, 1}, {2, 1}, {2, 3}, {1, 1, 1, 1, 1}};
  for (int ranks = 1; ranks <= 9; ++ranks) places.push_back({ranks});
  for (const std::vector<int>& hosts : places) {
    const std::string what = ::testing::PrintToString(hosts);
    const std::vector<Numbers> of_ranks = outcomes(hosts);
    std::vector<Numbers> in;
    for (int r = 0; r < std::ssize(of_ranks); ++r) in.push_back(numbers(r, 2));
    const Numbers wanted = test::combined(kGradients, in);
    for (std::size_t r = 0; r < of_ranks.size(); ++r) {
      ASSERT_EQ(of_ranks[r], of_ranks[0]) << what << ", rank " << r;
    }
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      ASSERT_NEAR(of_ranks[0][i], wanted[i], 1e-5) << what << ", " << i;
    }
  }
}

TEST(AdaptiveSum, OrthogonalGradientsAddUpAndEqualOnesAverage) {
  on_hosts({2, 1}, [](Communicator& c) {
    AdaptiveSum sum(c, {{.columns = 5}, {.columns = 4}});
    Numbers values = {0, 0, 0, 0, 0, 1, 2, 3, 4};
    values[static_cast<std::size_t>(c.rank())] = 7;
    combine(c, sum, values);
    EXPECT_EQ(values, (Numbers{7, 7, 7, 0, 0, 1, 2, 3, 4}));
  });
}

// Twice what an all_gather of the numbers sends, and the scalar products of four gradients: of one
// pair, and of the next one with it.
TEST(AdaptiveSum, ARankSendsTwiceTheNumbersAndFewProducts) {
  on_hosts({1, 1, 1}, [](Communicator& c) {
    AdaptiveSum sum(c, kGradients);
    const auto sent_by = [&](const auto& work) {
      const std::uint64_t before = c.bytes_sent();
      work();
      return c.bytes_sent() - before;
    };
    constexpr std::int64_t kPart = (kCount + 2) / 3;
    Numbers whole(3 * kPart), again(whole), part(kPart);
    std::vector<double> products(12);
    const std::uint64_t wanted = sent_by([&] {
      EXPECT_OK(c.all_to_all(whole, again));
      EXPECT_OK(c.all_reduce(products, ReduceOp::kSum));
      EXPECT_OK(c.all_reduce(products, ReduceOp::kSum));
      EXPECT_OK(c.all_gather(part, whole));
    });
    Numbers values = numbers(c.rank(), 0);
    EXPECT_EQ(sent_by([&] { combine(c, sum, values); }), wanted);
    EXPECT_GE(wanted, 4 * kPart * sizeof(float));
  });
}

TEST(AdaptiveSum, RefusesWhatItCannotDo) {
  on_ranks(2, [](Communicator& c) {
    AdaptiveSum sum(c, {{.columns = 20}});
    std::vector<double> doubles(20);
    Numbers values(20), less(19);
    const Buffer wide = doubles, few = less, whole = values;
    EXPECT_EQ(c.run(request(wide, sum), Deadline::never()).message(),
              "a sum in codec adasum: only sums of float32");
    EXPECT_EQ(c.run(request(few, sum), Deadline::never()).code(), Code::kInvalidArgument);
    EXPECT_OK(c.run(request(whole, sum), Deadline::never()));
  });
}

}  // namespace
}  // namespace stormo::comm
