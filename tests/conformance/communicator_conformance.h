#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "tests/unit/comm/ranks.h"

/// What every Communicator must do. An engine joins with a few lines:
///
///   INSTANTIATE_TEST_SUITE_P(Tcp, CommunicatorConformance,
///                            ::testing::Values(RanksFactory{"three", run}), ranks_name);
///
/// where run(body, finalize) makes a fresh group, calls body(communicator) on every rank of it that
/// lives in this process, and then leaves the group well if `finalize`. Ranks may be threads, or
/// the program may be one rank of several that run the same tests in the same order.
///
/// CommunicatorFailure is for groups whose failures reach every rank by themselves,
/// CommunicatorSubgroups for those that can make groups of some of their ranks,
/// CommunicatorSharedMemory for those whose ranks see each other's Arena inside a host.
namespace stormo::comm {

struct RanksFactory {
  std::string name;
  std::function<void(const Body& body, bool finalize)> run;
};

inline std::string ranks_name(const ::testing::TestParamInfo<RanksFactory>& param) {
  return param.param.name;
}

class CommunicatorConformance : public ::testing::TestWithParam<RanksFactory> {
 protected:
  using Values = std::vector<std::int64_t>;

  static void on_each(const Body& body) { GetParam().run(body, /*finalize=*/true); }

  static std::int64_t value(int rank, std::int64_t i) { return (rank + 1) * 1000 + i % 97; }

  static Values input(int rank, std::int64_t count, std::int64_t from = 0) {
    Values v(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) {
      v[static_cast<std::size_t>(i)] = value(rank, from + i);
    }
    return v;
  }

  /// Elements from..from+count of the sum over ranks first..last-1.
  static Values sum(int first, int last, std::int64_t count, std::int64_t from = 0) {
    Values v(static_cast<std::size_t>(count));
    for (int r = first; r < last; ++r) {
      for (std::int64_t i = 0; i < count; ++i) {
        v[static_cast<std::size_t>(i)] += value(r, from + i);
      }
    }
    return v;
  }

  /// Every rank's part: equal, or different with some of them empty.
  static Values part_counts(int n, std::int64_t count, bool equal) {
    Values counts(static_cast<std::size_t>(n), count);
    for (int r = 0; r < n && !equal; ++r) {
      counts[static_cast<std::size_t>(r)] = r % 3 == 1 ? 0 : count + r;
    }
    return counts;
  }
  static std::int64_t before(const Values& counts, int rank) {
    return std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
  }

  static std::vector<std::int64_t> counts(int ranks) {
    // what synchronises is the same for all that do not fit on a board: no need to wait for large
    // ones
    if (kSanitized) return {0, 7, 1025, 5000};
    if (ranks > 8) return {0, 1, 1009, 5000};
    return {0, 1, 2, 7, 509, 1025, 5000, 50021};
  }

