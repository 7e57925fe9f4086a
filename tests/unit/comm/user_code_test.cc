// Code of the user's that runs inside an operation and throws: a failure of the group, with the
// exception's text, and never a lane that stays locked.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

#include "tests/unit/comm/ranks.h"

namespace stormo::comm {
namespace {

using ::testing::HasSubstr;

constexpr Duration kDeadline = std::chrono::seconds(5);

/// Throws on the ranks that say so, each time.
std::shared_ptr<const UserReduction> throwing_sum(bool throws) {
  auto own = std::make_shared<UserReduction>();
  own->name = "sum of the careful";
  own->combine = [throws](const void* term, void* acc, std::int64_t n) {
    if (throws) throw std::domain_error("not a careful number");
    for (std::int64_t i = 0; i < n; ++i) {
      static_cast<float*>(acc)[i] += static_cast<const float*>(term)[i];
    }
  };
  return own;
}

void expect_the_exception(const Status& s) {
  EXPECT_EQ(s.code(), Code::kException) << s.to_string();
  EXPECT_THAT(s.message(), HasSubstr("std::domain_error: not a careful number"));
  EXPECT_THAT(s.message(), HasSubstr("rank 1 (host host0), all_reduce #"));
}

class AReductionThatThrows : public ::testing::TestWithParam<int> {};

TEST_P(AReductionThatThrows, EndsTheGroupAndLeavesNoLaneLocked) {
  on_ranks(
      3,
      [](Communicator& c) {
        std::vector<float> x(static_cast<std::size_t>(GetParam()), 1);
        const Reduction how(throwing_sum(c.rank() == 1));
        const Status first = c.all_reduce(x, how, Deadline::after(kDeadline));
        if (c.rank() == 1) expect_the_exception(first);
        const TimePoint start = std::chrono::steady_clock::now();
        expect_the_exception(c.barrier(Deadline::after(kDeadline)));
        expect_the_exception(c.submit(Request{}).wait(Deadline::after(kDeadline)));
        EXPECT_LT(std::chrono::steady_clock::now() - start, kDeadline);
      },
      /*finalize=*/false);
}

TEST_P(AReductionThatThrows, OnTheLanesThreadToo) {
  on_ranks(
      3,
      [](Communicator& c) {
        std::vector<float> x(static_cast<std::size_t>(GetParam()), 1);
        const Reduction how(throwing_sum(c.rank() == 1));
        const Buffer buffer = x;
        const Status first = c.all_reduce_async({&buffer, 1}, how).wait(Deadline::after(kDeadline));
        if (c.rank() == 1) expect_the_exception(first);
        expect_the_exception(c.submit(Request{}).wait(Deadline::after(kDeadline)));
      },
      /*finalize=*/false);
}

// posted whole; run by a schedule
INSTANTIATE_TEST_SUITE_P(Sizes, AReductionThatThrows, ::testing::Values(3, 100'000));

}  // namespace
}  // namespace stormo::comm
