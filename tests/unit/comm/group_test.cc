// Collectives with threads as ranks, against closed forms.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include "tests/unit/comm/ranks.h"

namespace stormo::comm {
namespace {

constexpr int kSizes[] = {1, 2, 3, 4, 5, 7};
constexpr std::int64_t kCounts[] = {0, 1, 2, 7, 64, 509, 1024, 1025, 4096, 50021};

double value(int rank, std::int64_t i) { return rank + 1 + static_cast<double>(i % 100) * 0.25; }

template <class T>
std::vector<T> input(int rank, std::int64_t count) {
  std::vector<T> v(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i)
    v[static_cast<std::size_t>(i)] = static_cast<T>(value(rank, i));
  return v;
}

TEST(Group, AllReduceSums) {
  for (const int n : kSizes) {
    on_ranks(n, [n](Communicator& c) {
      for (const std::int64_t count : kCounts) {
        for (const int arena_ranks : {0, 1, n}) {
          Memory<double> x(c, input<double>(c.rank(), count), c.rank() < arena_ranks);
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

TEST(Group, AllReduceOfManyBuffersIsOneOperation) {
  on_ranks(3, [](Communicator& c) {
    std::vector<std::vector<float>> tensors;
    std::vector<Buffer> buffers;
    for (const std::int64_t count : {5, 0, 1, 3000, 17, 20000}) {
      tensors.push_back(input<float>(c.rank(), count));
    }
    for (auto& t : tensors) buffers.push_back(buffer_of(std::span(t)));
    EXPECT_OK(c.all_reduce(buffers, ReduceOp::kAverage));
    for (const auto& t : tensors) {
      for (std::size_t i = 0; i < t.size(); ++i) {
        ASSERT_FLOAT_EQ(t[i], static_cast<float>(value(1, static_cast<std::int64_t>(i))));
      }
    }
  });
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

TEST(Group, WeightedAverageIgnoresRanksOfWeightZero) {
  for (const std::int64_t count : {3, 40000}) {
    on_ranks(4, [count](Communicator& c) {
      std::vector<double> x(static_cast<std::size_t>(count), c.rank());
      if (c.rank() == 2) std::fill(x.begin(), x.end(), std::nan(""));  // must not be read
      const double weights[] = {1, 3, 0, 4};
      const Buffer b = buffer_of(std::span(x));
      EXPECT_OK(c.all_reduce({&b, 1}, ReduceOp::kWeightedAverage, weights[c.rank()]));
      for (const double v : x) ASSERT_DOUBLE_EQ(v, (0.0 * 1 + 1.0 * 3 + 3.0 * 4) / 8);
    });
  }
}

TEST(Group, MinimumAndMaximumOfIntegers) {
  on_ranks(5, [](Communicator& c) {
    for (const std::int64_t count : {3, 30000}) {
      std::vector<std::int32_t> low(static_cast<std::size_t>(count), 10 - c.rank());
      std::vector<std::int32_t> high = low;
      EXPECT_OK(c.all_reduce(buffer_of(std::span(low)), ReduceOp::kMin));
      EXPECT_OK(c.all_reduce(buffer_of(std::span(high)), ReduceOp::kMax));
      EXPECT_EQ(low.back(), 6);
      EXPECT_EQ(high.back(), 10);
    }
  });
}

TEST(Group, ReplicasAreBitwiseEqual) {
  on_ranks(3, [](Communicator& c) {
    std::vector<float> x(10007);
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = 0.1f * static_cast<float>(c.rank() + 1) / static_cast<float>(i + 3);
    }
    EXPECT_OK(c.all_reduce(buffer_of(std::span(x)), ReduceOp::kAverage));
    std::vector<float> all(x.size() * 3);
    EXPECT_OK(c.all_gather(buffer_of(std::span(x)), buffer_of(std::span(all))));
    for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], x[i % x.size()]);
  });
}

TEST(Group, BroadcastFromAnyRoot) {
  for (const int n : kSizes) {
    on_ranks(n, [n](Communicator& c) {
      for (int root = 0; root < n; ++root) {
        for (const std::int64_t count : {0, 5, 100003}) {
          auto x = input<float>(c.rank(), count);
          EXPECT_OK(c.broadcast(buffer_of(std::span(x)), root));
          EXPECT_EQ(x, input<float>(root, count));
        }
      }
    });
  }
}

TEST(Group, AllGatherKeepsRankOrder) {
  for (const int n : kSizes) {
    on_ranks(n, [n](Communicator& c) {
      for (const std::int64_t count : kCounts) {
        auto in = input<std::int64_t>(c.rank(), count);
        std::vector<std::int64_t> out(static_cast<std::size_t>(count * n));
        EXPECT_OK(c.all_gather(buffer_of(std::span(in)), buffer_of(std::span(out))));
        for (int r = 0; r < n; ++r) {
          const auto want = input<std::int64_t>(r, count);
          EXPECT_TRUE(std::equal(want.begin(), want.end(), out.begin() + r * count));
        }
      }
    });
  }
}

TEST(Group, ReduceScatterGivesEachRankItsSlice) {
  for (const int n : kSizes) {
    on_ranks(n, [n](Communicator& c) {
      for (const std::int64_t count : kCounts) {
        auto in = input<double>(c.rank(), count * n);
        std::vector<double> out(static_cast<std::size_t>(count));
        EXPECT_OK(
            c.reduce_scatter(buffer_of(std::span(in)), buffer_of(std::span(out)), ReduceOp::kSum));
        for (std::int64_t i = 0; i < count; ++i) {
          const std::int64_t at = c.rank() * count + i;
          const double want = n * (n + 1) / 2.0 + n * static_cast<double>(at % 100) * 0.25;
          ASSERT_DOUBLE_EQ(out[static_cast<std::size_t>(i)], want);
        }
      }
    });
  }
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

TEST(Group, MessagesKeepTheirOrder) {
  on_ranks(3, [](Communicator& c) {
    const int next = (c.rank() + 1) % 3;
    const int previous = (c.rank() + 2) % 3;
    for (const std::int64_t count : {1, 1000, 300000}) {
      auto mine = input<double>(c.rank(), count);
      auto other = input<double>(0, count);
      // operations run in the order submitted: in a ring somebody must receive first
      if (c.rank() == 0) {
        EXPECT_OK(c.recv(buffer_of(std::span(other)), previous, 7));
        EXPECT_OK(c.send(buffer_of(std::span(mine)), next, 7));
      } else {
        Work sent = c.send_async(buffer_of(std::span(mine)), next, 7);
        EXPECT_OK(c.recv(buffer_of(std::span(other)), previous, 7));
        EXPECT_OK(sent.wait());
      }
      EXPECT_EQ(other, input<double>(previous, count));
    }
  });
}

TEST(Group, AsynchronousWorkRunsInOrder) {
  on_ranks(4, [](Communicator& c) {
    std::vector<std::vector<float>> tensors;
    for (int i = 0; i < 50; ++i) tensors.push_back(std::vector<float>(1 + i * 37u, 1.0f));
    std::vector<Work> pending;
    for (auto& t : tensors) {
      const Buffer b = buffer_of(std::span(t));
      pending.push_back(c.all_reduce_async({&b, 1}, ReduceOp::kSum));
    }
    EXPECT_OK(c.barrier());
    for (Work& w : pending) {
      EXPECT_TRUE(w.test());
      EXPECT_OK(w.wait());
    }
    for (const auto& t : tensors) {
      for (const float v : t) ASSERT_EQ(v, 4.0f);
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

/// Input of a rank that is about to call something wrong.
thread_local std::vector<float> mine;

struct Mismatch {
  const char* name;
  std::function<Status(Communicator&)> first;  // rank 0
  std::function<Status(Communicator&)> others;
};

TEST(Group, MismatchedCallsRaiseOnEveryRankWithATable) {
  const auto floats = [](std::int64_t n) {
    mine.assign(static_cast<std::size_t>(n), 1.0f);
    return buffer_of(std::span(mine));
  };
  const auto reduce_floats = [floats](std::int64_t n, ReduceOp op) {
    return [=](Communicator& c) { return c.all_reduce(floats(n), op); };
  };
  const Mismatch cases[] = {
      {"count", reduce_floats(10, ReduceOp::kSum), reduce_floats(11, ReduceOp::kSum)},
      {"large count", reduce_floats(10000, ReduceOp::kSum), reduce_floats(10001, ReduceOp::kSum)},
      {"inline or not", reduce_floats(10, ReduceOp::kSum), reduce_floats(100000, ReduceOp::kSum)},
      {"reduction", reduce_floats(10, ReduceOp::kSum), reduce_floats(10, ReduceOp::kMax)},
      {"dtype", reduce_floats(10, ReduceOp::kSum),
       [](Communicator& c) {
         std::int32_t x[10] = {};
         return c.all_reduce(buffer_of(std::span(x)), ReduceOp::kSum);
       }},
      {"kind", reduce_floats(10, ReduceOp::kSum), [](Communicator& c) { return c.barrier(); }},
      {"root", [=](Communicator& c) { return c.broadcast(floats(10), 0); },
       [=](Communicator& c) { return c.broadcast(floats(10), 1); }},
      {"finalize", [](Communicator& c) { return c.finalize(Deadline::never()); },
       reduce_floats(10, ReduceOp::kSum)},
  };
  for (const Mismatch& m : cases) {
    on_ranks(
        3,
        [&m](Communicator& c) {
          EXPECT_OK(c.barrier());
          const Status s = c.rank() == 0 ? m.first(c) : m.others(c);
          EXPECT_EQ(s.code(), Code::kMismatch) << m.name << ": " << s.to_string();
          for (const char* row : {"rank 0: ", "rank 1: ", "rank 2: "}) {
            EXPECT_NE(s.message().find(row), std::string::npos) << s.to_string();
          }
          const Status later = c.barrier();
          EXPECT_EQ(later.code(), Code::kMismatch)
              << "the group stays failed: " << later.to_string();
        },
        /*finalize=*/false);
  }
}

TEST(Group, AFailureEndsEveryWait) {
  on_ranks(
      3,
      [](Communicator& c) {
        EXPECT_OK(c.barrier());
        if (c.rank() == 1) {
          c.fail({Code::kIo, "rank 1: disk full"});
          return;
        }
        const Status s = c.barrier();
        EXPECT_EQ(s.code(), Code::kIo) << s.to_string();
        EXPECT_NE(s.message().find("disk full"), std::string::npos);
      },
      /*finalize=*/false);
}

TEST(Group, ADeadlineEndsTheWaitAndTheGroup) {
  on_ranks(
      2,
      [](Communicator& c) {
        if (c.rank() == 1) {
          while (c.status().ok()) std::this_thread::yield();
          return;
        }
        const Status s = c.barrier(Deadline::after(std::chrono::milliseconds(60)));
        EXPECT_EQ(s.code(), Code::kDeadlineExceeded) << s.to_string();
      },
      /*finalize=*/false);
}

TEST(Group, BadArgumentsAreRefusedBeforeAnythingIsSent) {
  on_ranks(2, [](Communicator& c) {
    std::vector<float> x(4);
    std::vector<float> y(4);
    std::vector<std::int32_t> z(4);
    EXPECT_EQ(c.all_gather(buffer_of(std::span(x)), buffer_of(std::span(y))).code(),
              Code::kInvalidArgument);
    EXPECT_EQ(c.all_reduce(buffer_of(std::span(z)), ReduceOp::kAverage).code(),
              Code::kInvalidArgument);
    EXPECT_EQ(c.broadcast(buffer_of(std::span(x)), 2).code(), Code::kInvalidArgument);
    EXPECT_EQ(c.send(buffer_of(std::span(x)), c.rank(), 0).code(), Code::kInvalidArgument);
    const Buffer mixed[] = {buffer_of(std::span(x)), buffer_of(std::span(z))};
    EXPECT_EQ(c.all_reduce(mixed, ReduceOp::kSum).code(), Code::kInvalidArgument);
    EXPECT_OK(c.barrier());
  });
}

}  // namespace
}  // namespace stormo::comm