  /// Calls f(communicator, count, arena) for many counts, with buffers in the Arena and outside.
  static void sweep(const std::function<void(Communicator&, std::int64_t, bool)>& f) {
    on_each([&](Communicator& c) {
      for (const std::int64_t count : counts(c.size())) {
        // none in the Arena, all, and only those of even ranks
        for (const int arena : {0, 1, 2})
          f(c, count, arena == 1 || (arena == 2 && c.rank() % 2 == 0));
      }
    });
  }
};

TEST_P(CommunicatorConformance, AllReduce) {
  sweep([](Communicator& c, std::int64_t count, bool arena) {
    Memory<std::int64_t> x(c, input(c.rank(), count), arena);
    EXPECT_OK(c.all_reduce(x.buffer(), ReduceOp::kSum));
    ASSERT_EQ(x.values(), sum(0, c.size(), count));
  });
}

TEST_P(CommunicatorConformance, ReduceToAnyRoot) {
  sweep([](Communicator& c, std::int64_t count, bool arena) {
    for (const Rank root : {0, c.size() - 1}) {
      Memory<std::int64_t> x(c, input(c.rank(), count), arena);
      EXPECT_OK(c.reduce(x.buffer(), ReduceOp::kSum, root));
      if (c.rank() != root) continue;
      ASSERT_EQ(x.values(), sum(0, c.size(), count));
    }
  });
}

TEST_P(CommunicatorConformance, BroadcastFromAnyRoot) {
  sweep([](Communicator& c, std::int64_t count, bool arena) {
    for (Rank root = 0; root < c.size(); ++root) {
      Memory<std::int64_t> x(c, input(c.rank(), count), arena);
      EXPECT_OK(c.broadcast(x.buffer(), root));
      ASSERT_EQ(x.values(), input(root, count));
    }
  });
}

TEST_P(CommunicatorConformance, Scan) {
  sweep([](Communicator& c, std::int64_t count, bool arena) {
    Memory<std::int64_t> x(c, input(c.rank(), count), arena);
    EXPECT_OK(c.scan(x.buffer(), ReduceOp::kSum));
    ASSERT_EQ(x.values(), sum(0, c.rank() + 1, count));
  });
}

TEST_P(CommunicatorConformance, ExclusiveScanLeavesRankZeroAlone) {
  sweep([](Communicator& c, std::int64_t count, bool arena) {
    Memory<std::int64_t> x(c, input(c.rank(), count), arena);
    EXPECT_OK(c.exclusive_scan(x.buffer(), ReduceOp::kSum));
    ASSERT_EQ(x.values(), c.rank() == 0 ? input(0, count) : sum(0, c.rank(), count));
  });
}

TEST_P(CommunicatorConformance, AllGather) {
  sweep([](Communicator& c, std::int64_t count, bool arena) {
    for (const bool equal : {true, false}) {
      const Values counts = part_counts(c.size(), count, equal);
      const std::int64_t mine = counts[static_cast<std::size_t>(c.rank())];
      Values want;
      for (int r = 0; r < c.size(); ++r) {
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

TEST_P(CommunicatorConformance, GatherAndScatter) {
  sweep([](Communicator& c, std::int64_t count, bool arena) {
    const int n = c.size();
    for (const bool equal : {true, false}) {
      const Values counts = part_counts(n, count, equal);
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

TEST_P(CommunicatorConformance, ReduceScatter) {
  sweep([](Communicator& c, std::int64_t count, bool arena) {
    const int n = c.size();
    for (const bool equal : {true, false}) {
      const Values counts = part_counts(n, count, equal);
      const std::span<const std::int64_t> given = equal ? std::span<const std::int64_t>() : counts;
      const std::int64_t mine = counts[static_cast<std::size_t>(c.rank())];
      const Values want = sum(0, n, mine, before(counts, c.rank()));
      Memory<std::int64_t> in(c, input(c.rank(), before(counts, n)), arena);
      Memory<std::int64_t> out(c, Values(static_cast<std::size_t>(mine), -1), !arena);
      EXPECT_OK(c.reduce_scatter(in.buffer(), out.buffer(), ReduceOp::kSum, given));
      ASSERT_EQ(out.values(), want);
      // into its own place
      Memory<std::int64_t> whole(c, input(c.rank(), before(counts, n)), arena);
      Buffer part = whole.buffer();
      part.data = whole.span().data() + before(counts, c.rank());
      part.count = mine;
      EXPECT_OK(c.reduce_scatter(whole.buffer(), part, ReduceOp::kSum, counts));
      for (std::size_t i = 0; i < want.size(); ++i) {
        ASSERT_EQ(static_cast<std::int64_t*>(part.data)[i], want[i]);
      }
    }
  });
}

TEST_P(CommunicatorConformance, AllToAll) {
  sweep([](Communicator& c, std::int64_t count, bool arena) {
    const int n = c.size();
    const int me = c.rank();
    for (const bool equal : {true, false}) {
      const auto length = [&](int from, int to) {
        return equal ? count : ((from + 2 * to) % 3 == 0 ? 0 : count + from + to);
      };
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

TEST_P(CommunicatorConformance, Barrier) {
  on_each([](Communicator& c) {
    for (int round = 0; round < 100; ++round) ASSERT_TRUE(c.barrier().ok());
  });
}

TEST_P(CommunicatorConformance, MessagesKeepTheirOrder) {
  on_each([](Communicator& c) {
    if (c.size() == 1) return;
    const int next = (c.rank() + 1) % c.size();
    const int previous = (c.rank() + c.size() - 1) % c.size();
    for (const std::int64_t count : {0, 1, 1000, 300000}) {
      auto first = input(c.rank(), count), second = input(c.rank() + 100, count);
      auto one = first, two = first;
      const auto buffer = [](Values& v) { return Buffer(v); };
      const auto receive = [&] {
        EXPECT_OK(c.recv(buffer(one), previous, 7));
        EXPECT_OK(c.recv(buffer(two), previous, 0xFFFFFFFF));
      };
      // a long message waits for its receive: in a ring somebody must receive first
      if (c.rank() == 0) receive();
      Work sent = c.send_async(buffer(first), next, 7);
      EXPECT_OK(c.send(buffer(second), next, 0xFFFFFFFF));
      if (c.rank() != 0) receive();
      EXPECT_OK(sent.wait());
      EXPECT_EQ(one, input(previous, count));
      EXPECT_EQ(two, input(previous + 100, count));
    }
  });
}

TEST_P(CommunicatorConformance, ManyBuffersAreOneOperation) {
  on_each([](Communicator& c) {
    std::vector<Values> tensors;
    std::vector<Buffer> buffers;
    for (const std::int64_t count : {5, 0, 1, 3000, 17, 90000, 2}) {
      tensors.push_back(input(c.rank(), count));
    }
    for (int i = 0; i < 1500; ++i) tensors.push_back(input(c.rank(), 1));
    for (auto& t : tensors) buffers.push_back(t);
    EXPECT_OK(c.all_reduce(buffers, ReduceOp::kSum));
    for (const auto& t : tensors) {
      ASSERT_EQ(t, sum(0, c.size(), static_cast<std::int64_t>(t.size())));
    }
    EXPECT_OK(c.broadcast(buffers, c.size() - 1));
    EXPECT_EQ(tensors[3], sum(0, c.size(), 3000));
  });
}

TEST_P(CommunicatorConformance, AsynchronousWorkRunsInOrder) {
  on_each([](Communicator& c) {
    std::vector<Values> tensors;
    for (int i = 0; i < 50; ++i) tensors.push_back(Values(1 + i * 37u, 1));
    std::vector<Work> pending;
    for (auto& t : tensors) {
      const Buffer b = t;
      pending.push_back(c.all_reduce_async({&b, 1}, ReduceOp::kSum));
      pending.push_back(
          c.submit({.kind = OperationKind::kScan, .in = {&b, 1}, .out = {&b, 1}}));  // of the sums
    }
    EXPECT_OK(c.barrier());
    for (Work& w : pending) {
      EXPECT_TRUE(w.test());
      EXPECT_OK(w.wait());
      EXPECT_OK(w.wait());  // the outcome stays
    }
    for (const auto& t : tensors) {
      for (const auto v : t) ASSERT_EQ(v, c.size() * (c.rank() + 1));
    }
  });
}

TEST_P(CommunicatorConformance, ContinuationsRunOnceInOrderAndMaySubmitMore) {
  on_each([](Communicator& c) {
    Values x(5000, 1);
    const Buffer b = x;
    std::vector<int> ran;  // in turn on the group's thread and, after it, on this one
    Work second;
    std::latch submitted(1);
    Work first = c.all_reduce_async({&b, 1}, ReduceOp::kSum);
    first.then([&](const Status& s) {
      EXPECT_OK(s);
      EXPECT_EQ(x[0], c.size());
      ran.push_back(1);
    });
    first.then([&](const Status&) {
      ran.push_back(2);
      second = c.all_reduce_async({&b, 1}, ReduceOp::kSum);
      submitted.count_down();
    });
    submitted.wait();
    EXPECT_OK(second.wait());
    second.then([&](const Status& s) {
      EXPECT_OK(s);
      ran.push_back(3);
    });
    EXPECT_EQ(ran, (std::vector<int>{1, 2, 3}));
    EXPECT_EQ(x[0], c.size() * c.size());
  });
}

TEST_P(CommunicatorConformance, AsynchronousFormsOwnTheirLists) {
  on_each([](Communicator& c) {
    Values in(3000, c.rank());
    Values out(in.size() * static_cast<std::size_t>(c.size()), -1);
    Work gathered;
    {
      const Values counts(static_cast<std::size_t>(c.size()), 3000);  // gone before it runs
      gathered = c.all_gather_async(in, out, counts);
    }
    EXPECT_OK(gathered.wait());
    for (std::size_t i = 0; i < out.size(); ++i) {
      ASSERT_EQ(out[i], static_cast<std::int64_t>(i / 3000));
    }
  });
}

TEST_P(CommunicatorConformance, BadArgumentsAreRefusedBeforeAnythingIsSent) {
  on_each([](Communicator& c) {
    std::vector<float> x(4);
    std::vector<float> y(static_cast<std::size_t>(4 * c.size() + 1));
    std::vector<std::int32_t> z(4);
    const Buffer four = x;
    const auto refused = [](const Status& s) {
      EXPECT_EQ(s.code(), Code::kInvalidArgument) << s.to_string();
    };
    refused(c.all_gather(four, y));
    refused(c.all_reduce(z, ReduceOp::kAverage));
    refused(c.all_reduce(four, ReduceOp::kBitAnd));
    refused(c.broadcast(four, c.size()));
    refused(c.send(four, c.rank(), 0));
    const Buffer mixed[] = {four, z};
    refused(c.all_reduce(mixed, ReduceOp::kSum));
    refused(c.all_reduce_async(mixed, ReduceOp::kSum).wait());
    EXPECT_OK(c.barrier());
  });
}

TEST_P(CommunicatorConformance, MisuseIsRefusedWithARemedy) {
  on_each([](Communicator& c) {
    const auto refused = [](const Status& s, std::string_view why) {
      EXPECT_EQ(s.code(), Code::kInvalidArgument) << s.to_string();
      EXPECT_NE(s.message().find(why), std::string::npos) << s.to_string();
    };
    const auto n = static_cast<std::int64_t>(c.size());
    Values x(static_cast<std::size_t>(8 * n));
    const Buffer whole{x.data(), 4 * n, DType::kInt64};
    Buffer on_gpu = whole;
    on_gpu.device.kind = Device::Kind::kCuda;
    refused(c.all_reduce(on_gpu, ReduceOp::kSum), "copy to the CPU first");
    refused(c.all_gather({x.data(), 4, DType::kInt64}, on_gpu), "copy to the CPU first");
    // one element away from this rank's place in the whole
    const Buffer askew{x.data() + 4 * c.rank() + 1, 4, DType::kInt64};
    refused(c.all_gather(askew, whole), "input and output overlap");
    refused(c.reduce_scatter(whole, askew, ReduceOp::kSum), "input and output overlap");
    const Buffer shifted{x.data() + 1, 4 * n, DType::kInt64};
    refused(c.all_to_all(whole, shifted), "input and output overlap");
    refused(c.all_reduce({nullptr, 4, DType::kInt64}, ReduceOp::kSum), "a buffer of 4 elements");
    refused(Work().wait(), "empty Work");
    EXPECT_OK(c.barrier());
  });
}

TEST_P(CommunicatorConformance, NothingRunsAfterFinalize) {
  on_each([](Communicator& c) {
    float x = 1;
    EXPECT_OK(c.finalize(Deadline::after(std::chrono::seconds(20))));
    EXPECT_EQ(c.barrier().code(), Code::kInvalidArgument);
    EXPECT_EQ(c.all_reduce(std::span(&x, 1), ReduceOp::kSum).code(), Code::kInvalidArgument);
    EXPECT_EQ(c.submit(Request{}).wait().code(), Code::kInvalidArgument);
  });
}

TEST_P(CommunicatorConformance, RanksKnowTheirPlaces) {
  on_each([](Communicator& c) {
    const Values mine{c.local_rank(), c.local_size(), c.cross_rank(), c.cross_size()};
    Values in = mine;
    Values all(in.size() * static_cast<std::size_t>(c.size()));
    EXPECT_OK(c.all_gather(in, all));
    int here = 0;
    for (std::size_t r = 0; r < all.size(); r += 4) {
      EXPECT_EQ(all[r + 3], c.cross_size());
      if (all[r + 2] != c.cross_rank()) continue;
      EXPECT_EQ(all[r], here++) << "in the order of ranks";
    }
    EXPECT_EQ(here, c.local_size());
    EXPECT_LT(c.local_rank(), c.local_size());
    EXPECT_LT(c.cross_rank(), c.cross_size());
    EXPECT_FALSE(c.host().empty());
  });
}

}  // namespace stormo::comm

#include "tests/conformance/communicator_failures.h"
#include "tests/conformance/communicator_messages.h"
#include "tests/conformance/communicator_reductions.h"
#include "tests/conformance/communicator_subgroups.h"
