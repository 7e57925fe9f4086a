// A call of the form of the one before is not checked and planned again: so a call of any other
// form must be, and in whatever order forms follow each other, each has its own outcome.
#include <stormo/comm/group/prepared_call.h>

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "tests/unit/comm/ranks.h"

namespace stormo::comm {
namespace {

/// A gather of 8 floats of rank 1 of 2, in memory that a change may point elsewhere.
struct Sample {
  std::array<float, 40> memory{};
  std::vector<Buffer> in{{memory.data(), 8, DType::kFloat32}};
  std::vector<Buffer> out{{memory.data() + 20, 16, DType::kFloat32}};
  std::vector<std::int64_t> counts{8, 8};
  Request request{.kind = OperationKind::kGather, .root = 1};
  Request get() {
    request.in = in;
    request.out = out;
    return request;
  }
};

struct Change {
  const char* what;
  std::function<void(Sample&)> make;
};

std::vector<Change> changes() {
  return {
      {"elements in", [](Sample& s) { s.in[0].count = 7; }},
      {"elements out", [](Sample& s) { s.out[0].count = 14; }},
      {"dtype in", [](Sample& s) { s.in[0].dtype = DType::kInt32; }},
      {"dtype out", [](Sample& s) { s.out[0].dtype = DType::kInt32; }},
      {"device", [](Sample& s) { s.in[0].device.kind = Device::Kind::kCuda; }},
      {"no memory", [](Sample& s) { s.in[0].data = nullptr; }},
      {"overlap", [](Sample& s) { s.out[0].data = s.memory.data() + 7; }},
      {"no input", [](Sample& s) { s.in.clear(); }},
      {"no output", [](Sample& s) { s.out.clear(); }},
      {"another buffer", [](Sample& s) { s.in.push_back(s.in[0]); }},
      {"root", [](Sample& s) { s.request.root = 0; }},
      {"tag", [](Sample& s) { s.request.tag = 1; }},
      {"weight", [](Sample& s) { s.request.weight = -1; }},
      {"counts", [](Sample& s) { s.request.counts = s.counts; }},
      {"counts out", [](Sample& s) { s.request.out_counts = s.counts; }},
      {"algorithm", [](Sample& s) { s.request.algorithm = "star_gather"; }},
  };
}

TEST(PreparedCall, FitsTheSameWithOtherMemory) {
  Sample s;
  PreparedCall call;
  EXPECT_FALSE(call.fits(s.get())) << "made for nothing yet";
  call.operation = describe(s.get(), 2);
  call.keep_for(s.get());
  EXPECT_TRUE(call.fits(s.get()));
  s.in[0].data = s.memory.data() + 2;
  EXPECT_TRUE(call.fits(s.get()));
  call.forget();
  EXPECT_FALSE(call.fits(s.get()));
}

TEST(PreparedCall, FitsNothingThatDiffers) {
  for (const Change& change : changes()) {
    Sample s;
    PreparedCall call;
    call.operation = describe(s.get(), 2);
    call.keep_for(s.get());
    change.make(s);
    EXPECT_FALSE(call.fits(s.get())) << change.what;
  }
}

TEST(PreparedCall, ComparesTheReductionWhereThereIsOne) {
  float x = 0;
  const Buffer b = std::span(&x, 1);
  Request request{.kind = OperationKind::kAllReduce, .in = {&b, 1}, .out = {&b, 1}};
  const auto keeps = [&request](ReduceOp op) {
    request.reduction = op;
    PreparedCall call;
    call.operation = describe(request, 2);
    call.keep_for(request);
    const bool fits = call.fits(request);
    request.reduction = ReduceOp::kMax;
    EXPECT_FALSE(call.fits(request));
    return fits;
  };
  EXPECT_TRUE(keeps(ReduceOp::kSum));
  EXPECT_TRUE(keeps(ReduceOp::kWeightedAverage));
}

TEST(PreparedCall, ComparesEveryBufferAndNoWeight) {
  std::array<float, 8> memory{};
  std::vector<Buffer> buffers{{memory.data(), 2, DType::kFloat32},
                              {memory.data() + 2, 3, DType::kFloat32}};
  Request request{.kind = OperationKind::kAllReduce,
                  .in = buffers,
                  .out = buffers,
                  .reduction = ReduceOp::kWeightedAverage,
                  .weight = 2};
  PreparedCall call;
  call.operation = describe(request, 2);
  call.keep_for(request);
  request.weight = 0;
  EXPECT_TRUE(call.fits(request));
  buffers[1].count = 2;
  EXPECT_FALSE(call.fits(request));
  buffers[1] = {nullptr, 3, DType::kFloat32};
  EXPECT_FALSE(call.fits(request));
}

/// A call with its own check.
struct Form {
  std::string name;
  std::function<void(Communicator&)> run;
};

void all_reduce_and_check(Communicator& c, std::int64_t count, ReduceOp op) {
  std::vector<double> x(static_cast<std::size_t>(count), c.rank() + 1);
  EXPECT_OK(c.all_reduce(x, op));
  const double sum = c.size() * (c.size() + 1) / 2.0;
  const double want = op == ReduceOp::kSum ? sum : op == ReduceOp::kMax ? c.size() : sum / c.size();
  EXPECT_EQ(x, std::vector<double>(x.size(), want)) << count;
}

/// Only `chosen` counts.
void weighted_and_check(Communicator& c, Rank chosen, std::int64_t count) {
  double x = c.rank();
  std::vector<double> more(static_cast<std::size_t>(count), c.rank());
  const std::array<Buffer, 2> both{std::span(&x, 1), more};
  EXPECT_OK(c.all_reduce(both, ReduceOp::kWeightedAverage, c.rank() == chosen ? 3 : 0));
  EXPECT_EQ(x, chosen);
  EXPECT_EQ(more, std::vector<double>(more.size(), chosen));
}

void gather_and_check(Communicator& c, Rank root, bool counts) {
  std::vector<std::int64_t> parts(static_cast<std::size_t>(c.size()), 1);
  if (counts) parts.back() = 3;
  const auto mine = parts[static_cast<std::size_t>(c.rank())];
  std::vector<std::int64_t> x(static_cast<std::size_t>(mine), c.rank());
  std::vector<std::int64_t> want;
  for (int r = 0; r < c.size(); ++r) {
    want.insert(want.end(), static_cast<std::size_t>(parts[static_cast<std::size_t>(r)]), r);
  }
  std::vector<std::int64_t> all(want.size(), -1);
  EXPECT_OK(
      c.gather(x, all, root,
               counts ? std::span<const std::int64_t>(parts) : std::span<const std::int64_t>()));
  if (c.rank() == root) {
    EXPECT_EQ(all, want);
  }
}

void broadcast_and_check(Communicator& c, Rank root, std::int64_t count) {
  std::vector<std::int32_t> x(static_cast<std::size_t>(count), c.rank());
  EXPECT_OK(c.broadcast(x, root));
  EXPECT_EQ(x, std::vector<std::int32_t>(x.size(), root));
}

void scan_and_check(Communicator& c, bool exclusive) {
  std::int64_t x = c.rank() + 1;
  const Buffer b = std::span(&x, 1);
  EXPECT_OK(exclusive ? c.exclusive_scan(b, ReduceOp::kSum) : c.scan(b, ReduceOp::kSum));
  const std::int64_t before = c.rank() * (c.rank() + 1) / 2;
  if (!exclusive || c.rank() > 0) {
    EXPECT_EQ(x, exclusive ? before : before + c.rank() + 1);
  }
}

void all_to_all_and_check(Communicator& c, std::int64_t each) {
  const auto n = static_cast<std::size_t>(c.size() * each);
  std::vector<std::int64_t> in(n);
  std::vector<std::int64_t> out(n, -1);
  std::vector<std::int64_t> want(n);
  for (std::size_t i = 0; i < n; ++i) {
    const auto peer = static_cast<std::int64_t>(i) / each;
    in[i] = 10 * c.rank() + peer;
    want[i] = 10 * peer + c.rank();
  }
  EXPECT_OK(c.all_to_all(in, out));
  EXPECT_EQ(out, want);
}

/// Every rank sends to the next one, and the last one keeps what it has.
void messages_and_check(Communicator& c, std::int64_t count, std::uint32_t tag) {
  const auto n = static_cast<std::size_t>(count);
  std::vector<std::int32_t> mine(n, c.rank()), got(n, -1);
  if (c.rank() + 1 < c.size()) EXPECT_OK(c.send(mine, c.rank() + 1, tag));
  if (c.rank() == 0) return;
  EXPECT_OK(c.recv(got, c.rank() - 1, tag));
  EXPECT_EQ(got, std::vector<std::int32_t>(n, c.rank() - 1));
}

std::vector<Form> forms() {
  std::vector<Form> forms;
  for (const std::int64_t count : {1, 5, 3000, 40000}) {
    forms.push_back({"sum", [count](auto& c) { all_reduce_and_check(c, count, ReduceOp::kSum); }});
    forms.push_back({"broadcast", [count](auto& c) { broadcast_and_check(c, 0, count); }});
  }
  forms.push_back({"max", [](auto& c) { all_reduce_and_check(c, 1, ReduceOp::kMax); }});
  forms.push_back({"average", [](auto& c) { all_reduce_and_check(c, 1, ReduceOp::kAverage); }});
  for (const std::int64_t count : {2, 40000}) {
    forms.push_back({"weighted", [count](auto& c) { weighted_and_check(c, 0, count); }});
    forms.push_back(
        {"other weights", [count](auto& c) { weighted_and_check(c, c.size() - 1, count); }});
  }
  forms.push_back({"from the last", [](auto& c) { broadcast_and_check(c, c.size() - 1, 1); }});
  forms.push_back({"gather", [](auto& c) { gather_and_check(c, 0, false); }});
  forms.push_back(
      {"gather to the last", [](auto& c) { gather_and_check(c, c.size() - 1, false); }});
  forms.push_back({"gather by counts", [](auto& c) { gather_and_check(c, 0, true); }});
  forms.push_back({"scan", [](auto& c) { scan_and_check(c, false); }});
  forms.push_back({"exclusive scan", [](auto& c) { scan_and_check(c, true); }});
  forms.push_back({"all_to_all", [](auto& c) { all_to_all_and_check(c, 1); }});
  forms.push_back({"large all_to_all", [](auto& c) { all_to_all_and_check(c, 2000); }});
  forms.push_back({"message", [](auto& c) { messages_and_check(c, 1, 0); }});
  forms.push_back({"tagged message", [](auto& c) { messages_and_check(c, 1, 1); }});
  forms.push_back({"longer message", [](auto& c) { messages_and_check(c, 100, 0); }});
  forms.push_back({"barrier", [](auto& c) { EXPECT_OK(c.barrier()); }});
  return forms;
}

TEST(PreparedCall, EveryFormAfterEveryOther) {
  const std::vector<Form> all = forms();
  using Groups = std::vector<std::vector<int>>;
  for (const auto& hosts : kSanitized ? Groups{{1}, {2, 1}} : Groups{{1}, {2}, {3}, {2, 1}}) {
    on_hosts(hosts, [&all](Communicator& c) {
      for (const Form& first : all) {
        for (const Form& then : all) {
          SCOPED_TRACE(first.name + ", " + then.name);
          first.run(c);
          then.run(c);
          then.run(c);
        }
      }
    });
  }
}

TEST(PreparedCall, AWrongCallIsRefusedAfterARightOne) {
  on_ranks(2, [](Communicator& c) {
    std::vector<float> in(4, 1);
    std::vector<float> out(8);
    const Buffer part = in;
    const Buffer whole = out;
    EXPECT_OK(c.all_gather(part, whole));
    Buffer nowhere = part;
    nowhere.data = nullptr;
    EXPECT_EQ(c.all_gather(nowhere, whole).code(), Code::kInvalidArgument);
    const Buffer overlapping = std::span(out).subspan(2, 4);
    EXPECT_EQ(c.all_gather(overlapping, whole).code(), Code::kInvalidArgument);
    EXPECT_OK(c.all_gather(part, whole));  // the group is as it was
    if (c.rank() == 0) {
      EXPECT_OK(c.send(part, 1, 0));
      EXPECT_EQ(c.send(nowhere, 1, 0).code(), Code::kInvalidArgument);
      EXPECT_EQ(c.send(part, 0, 0).code(), Code::kInvalidArgument);
      EXPECT_EQ(c.send(part, 2, 0).code(), Code::kInvalidArgument);
    } else {
      EXPECT_OK(c.recv(part, 0, 0));
    }
  });
}

}  // namespace
}  // namespace stormo::comm
