// What only groups over shared memory have to stand: small operations back to back on their boards.
// What every Communicator does is in tests/conformance.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
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
          EXPECT_OK(c.all_reduce(x.span(), ReduceOp::kSum));
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
    const std::size_t count = 2 * Posting::kMaxBuffers + 10;
    std::vector<std::int64_t> x(count, c.rank() + 1);
    std::vector<Buffer> buffers;
    for (auto& e : x) buffers.push_back(std::span(&e, 1));
    EXPECT_OK(c.all_reduce(buffers, ReduceOp::kSum));
    EXPECT_EQ(x, std::vector<std::int64_t>(count, 3));
  });
}

/// Sender and receiver say different lengths of one block: nothing of it is taken for a result.
TEST(Group, AllToAllOfBlocksThatDifferFails) {
  for (const std::int64_t sent : {2, 40'000}) {
    for (const int more : {1, -1}) {
      const auto body = [&](Communicator& c) {
        std::vector<std::int64_t> in_counts(3, sent), out_counts(3, sent);
        if (c.rank() == 1) in_counts[0] += more;
        std::vector<double> in(std::accumulate(in_counts.begin(), in_counts.end(), std::size_t{0}));
        std::vector<double> out(3 * static_cast<std::size_t>(sent));
        const Status outcome = c.all_to_all(in, in_counts, out, out_counts);
        if (c.rank() != 0) return;  // others may have had all that they need
        EXPECT_EQ(outcome.code(), Code::kMismatch) << outcome.to_string();
        EXPECT_NE(outcome.message().find("rank 1 sends"), std::string::npos) << outcome.to_string();
      };
      on_ranks(3, body, /*finalize=*/false);
    }
  }
}

/// As a hook of gradients does that adds up factors.
TEST(Group, AFunctionOfAnOperationMayWaitForOthers) {
  on_ranks(2, [](Communicator& c) {
    for (int round = 0; round < 20; ++round) {
      std::vector<double> first(100'000, 1), second(100, 1), behind(100, 1);
      const Buffer all[] = {first, second, behind};
      std::promise<Status> told;
      Work outer = c.all_reduce_async({&all[0], 1}, ReduceOp::kSum);
      outer.then([&](const Status&) {
        Work inner = c.all_reduce_async({&all[1], 1}, ReduceOp::kSum);
        told.set_value(inner.wait(Deadline::after(std::chrono::seconds(20))));
      });
      ASSERT_OK(told.get_future().get());
      EXPECT_EQ(second, std::vector<double>(100, 2));
      EXPECT_OK(c.all_reduce_async({&all[2], 1}, ReduceOp::kSum).wait());
      EXPECT_EQ(behind, std::vector<double>(100, 2));
    }
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
      ASSERT_TRUE(c.all_reduce(std::span(&x, 1), ReduceOp::kSum).ok());
      ASSERT_EQ(x, 4 * i + 6);
    }
  });
}

TEST(Group, PostsWholeUpToALimit) {
  const auto posts_whole = [](Communicator& c, OperationKind kind, std::int64_t bytes) {
    std::vector<std::uint8_t> memory(static_cast<std::size_t>(bytes));
    const Buffer b = memory;
    return dynamic_cast<Group&>(c).posts_whole({.kind = kind, .in = {&b, 1}, .out = {&b, 1}});
  };
  const auto expect_limit = [&](Communicator& c, OperationKind kind, std::int64_t bytes) {
    EXPECT_TRUE(posts_whole(c, kind, bytes)) << to_string(kind);
    EXPECT_FALSE(posts_whole(c, kind, bytes + 1)) << to_string(kind);
  };
  on_ranks(1 + transport::usable_cores(), [&](Communicator& c) {
    expect_limit(c, OperationKind::kAllReduce, 8 << 10);
    expect_limit(c, OperationKind::kBroadcast, 32 << 10);
    std::vector<std::uint8_t> x(32 << 10, static_cast<std::uint8_t>(c.rank()));
    EXPECT_OK(c.broadcast(x, 1));
    EXPECT_EQ(x, std::vector<std::uint8_t>(x.size(), 1)) << "the board has room";
  });
}

/// Small operations with a root, which some ranks can leave before others have come.
struct Rooted {
  const char* name;
  bool root_goes_on;  ///< else all but the root do
  std::function<void(Communicator&, Rank root, std::int64_t i)> run_and_check;
};

std::vector<Rooted> rooted_operations() {
  const auto broadcast = [](Communicator& c, Rank root, std::int64_t i) {
    std::int64_t x = c.rank() == root ? i : -1;
    ASSERT_TRUE(c.broadcast(std::span(&x, 1), root).ok());
    ASSERT_EQ(x, i);
  };
  const auto reduce = [](Communicator& c, Rank root, std::int64_t i) {
    std::int64_t x = i + c.rank();
    ASSERT_TRUE(c.reduce(std::span(&x, 1), ReduceOp::kSum, root).ok());
    if (c.rank() == root) {
      ASSERT_EQ(x, c.size() * i + c.size() * (c.size() - 1) / 2);
    }
  };
  const auto scatter = [](Communicator& c, Rank root, std::int64_t i) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(c.size()));
    std::iota(all.begin(), all.end(), i);
    std::int64_t x = -1;
    ASSERT_TRUE(c.scatter(all, std::span(&x, 1), root).ok());
    ASSERT_EQ(x, i + c.rank());
  };
  const auto gather = [](Communicator& c, Rank root, std::int64_t i) {
    std::int64_t x = i + c.rank();
    std::vector<std::int64_t> all(static_cast<std::size_t>(c.size()));
    ASSERT_TRUE(c.gather(std::span(&x, 1), all, root).ok());
    for (int r = 0; c.rank() == root && r < c.size(); ++r) {
      ASSERT_EQ(all[static_cast<std::size_t>(r)], i + r);
    }
  };
  return {{"broadcast", true, broadcast},
          {"scatter", true, scatter},
          {"reduce", false, reduce},
          {"gather", false, gather}};
}

