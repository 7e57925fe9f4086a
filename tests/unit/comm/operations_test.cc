// Calls that name an algorithm, and wrong ones. What every operation does is in tests/conformance.
#include <cstdint>

#include <stormo/schedule/builders.h>

#include "tests/unit/comm/ranks.h"

namespace stormo::comm {
namespace {

using Values = std::vector<std::int64_t>;

TEST(Operations, EveryAlgorithmOnRequest) {
  const std::vector<std::vector<int>> placements = {{3}, {4}, {1, 1, 1}, {2, 2}, {1, 2}};
  for (const auto& hosts : placements) {
    on_hosts(hosts, [&](Communicator& c) {
      for (const schedule::Builder& b : schedule::builders()) {
        if (b.goal != plan::GoalKind::kAllReduce) continue;
        for (const std::int64_t count : {1, 3, 5000}) {
          Memory<std::int64_t> x(c, Values(static_cast<std::size_t>(count), c.rank()), true);
          const Buffer buffer = x.buffer();
          Request r{.kind = OperationKind::kAllReduce, .in = {&buffer, 1}, .out = {&buffer, 1}};
          r.algorithm = b.name;
          r.pieces = b.takes.pieces ? 2 : 1;
          const Status s = c.run(r, Deadline::never());
          if (b.takes.even_hosts && hosts.front() != hosts.back()) {
            EXPECT_EQ(s.code(), Code::kInvalidArgument) << b.name;
            continue;
          }
          EXPECT_OK(s);
          const std::int64_t sum = c.size() * (c.size() - 1) / 2;
          ASSERT_EQ(x.values(), Values(static_cast<std::size_t>(count), sum)) << b.name;
        }
      }
    });
  }
}

TEST(Operations, EveryScanOnRequest) {
  for (const auto& hosts : {std::vector<int>{1}, {4}, {1, 1, 1}, {2, 2}, {1, 2}}) {
    on_hosts(hosts, [&](Communicator& c) {
      // without a name, with each one, and again: the programs are kept apart
      for (const std::string_view name : {"", "brent_kung_scan", "chain_scan", ""}) {
        for (const bool exclusive : {false, true}) {
          Memory<std::int64_t> x(c, Values(5000, c.rank() + 1), true);
          const Buffer buffer = x.buffer();
          Request r{.kind = exclusive ? OperationKind::kExclusiveScan : OperationKind::kScan,
                    .in = {&buffer, 1},
                    .out = {&buffer, 1}};
          r.algorithm = name;
          EXPECT_OK(c.run(r, Deadline::never()));
          const std::int64_t terms = exclusive && c.rank() > 0 ? c.rank() : c.rank() + 1;
          ASSERT_EQ(x.values(), Values(5000, terms * (terms + 1) / 2)) << name;
        }
      }
    });
  }
}

TEST(Operations, AScanInsideOfAHostRunsTheNamedAlgorithm) {
  on_hosts({4}, [](Communicator& c) {
    const std::vector<float> terms = {1, 1e8f, -1e8f, 1};
    const auto last = [&](std::string_view name) {
      Memory<float> x(c, {terms[static_cast<std::size_t>(c.rank())]}, true);
      const Buffer buffer = x.buffer();
      Request r{.kind = OperationKind::kScan, .in = {&buffer, 1}, .out = {&buffer, 1}};
      r.algorithm = name;
      EXPECT_OK(c.run(r, Deadline::never()));
      return x.values().front();
    };
    const float in_order = last("chain_scan");
    const float in_pairs = last("brent_kung_scan");
    if (c.rank() < 3) return;
    EXPECT_EQ(in_order, 1) << "((1 + 1e8) - 1e8) + 1";
    EXPECT_EQ(in_pairs, 0) << "(1 + 1e8) + (-1e8 + 1)";
  });
}

TEST(Operations, EveryAllToAllOnRequestAndUnequalPartsOnlyWhereTheyWork) {
  for (const auto& hosts : {std::vector<int>{5}, {1, 1, 1}, {2, 2}, {1, 2}}) {
    on_hosts(hosts, [&](Communicator& c) {
      const int n = c.size();
      for (const schedule::Builder& b : schedule::builders()) {
        if (b.goal != plan::GoalKind::kAllToAll) continue;
        for (const bool equal : {true, false}) {
          Values in, want, in_counts, out_counts;
          for (int r = 0; r < n; ++r) {
            in_counts.push_back(equal ? 3 : c.rank() + 2 * r);
            out_counts.push_back(equal ? 3 : r + 2 * c.rank());
            in.insert(in.end(), static_cast<std::size_t>(in_counts.back()), c.rank() * 10 + r);
            want.insert(want.end(), static_cast<std::size_t>(out_counts.back()), r * 10 + c.rank());
          }
          Values out(want.size());
          const Buffer from = in;
          const Buffer to = out;
          Request r{.kind = OperationKind::kAllToAll, .in = {&from, 1}, .out = {&to, 1}};
          r.algorithm = b.name;
          if (!equal) {
            r.counts = in_counts;
            r.out_counts = out_counts;
          }
          const Status s = c.run(r, Deadline::never());
          if (!equal && b.forwards) {
            EXPECT_EQ(s.code(), Code::kInvalidArgument);
            EXPECT_NE(s.message().find("needs equal parts"), std::string::npos) << s.message();
            continue;
          }
          EXPECT_OK(s);
          EXPECT_EQ(out, want) << b.name;
        }
      }
    });
  }
}

TEST(Operations, EveryWrongArgumentIsNamed) {
  on_ranks(2, [](Communicator& c) {
    std::vector<float> x(4);
    std::vector<float> y(6);
    const Buffer four = x;
    const Buffer six = y;
    const auto says = [](const Status& s, const char* what) {
      EXPECT_EQ(s.code(), Code::kInvalidArgument);
      EXPECT_NE(s.message().find(what), std::string::npos) << s.message();
    };
    says(c.all_gather(four, six), "the output has 6 elements, but 2 ranks need 8");
    says(c.all_to_all(std::span(x).first(3), six), "all_to_all");
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
