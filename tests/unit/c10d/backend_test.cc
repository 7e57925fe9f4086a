// Every operation against its definition, on ranks that are threads.
#include <gmock/gmock.h>

#include <chrono>

#include <torch/torch.h>

#include "tests/unit/c10d/backends.h"

namespace stormo::c10d {
namespace {

using ::testing::HasSubstr;
using torch::Tensor;
using Tensors = std::vector<Tensor>;
using Op = ::c10d::ReduceOp;

/// What rank r contributes: small whole numbers, so that every type has their sums.
Tensor term(int rank, torch::IntArrayRef sizes, torch::ScalarType type = torch::kFloat32) {
  std::int64_t count = 1;
  for (const std::int64_t n : sizes) count *= n;
  return ((torch::arange(count) % 5) + rank).to(type).view(sizes);
}

template <class Options>
Options blocking(bool is) {
  Options opts;
  opts.asyncOp = !is;
  return opts;
}

void expect_equal(const Tensor& got, const Tensor& want, const char* what) {
  EXPECT_TRUE(torch::equal(got.to(torch::kComplexDouble), want.to(torch::kComplexDouble)))
      << what << " " << got.scalar_type() << " " << got.sizes();
}

struct Case {
  torch::ScalarType type;
  std::vector<std::int64_t> sizes;
  bool gaps, blocks;

