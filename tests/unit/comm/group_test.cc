// What only groups over shared memory have to stand: small operations back to back on their boards.
// What every Communicator does is in tests/conformance.
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <vector>

#include "tests/unit/comm/ranks.h"

namespace stormo::comm {
namespace {

constexpr int kSizes[] = {1, 2, 3, 4, 5, 7};
constexpr std::int64_t kCounts[] = {0, 1, 2, 7, 64, 509, 1024, 1025, 4096, 50021};

double value(int rank, std::int64_t i) { return rank + 1 + static_cast<double>(i % 100) * 0.25; }

std::vector<double> input(int rank, std::int64_t count) {
  std::vector<double> v;
  for (std::int64_t i = 0; i < count; ++i) v.push_back(value(rank, i));
  return v;
}

TEST(Group, AllReduceSums) {
  for (const int n : kSizes) {
    on_ranks(n, [n](Communicator& c) {
      for (const std::int64_t count : kCounts) {
        for (const int arena_ranks : {0, 1, n}) {
          Memory<double> x(c, input(c.rank(), count), c.rank() < arena_ranks);
          EXPECT_OK(c.all_reduce(buffer_of(x.span()), ReduceOp::kSum));
          for (std::int64_t i = 0; i < count; ++i) {
            const double want = n * (n + 1) / 2.0 + n * static_cast<double>(i % 100) * 0.25;
            ASSERT_DOUBLE_EQ(x.span()[static_cast<std::size_t>(i)], want) << n << " " << count;
          }
        }
      }
    });
  }
}

TEST(Group, MoreBuffersThanABoardHolds) {
  on_ranks(2, [](Communicator& c) {
    std::vector<std::int64_t> x(3000, c.rank() + 1);
    std::vector<Buffer> buffers;
    for (auto& e : x) buffers.push_back(buffer_of(std::span(&e, 1)));
    EXPECT_OK(c.all_reduce(buffers, ReduceOp::kSum));
    EXPECT_EQ(std::accumulate(x.begin(), x.end(), std::int64_t{0}), 9000);
  });
}

TEST(Group, BarrierWaitsForEveryone) {
  std::atomic<int> arrived{0};
  on_ranks(5, [&](Communicator& c) {
    for (int round = 1; round <= 200; ++round) {
      arrived.fetch_add(1);
      EXPECT_OK(c.barrier());
      EXPECT_GE(arrived.load(), 5 * round);
    }
  });
}

TEST(Group, BoardsAreNotOverwrittenTooEarly) {
  // thousands of tiny operations back to back: a rank that runs ahead must not disturb a slow
  // reader
  on_ranks(4, [](Communicator& c) {
    for (std::int64_t i = 0; i < 5000; ++i) {
      std::int64_t x = i + c.rank();
      ASSERT_TRUE(c.all_reduce(buffer_of(std::span(&x, 1)), ReduceOp::kSum).ok());
      ASSERT_EQ(x, 4 * i + 6);
    }
  });
}

TEST(Group, TheDeadlineOfAWaitForWorkEndsOnlyTheWait) {
  std::atomic<bool> gave_up{false};
  on_ranks(3, [&](Communicator& c) {
    std::vector<float> x(5000);
    const Buffer buffer = buffer_of(std::span(x));
    while (c.rank() != 0 && !gave_up) std::this_thread::yield();
    Work pending = c.all_reduce_async({&buffer, 1}, ReduceOp::kSum);
    if (c.rank() == 0) {
      const Status s = pending.wait(Deadline::after(std::chrono::milliseconds(20)));
      EXPECT_EQ(s.code(), Code::kDeadlineExceeded) << s.to_string();
      EXPECT_OK(c.status());
      gave_up = true;
    }
    EXPECT_OK(pending.wait());
  });
}

}  // namespace
}  // namespace stormo::comm
