// Every operation against a serial oracle, over shared memory, TCP and both, with buffers in the
// Arena and outside, equal parts and parts of different size.
#include <algorithm>
#include <cstdint>

#include <stormo/schedule/builders.h>

#include "tests/unit/comm/ranks.h"

namespace stormo::comm {
namespace {

using Values = std::vector<std::int64_t>;

const std::vector<std::vector<int>> kHosts = {{1},    {2},    {3},       {5},      {1, 1},
                                              {2, 2}, {1, 2}, {1, 1, 1}, {2, 1, 2}};
constexpr std::int64_t kCounts[] = {0, 1, 2, 7, 509, 5000, 50021};

std::int64_t value(int rank, std::int64_t i) { return (rank + 1) * 1000 + i % 97; }

Values input(int rank, std::int64_t count, std::int64_t from = 0) {
  Values v;
  for (std::int64_t i = from; i < from + count; ++i) v.push_back(value(rank, i));
  return v;
}

/// Elements from..from+count of the sum over ranks first..last-1.
Values sum(int first, int last, std::int64_t count, std::int64_t from = 0) {
  Values v(static_cast<std::size_t>(count));
  for (int r = first; r < last; ++r) {
    for (std::int64_t i = 0; i < count; ++i) {
      v[static_cast<std::size_t>(i)] += value(r, from + i);
    }
  }
  return v;
}

/// Rank r's part of a whole whose parts differ, some of them empty.
Values uneven_counts(int n, std::int64_t count) {
  Values counts;
  for (int r = 0; r < n; ++r) counts.push_back(r % 3 == 1 ? 0 : count + r);
  return counts;
}
std::int64_t before(const Values& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
}

/// Calls f(communicator, count, arena) on every rank of every placement.
void sweep(const std::function<void(Communicator&, std::int64_t, bool)>& f) {
  for (const auto& hosts : kHosts) {
    on_hosts(hosts, [&](Communicator& c) {
      for (const std::int64_t count : kCounts) {
        // none in the Arena, all, and only those of even ranks
        for (const int arena : {0, 1, 2})
          f(c, count, arena == 1 || (arena == 2 && c.rank() % 2 == 0));
      }
    });
  }
}

TEST(Operations, AllReduce) {
  sweep([](Communicator& c, std::int64_t count, bool arena) {
    Memory<std::int64_t> x(c, input(c.rank(), count), arena);
    EXPECT_OK(c.all_reduce(x.buffer(), ReduceOp::kSum));
    ASSERT_EQ(x.values(), sum(0, c.size(), count));
  });
}

TEST(Operations, ReduceToAnyRoot) {
  sweep([](Communicator& c, std::int64_t count, bool arena) {
    for (const Rank root : {0, c.size() - 1}) {
      Memory<std::int64_t> x(c, input(c.rank(), count), arena);
      EXPECT_OK(c.reduce(x.buffer(), ReduceOp::kSum, root));
      if (c.rank() != root) continue;
      ASSERT_EQ(x.values(), sum(0, c.size(), count));
    }
  });
}

TEST(Operations, BroadcastFromAnyRoot) {
  sweep([](Communicator& c, std::int64_t count, bool arena) {
    for (const Rank root : {0, c.size() - 1}) {
      Memory<std::int64_t> x(c, input(c.rank(), count), arena);
      EXPECT_OK(c.broadcast(x.buffer(), root));
      ASSERT_EQ(x.values(), input(root, count));
    }
  });
}

TEST(Operations, Scan) {
  sweep([](Communicator& c, std::int64_t count, bool arena) {
    Memory<std::int64_t> x(c, input(c.rank(), count), arena);
    EXPECT_OK(c.scan(x.buffer(), ReduceOp::kSum));
    ASSERT_EQ(x.values(), sum(0, c.rank() + 1, count));
  });
}

TEST(Operations, ExclusiveScanLeavesRankZeroAlone) {
  sweep([](Communicator& c, std::int64_t count, bool arena) {
    Memory<std::int64_t> x(c, input(c.rank(), count), arena);
    EXPECT_OK(c.exclusive_scan(x.buffer(), ReduceOp::kSum));
    ASSERT_EQ(x.values(), c.rank() == 0 ? input(0, count) : sum(0, c.rank(), count));
  });
}

TEST(Operations, AllGather) {
  sweep([](Communicator& c, std::int64_t count, bool arena) {
    const int n = c.size();
    for (const bool equal : {true, false}) {
      const Values counts =
          equal ? Values(static_cast<std::size_t>(n), count) : uneven_counts(n, count);
      const std::int64_t mine = counts[static_cast<std::size_t>(c.rank())];
      Values want;
      for (int r = 0; r < n; ++r) {
        const Values part = input(r, counts[static_cast<std::size_t>(r)]);
        want.insert(want.end(), part.begin(), part.end());
      }
      Memory<std::int64_t> in(c, input(c.rank(), mine), arena);
      Memory<std::int64_t> out(c, Values(want.size(), -1), !arena);
      EXPECT_OK(equal ? c.all_gather(in.buffer(), out.buffer())
                      : c.all_gather(in.buffer(), out.buffer(), counts));
      ASSERT_EQ(out.values(), want);
      // from its own place
      Memory<std::int64_t> whole(c, Values(want.size(), -1), arena);
      std::ranges::copy(input(c.rank(), mine), whole.span().begin() + before(counts, c.rank()));
      Buffer part = whole.buffer();
      part.data = whole.span().data() + before(counts, c.rank());
      part.count = mine;
      EXPECT_OK(c.all_gather(part, whole.buffer(), counts));
      ASSERT_EQ(whole.values(), want);
    }
  });
}

TEST(Operations, GatherAndScatter) {
  sweep([](Communicator& c, std::int64_t count, bool arena) {
    const int n = c.size();
    for (const bool equal : {true, false}) {
      const Values counts =
          equal ? Values(static_cast<std::size_t>(n), count) : uneven_counts(n, count);
      const std::span<const std::int64_t> given = equal ? std::span<const std::int64_t>() : counts;
      const std::int64_t mine = counts[static_cast<std::size_t>(c.rank())];
      const auto total = static_cast<std::size_t>(before(counts, n));
      for (const Rank root : {0, n - 1}) {
        const bool is_root = c.rank() == root;
        Memory<std::int64_t> part(c, input(c.rank(), mine), arena);
        Memory<std::int64_t> whole(c, Values(is_root ? total : 0, -1), !arena);
        EXPECT_OK(c.gather(part.buffer(), whole.buffer(), root, given));
        Memory<std::int64_t> back(c, Values(static_cast<std::size_t>(mine), -2), arena);
        EXPECT_OK(c.scatter(whole.buffer(), back.buffer(), root, given));
        ASSERT_EQ(back.values(), input(c.rank(), mine)) << "what was gathered comes back";
        if (!is_root) continue;
        for (int r = 0; r < n; ++r) {
          const Values want = input(r, counts[static_cast<std::size_t>(r)]);
          ASSERT_TRUE(
              std::equal(want.begin(), want.end(), whole.span().begin() + before(counts, r)));
        }
      }
    }
  });
}

TEST(Operations, ReduceScatter) {
  sweep([](Communicator& c, std::int64_t count, bool arena) {
    const int n = c.size();
    for (const bool equal : {true, false}) {
      const Values counts =
          equal ? Values(static_cast<std::size_t>(n), count) : uneven_counts(n, count);
      const std::span<const std::int64_t> given = equal ? std::span<const std::int64_t>() : counts;
      const std::int64_t mine = counts[static_cast<std::size_t>(c.rank())];
      Memory<std::int64_t> in(c, input(c.rank(), before(counts, n)), arena);
      Memory<std::int64_t> out(c, Values(static_cast<std::size_t>(mine), -1), !arena);
      EXPECT_OK(c.reduce_scatter(in.buffer(), out.buffer(), ReduceOp::kSum, given));
      ASSERT_EQ(out.values(), sum(0, n, mine, before(counts, c.rank())));
    }
  });
}

/// What rank `from` sends to rank `to` when blocks differ.
std::int64_t block(int from, int to, std::int64_t count) {
  return (from + 2 * to) % 3 == 0 ? 0 : count + from + to;
}

TEST(Operations, AllToAll) {
  sweep([](Communicator& c, std::int64_t count, bool arena) {
    const int n = c.size();
    const int me = c.rank();
    for (const bool equal : {true, false}) {
      const auto length = [&](int from, int to) { return equal ? count : block(from, to, count); };
      Values in, want, in_counts, out_counts;
      for (int r = 0; r < n; ++r) {
        const Values sent = input(me * 100 + r, length(me, r));
        const Values received = input(r * 100 + me, length(r, me));
        in.insert(in.end(), sent.begin(), sent.end());
        want.insert(want.end(), received.begin(), received.end());
        in_counts.push_back(length(me, r));
        out_counts.push_back(length(r, me));
      }
      Memory<std::int64_t> x(c, in, arena);
      Memory<std::int64_t> y(c, Values(want.size(), -1), !arena);
      EXPECT_OK(equal ? c.all_to_all(x.buffer(), y.buffer())
                      : c.all_to_all(x.buffer(), in_counts, y.buffer(), out_counts));
      ASSERT_EQ(y.values(), want);
    }
  });
}

template <class T>
void reduces_as(ReduceOp op, T first, T second, T third, T want) {
  on_hosts({2, 1}, [&](Communicator& c) {
    for (const std::size_t count : {3u, 20000u}) {
      std::unique_ptr<T[]> x(new T[count]);
      std::fill_n(x.get(), count, c.rank() == 0 ? first : c.rank() == 1 ? second : third);
      EXPECT_OK(c.all_reduce(buffer_of(std::span(x.get(), count)), op));
      ASSERT_EQ(x[0], want);
      ASSERT_EQ(x[count - 1], want);
    }
  });
}

TEST(Operations, EveryReductionAndType) {
  reduces_as<float>(ReduceOp::kSum, 1.5f, 2, 4, 7.5f);
  reduces_as<double>(ReduceOp::kAverage, 1, 2, 6, 3);
  reduces_as<double>(ReduceOp::kProduct, 3, -2, 0.5, -3);
  reduces_as<std::int8_t>(ReduceOp::kMin, 3, -2, 5, -2);
  reduces_as<std::int16_t>(ReduceOp::kMax, 3, -2, 500, 500);
  reduces_as<std::int32_t>(ReduceOp::kBitAnd, 7, 14, 6, 6);
  reduces_as<std::int64_t>(ReduceOp::kBitOr, 1, 4, 16, 21);
  reduces_as<std::uint8_t>(ReduceOp::kBitXor, 1, 3, 4, 6);
  reduces_as<bool>(ReduceOp::kLogicalAnd, true, true, false, false);
  reduces_as<bool>(ReduceOp::kLogicalOr, false, true, false, true);
  reduces_as<std::int32_t>(ReduceOp::kLogicalXor, 5, 0, 9, 0);
}

TEST(Operations, SixteenBitFloatsAreAveraged) {
  on_hosts({2, 2}, [](Communicator& c) {
    for (const std::int64_t count : {5, 9000}) {
      // 1, 2, 3 and 2 in bfloat16 and in float16: their quarters are exact
      const std::uint16_t bf16[] = {0x3f80, 0x4000, 0x4040, 0x4000};
      const std::uint16_t f16[] = {0x3c00, 0x4000, 0x4200, 0x4000};
      for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
        const auto& of = dtype == DType::kBFloat16 ? bf16 : f16;
        std::vector<std::uint16_t> x(static_cast<std::size_t>(count), of[c.rank()]);
        EXPECT_OK(c.all_reduce(Buffer{x.data(), count, dtype}, ReduceOp::kAverage));
        ASSERT_EQ(x, std::vector<std::uint16_t>(x.size(), of[1]));
      }
    }
  });
}

TEST(Operations, EveryAlgorithmOnRequest) {
  const std::vector<std::vector<int>> placements = {{3}, {4}, {1, 1, 1}, {2, 2}, {1, 2}};
  for (const auto& hosts : placements) {
    on_hosts(hosts, [&](Communicator& c) {
      for (const schedule::Builder& b : schedule::builders()) {
        if (b.goal != plan::GoalKind::kAllReduce) continue;
        for (const std::int64_t count : {1, 3, 5000}) {
          Memory<std::int64_t> x(c, input(c.rank(), count), true);
          const Buffer buffer = x.buffer();
          Request r{.kind = OperationKind::kAllReduce, .in = {&buffer, 1}, .out = {&buffer, 1}};
          r.algorithm = b.name;
          r.pieces = b.takes_pieces ? 2 : 1;
          const Status s = c.run(r, Deadline::never());
          if (b.takes_hosts && hosts.front() != hosts.back()) {
            EXPECT_EQ(s.code(), Code::kInvalidArgument) << b.name;
            continue;
          }
          EXPECT_OK(s);
          ASSERT_EQ(x.values(), sum(0, c.size(), count)) << b.name;
        }
      }
    });
  }
}

TEST(Operations, AUsersOwnReduction) {
  const auto larger_magnitude = std::make_shared<UserReduction>(
      UserReduction{"larger magnitude", [](const void* x, void* acc, std::int64_t n) {
                      for (std::int64_t i = 0; i < n; ++i) {
                        const double theirs = static_cast<const double*>(x)[i];
                        double& mine = static_cast<double*>(acc)[i];
                        if (std::abs(theirs) > std::abs(mine)) mine = theirs;
                      }
                    }});
  for (const auto& hosts : kHosts) {
    on_hosts(hosts, [&](Communicator& c) {
      for (const std::size_t count : {4u, 30000u}) {
        std::vector<double> x(count, c.rank() % 2 == 0 ? c.rank() : -c.rank());
        EXPECT_OK(c.all_reduce(buffer_of(std::span(x)), Reduction(larger_magnitude)));
        const int last = c.size() - 1;
        ASSERT_EQ(x, std::vector<double>(count, last % 2 == 0 ? last : -last));
      }
    });
  }
}

TEST(Operations, AsynchronousFormsOwnTheirLists) {
  on_hosts({2, 1}, [](Communicator& c) {
    std::vector<std::int64_t> in(3000, c.rank());
    std::vector<std::int64_t> out(9000, -1);
    Work gathered;
    {
      const Values counts(3, 3000);  // gone before the operation runs
      gathered = c.all_gather_async(buffer_of(std::span(in)), buffer_of(std::span(out)), counts);
    }
    EXPECT_OK(gathered.wait());
    EXPECT_EQ(out[2999], 0);
    EXPECT_EQ(out[3000], 1);
    EXPECT_EQ(out[8999], 2);
  });
}

TEST(Operations, EveryWrongArgumentIsNamed) {
  on_ranks(2, [](Communicator& c) {
    std::vector<float> x(4);
    std::vector<float> y(6);
    const Buffer four = buffer_of(std::span(x));
    const Buffer six = buffer_of(std::span(y));
    const auto says = [](const Status& s, const char* what) {
      EXPECT_EQ(s.code(), Code::kInvalidArgument);
      EXPECT_NE(s.message().find(what), std::string::npos) << s.message();
    };
    says(c.all_gather(four, six), "the output has 6 elements, but 2 ranks need 8");
    says(c.all_to_all(buffer_of(std::span(x).first(3)), six), "all_to_all");
    says(c.scan(four, ReduceOp::kAverage), "no averages");
    says(c.all_reduce(four, ReduceOp::kBitAnd), "bitwise and of float32");
    says(c.reduce(four, ReduceOp::kSum, 5), "root 5 of 2 ranks");
    says(c.all_gather(four, six, Values{4}), "1 counts for 2 ranks");
    says(c.all_gather(four, six, Values{5, -1}), "a part of -1 elements");
    Buffer device = four;
    device.device.kind = Device::Kind::kCuda;
    says(c.all_reduce(device, ReduceOp::kSum), "only CPU buffers");
    const Buffer shifted{x.data() + 1, 2, DType::kFloat32};
    says(c.reduce_scatter(four, shifted, ReduceOp::kSum), "overlap");
    Buffer negative = four;
    negative.count = -1;
    negative.dtype = DType::kInt8;
    const Buffer both[] = {four, negative};
    const Status all = c.all_reduce(both, ReduceOp::kSum);
    says(all, "a buffer of -1 elements");
    says(all, "buffers of float32 and int8");
    EXPECT_OK(c.barrier());
  });
}

}  // namespace
}  // namespace stormo::comm