  /// What rank r contributes.
  Tensor of(int rank) const { return term(rank, sizes, type); }
  /// A tensor with these values, perhaps with gaps between them.
  Tensor made(const Tensor& values) const {
    if (!gaps) return values.clone();
    std::vector<std::int64_t> wide = values.sizes().vec();
    wide.push_back(2);
    const Tensor tensor = torch::zeros(wide, values.scalar_type()).select(values.dim(), 1);
    tensor.copy_(values);
    return tensor;
  }
  Tensor empty() const { return made(torch::zeros(sizes, type)); }
  template <class Options>
  Options options() const {
    return blocking<Options>(blocks);
  }
};

void run_rooted(::c10d::Backend& b, const Case& c, int root) {
  const int n = b.getSize(), me = b.getRank();
  Tensors one{me == root ? c.made(c.of(me)) : c.empty()};
  auto broadcast = c.options<::c10d::BroadcastOptions>();
  broadcast.rootRank = root;
  b.broadcast(one, broadcast)->wait();
  expect_equal(one[0], c.of(root), "broadcast");

  one = {c.made(c.of(me))};
  auto gather = c.options<::c10d::GatherOptions>();
  auto scatter = c.options<::c10d::ScatterOptions>();
  gather.rootRank = scatter.rootRank = root;
  std::vector<Tensors> gathered, scattered;
  if (me == root) {
    gathered.resize(1), scattered.resize(1);
    for (int r = 0; r < n; ++r) {
      gathered[0].push_back(c.empty());
      scattered[0].push_back(c.made(c.of(r)));
    }
  }
  b.gather(gathered, one, gather)->wait();
  for (int r = 0; r < n && me == root; ++r) {
    expect_equal(gathered[0][static_cast<std::size_t>(r)], c.of(r), "gather");
  }
  one = {c.empty()};
  b.scatter(one, scattered, scatter)->wait();
  expect_equal(one[0], c.of(me), "scatter");
}

void run_operations(::c10d::Backend& b, const Case& c) {
  const int n = b.getSize(), me = b.getRank();
  for (int root = 0; root < n; ++root) run_rooted(b, c, root);
  Tensors all;
  for (int r = 0; r < n; ++r) all.push_back(c.of(r));
  Tensors one{c.made(c.of(me))};
  std::vector<Tensors> lists(1);
  for (int r = 0; r < n; ++r) lists[0].push_back(c.empty());
  b.allgather(lists, one, c.options<::c10d::AllgatherOptions>())->wait();
  expect_equal(torch::stack(lists[0]), torch::stack(all), "all_gather");

  Tensor whole = c.made(torch::zeros_like(torch::stack(all)));
  b._allgather_base(whole, one[0], c.options<::c10d::AllgatherOptions>())->wait();
  expect_equal(whole, torch::stack(all), "_allgather_base");

  // rank r sends 2 r + d to rank d, in rows
  Tensors sent, received, wanted;
  for (int r = 0; r < n; ++r) {
    sent.push_back(c.made(c.of(2 * me + r)));
    received.push_back(c.empty());
    wanted.push_back(c.of(2 * r + me));
  }
  b.alltoall(received, sent, c.options<::c10d::AllToAllOptions>())->wait();
  expect_equal(torch::stack(received), torch::stack(wanted), "alltoall");
  Tensor rows_in = c.made(torch::stack(sent)), rows_out = c.made(torch::zeros_like(whole));
  std::vector<std::int64_t> none;
  b.alltoall_base(rows_out, rows_in, none, none, c.options<::c10d::AllToAllOptions>())->wait();
  expect_equal(rows_out, torch::stack(wanted), "alltoall_base");
}

void run_sums(::c10d::Backend& b, const Case& c) {
  const int n = b.getSize(), me = b.getRank();
  Tensor sum = c.of(0);
  for (int r = 1; r < n; ++r) sum = sum + c.of(r);

  Tensors one{c.made(c.of(me))};
  b.allreduce(one, c.options<::c10d::AllreduceOptions>())->wait();
  expect_equal(one[0], sum, "all_reduce");

  for (int root = 0; root < n; ++root) {
    one = {c.made(c.of(me))};
    auto reduce = c.options<::c10d::ReduceOptions>();
    reduce.rootRank = root;
    b.reduce(one, reduce)->wait();
    if (me == root) expect_equal(one[0], sum, "reduce");
  }

  Tensors inputs, outputs{c.empty()};
  for (int r = 0; r < n; ++r) inputs.push_back(c.made(c.of(me) + r));
  std::vector<Tensors> lists{inputs};
  b.reduce_scatter(outputs, lists, c.options<::c10d::ReduceScatterOptions>())->wait();
  expect_equal(outputs[0], sum + n * me, "reduce_scatter");

  const Tensor before = torch::stack(inputs);
  Tensor input = c.made(before), output = c.empty();
  b._reduce_scatter_base(output, input, c.options<::c10d::ReduceScatterOptions>())->wait();
  expect_equal(output, sum + n * me, "_reduce_scatter_base");
  expect_equal(input, before, "the input of _reduce_scatter_base");
}

class Hosts : public ::testing::TestWithParam<std::vector<int>> {};
INSTANTIATE_TEST_SUITE_P(Backend, Hosts,
                         ::testing::Values(std::vector{1}, std::vector{2}, std::vector{3},
                                           std::vector{2, 2}),
                         [](const auto& hosts) {
                           std::string name;
                           for (const int n : hosts.param) name += "_" + std::to_string(n);
                           return "Ranks" + name;
                         });

TEST_P(Hosts, OperationsGiveWhatTheirDefinitionsSay) {
  on_ranks(GetParam(), [](::c10d::Backend& b) {
    for (const bool blocks : {true, false}) {
      for (const bool gaps : {false, true}) {
        for (const auto type : {torch::kFloat32, torch::kInt64, torch::kBFloat16, torch::kBool,
                                torch::kComplexFloat, torch::kUInt16, torch::kFloat8_e4m3fn}) {
          run_operations(b, {type, {3, 5}, gaps, blocks});
        }
        run_operations(b, {torch::kFloat64, {2, 0}, gaps, blocks});
        run_operations(b, {torch::kFloat32, {3, 7919}, gaps, blocks});
      }
    }
  });
}

TEST_P(Hosts, SumsGiveWhatTheirDefinitionsSay) {
  on_ranks(GetParam(), [](::c10d::Backend& b) {
    for (const bool blocks : {true, false}) {
      for (const bool gaps : {false, true}) {
        for (const auto type : {torch::kFloat32, torch::kInt64, torch::kBFloat16,
                                torch::kComplexFloat, torch::kInt8}) {
          run_sums(b, {type, {3, 5}, gaps, blocks});
        }
        run_sums(b, {torch::kFloat64, {0}, gaps, blocks});
        run_sums(b, {torch::kFloat32, {3, 7919}, gaps, blocks});
      }
    }
  });
}

TEST_P(Hosts, PartsMayBeUnequal) {
  on_ranks(GetParam(), [](::c10d::Backend& b) {
    const int n = b.getSize(), me = b.getRank();
    Tensors one{term(me, {me + 1})};
    std::vector<Tensors> lists(1);
    for (int r = 0; r < n; ++r) lists[0].push_back(torch::zeros({r + 1}));
    b.allgather(lists, one)->wait();
    for (int r = 0; r < n; ++r) expect_equal(lists[0][std::size_t(r)], term(r, {r + 1}), "gather");

    // rank r sends d rows of complex numbers to rank d
    std::vector<std::int64_t> in_sizes, out_sizes;
    for (int r = 0; r < n; ++r) in_sizes.push_back(r), out_sizes.push_back(me);
    Tensor in = term(me, {n * (n - 1) / 2, 3}, torch::kComplexFloat);
    Tensor out = torch::zeros({n * me, 3}, torch::kComplexFloat);
    b.alltoall_base(out, in, out_sizes, in_sizes)->wait();
    for (int r = 0; r < n; ++r) {
      const Tensor theirs = term(r, {n * (n - 1) / 2, 3}, torch::kComplexFloat);
      expect_equal(out.narrow(0, r * me, me), theirs.narrow(0, me * (me - 1) / 2, me), "rows");
    }
  });
}

TEST_P(Hosts, ReductionsAverageMultiplyAndCompare) {
  on_ranks(GetParam(), [](::c10d::Backend& b) {
    const int n = b.getSize(), me = b.getRank();
    const auto reduced = [&](const Tensor& own, const Op& op) {
      Tensors one{own.clone()};
      ::c10d::AllreduceOptions opts;
      opts.reduceOp = op;
      b.allreduce(one, opts)->wait();
      return one[0];
    };
    const Tensor own = torch::tensor({1.0 + me, 4.0});
    expect_equal(reduced(own, Op::AVG), torch::tensor({(n + 1) / 2.0, 4.0}), "AVG");
    expect_equal(reduced(own, Op::MAX), torch::tensor({double(n), 4.0}), "MAX");
    expect_equal(reduced(own, Op::MIN), torch::tensor({1.0, 4.0}), "MIN");
    expect_equal(reduced(own, ::c10d::makePreMulSum(0.5)),
                 torch::tensor({n * (n + 1) / 4.0, 2.0 * n}), "PREMUL_SUM");
    expect_equal(reduced(torch::tensor({1 << me}), Op::BOR), torch::tensor({(1 << n) - 1}), "BOR");
    expect_equal(reduced(torch::tensor({me == 0, false}), Op::SUM), torch::tensor({true, false}),
                 "SUM of bool");
    Tensor in = torch::ones({n, 2}), out = torch::zeros({2});
    ::c10d::ReduceScatterOptions scatter;
    scatter.reduceOp = ::c10d::makePreMulSum(0.25);
    b._reduce_scatter_base(out, in, scatter)->wait();
    expect_equal(out, torch::full({2}, n / 4.0), "PREMUL_SUM of a reduce_scatter");
    expect_equal(in, torch::ones({n, 2}), "its input");
  });
}

TEST_P(Hosts, CoalescedOperationsAreThoseOfTheirTensors) {
  on_ranks(GetParam(), [](::c10d::Backend& b) {
    const int n = b.getSize(), me = b.getRank();
    Tensors several{term(me, {3}), term(me, {2}, torch::kInt64), term(me, {5})};
    b.allreduce_coalesced(several)->wait();
    const auto sum = [n](torch::IntArrayRef sizes) { return term(0, sizes) * n + n * (n - 1) / 2; };
    expect_equal(several[0], sum({3}), "first");
    expect_equal(several[1], sum({2}), "second");
    expect_equal(several[2], sum({5}), "third");

    Tensors inputs{term(me, {2}), term(me, {3}, torch::kInt32)};
    std::vector<Tensors> outputs;
    Tensors wholes{torch::zeros({n, 2}), torch::zeros({n, 3}, torch::kInt32)};
    for (int r = 0; r < n; ++r) {
      outputs.push_back({torch::zeros({2}), torch::zeros({3}, torch::kInt32)});
    }
    b.allgather_coalesced(outputs, inputs)->wait();
    b.allgather_into_tensor_coalesced(wholes, inputs)->wait();
    for (int r = 0; r < n; ++r) {
      expect_equal(outputs[std::size_t(r)][0], term(r, {2}), "gathered");
      expect_equal(outputs[std::size_t(r)][1], term(r, {3}), "gathered");
      expect_equal(wholes[0][r], term(r, {2}), "gathered into one");
      expect_equal(wholes[1][r], term(r, {3}), "gathered into one");
    }

    Tensors parts{torch::zeros({2}), torch::zeros({3}, torch::kInt32)};
    for (std::size_t i = 0; i < 2; ++i) {
      for (int r = 0; r < n; ++r) wholes[i][r] = inputs[i] + r;
    }
    b.reduce_scatter_tensor_coalesced(parts, wholes)->wait();
    expect_equal(parts[0], sum({2}) + n * me, "first part");
    expect_equal(parts[1], sum({3}) + n * me, "second part");
  });
}

void add_sparse(::c10d::Backend& b, bool blocks, bool by_name) {
  const int n = b.getSize(), me = b.getRank();
  // rank r has r entries at 0 and one at r + 1
  const Tensor indices =
      torch::cat({torch::zeros({me}, torch::kInt64), torch::tensor({me + 1}, torch::kInt64)})
          .unsqueeze(0);
  Tensors one{torch::sparse_coo_tensor(indices, torch::ones({me + 1, 2}), {n + 2, 2})};
  const auto options = blocking<::c10d::AllreduceOptions>(blocks);
  (by_name ? b.allreduce_sparse(one, options) : b.allreduce(one, options))->wait();
  Tensor want = torch::ones({n + 2, 2});
  want[0] = n * (n - 1) / 2;
  want[n + 1] = 0;
  expect_equal(one[0].to_dense(), want, "sparse");
}

TEST_P(Hosts, SparseTensorsAreAdded) {
  on_ranks(GetParam(), [](::c10d::Backend& b) {
    for (const bool blocks : {true, false}) {
      for (const bool by_name : {true, false}) add_sparse(b, blocks, by_name);
    }
  });
}

TEST(Backend, WrongArgumentsAreValueErrorsAtOnce) {
  const Backends backends({1});
  ::c10d::Backend& b = backends[0];
  Tensors none, one{torch::ones({2})}, two{torch::ones({2}), torch::ones({2})};
  EXPECT_THROW(b.allreduce(none), c10::ValueError);
  EXPECT_THROW(b.allreduce(two), c10::ValueError);
  std::vector<Tensors> lists{two};
  EXPECT_THROW(b.allgather(lists, one), c10::ValueError);  // two outputs of one rank
  ::c10d::BroadcastOptions root;
  root.rootRank = 1;
  EXPECT_THROW(b.broadcast(one, root), c10::ValueError);
  EXPECT_THROW(b.send(one, 1, 0), c10::ValueError);
  Tensors mixed{torch::ones({2}, torch::kInt64)};
  lists = {mixed};
  EXPECT_THROW(b.allgather(lists, one), c10::ValueError);
}

TEST(Backend, AllocatesInTheArena) {
  const Backends backends({1});
  ::c10d::Backend& b = **backends.begin();
  EXPECT_TRUE(b.supportsTensorAlloc(0));
  const Tensor tensor = b.allocateTensor(1 << 20, torch::kBFloat16);
  EXPECT_EQ(tensor.sizes(), torch::IntArrayRef({1 << 20}));
  EXPECT_EQ(tensor.scalar_type(), torch::kBFloat16);
  EXPECT_TRUE(backends[0].communicator().arena().contains(tensor.data_ptr()));
}

/// Entries that are too long to be sent before they are received stay at their sender.
TEST(Backend, SparseTensorsOfOtherSizesFailOnAllRanks) {
  on_ranks({2}, [](::c10d::Backend& backend) {
    constexpr std::int64_t kEntries = 20000;
    const std::int64_t rows = kEntries + backend.getRank();
    std::vector<Tensor> one{torch::sparse_coo_tensor(torch::arange(kEntries).view({1, -1}),
                                                     torch::ones({kEntries}), {rows})};
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_THROW(backend.allreduce(one)->wait(), c10::DistBackendError);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  });
}

TEST(Backend, OneRankMaySaySizesThatAreEqual) {
  on_ranks({2}, [](::c10d::Backend& b) {
    Tensor in = torch::full({4}, 1. * b.getRank()), out = torch::zeros({4});
    std::vector<std::int64_t> sizes;
    if (b.getRank() == 1) sizes = {2, 2};
    b.alltoall_base(out, in, sizes, sizes, {})->wait();
    expect_equal(out, torch::tensor({0., 0., 1., 1.}, torch::kFloat32), "all_to_all");
  });
}

TEST(Backend, RefusesToMultiplyIntegersByARealNumber) {
  const Backends backends({1});
  ::c10d::AllreduceOptions options;
  options.reduceOp = ::c10d::makePreMulSum(0.5);
  std::vector<Tensor> bytes{torch::ones({64}, torch::kInt8)};
  EXPECT_THROW(backends[0].allreduce(bytes, options), c10::ValueError);
}

}  // namespace
}  // namespace stormo::c10d