TEST(Group, WhoNeedsNothingOfTheOthersGoesOn) {
  for (const Rooted& operation : rooted_operations()) {
    for (const Rank root : {0, 2}) {
      std::atomic<int> gone_on{0};
      on_ranks(3, [&](Communicator& c) {
        const bool goes_on = (c.rank() == root) == operation.root_goes_on;
        const int all_of_them = operation.root_goes_on ? 1 : 2;
        while (!goes_on && gone_on < all_of_them) std::this_thread::yield();
        operation.run_and_check(c, root, 7);
        if (goes_on) ++gone_on;
        EXPECT_OK(c.barrier());
      });
    }
  }
}

TEST(Group, OperationsWithARootBackToBack) {
  // roots that run ahead must neither overwrite what others still read nor read what is not there
  const std::vector<Rooted> operations = rooted_operations();
  constexpr std::int64_t kOperations = kSanitized ? 500 : 1000;  // all ways within 385
  for (const int n : {2, 3, 5}) {
    on_ranks(n, [&](Communicator& c) {
      for (std::int64_t i = 0; i < kOperations; ++i) {
        const auto root = static_cast<Rank>(i * i % 7 % n);
        operations[static_cast<std::size_t>(i * 5 % 11) % 4].run_and_check(c, root, i);
        if (i % 5 == c.rank()) std::this_thread::yield();
      }
    });
  }
}

TEST(Group, ADifferenceInAnOperationThatWasLeftEarlyIsFoundByTheNext) {
  const auto body = [](Communicator& c) {
    std::int64_t x = 1;
    const Buffer b = std::span(&x, 1);
    // every rank is the root of its own broadcast, so nobody waits
    EXPECT_OK(c.broadcast(b, c.rank()));
    const Status s = c.all_reduce(b, ReduceOp::kSum);
    EXPECT_EQ(s.code(), Code::kMismatch) << s.to_string();
    for (int r = 0; r < 3; ++r) {
      const std::string called = "rank " + std::to_string(r) +
                                 ": broadcast #1 (1 int64 from rank " + std::to_string(r) + ")";
      EXPECT_NE(s.message().find(called), std::string::npos) << s.to_string();
    }
  };
  on_ranks(3, body, /*finalize=*/false);
}

TEST(Group, TheDeadlineOfAWaitForWorkEndsOnlyTheWait) {
  std::atomic<bool> gave_up{false};
  on_ranks(3, [&](Communicator& c) {
    std::vector<float> x(5000);
    const Buffer buffer = x;
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
