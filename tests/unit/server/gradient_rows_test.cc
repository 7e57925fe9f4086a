// Gradients in rows, pushed to shards of servers: what they are equal to, and how many bytes go.
#include <csignal>
#include <cstring>
#include <map>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/base/rng.h>
#include <stormo/server/shard/change_stamps.h>
#include <stormo/server/shard/shared_shard.h>
#include <stormo/transport/memory/memory_file.h>

#include "breaking_proxy.h"
#include "server_run.h"

namespace stormo::server {
namespace {

using protocol::PushAction;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = protocol::PolicyOptions::Kind;
using Rule = optim::Options::Kind;
using Values = std::vector<double>;

constexpr std::int64_t kRows = 1000, kWidth = 16, kElements = kRows * kWidth, kDense = 10;
constexpr std::int64_t kRowBytes = kWidth * static_cast<std::int64_t>(sizeof(double));
constexpr int kWorkers = 2;

/// A shard with a table and a small dense parameter.
RunTerms table_terms(Kind policy, const optim::Options& optimizer) {
  RunTerms terms = small_terms(kWorkers, policy);
  terms.pieces = {{{.parameter = 0, .begin = 0, .end = kElements, .dtype = DType::kFloat64},
                   {.parameter = 1, .begin = 0, .end = kDense, .dtype = DType::kFloat64}}};
  terms.optimizer = optimizer;
  return terms;
}

/// A gradient of some rows, and of the dense parameter.
struct Sparse {
  std::vector<std::int64_t> indices;
  Values values, dense;

  /// `count` rows, at equal distances from a random one on, and random values.
  static Sparse random(Rng& rng, std::int64_t count) {
    Sparse out;
    const auto first = static_cast<std::int64_t>(rng.below(kRows));
    for (std::int64_t i = 0; i < count; ++i) {
      out.indices.push_back((first + i * (kRows / count)) % kRows);
    }
    for (std::int64_t i = 0; i < count * kWidth; ++i) out.values.push_back(rng.uniform() - 0.5);
    for (std::int64_t i = 0; i < kDense; ++i) out.dense.push_back(rng.uniform());
    return out;
  }
  Result<Shard::Pushed> push(Shard& shard, std::uint64_t sequence) const {
    const PushedPiece pieces[] = {
        {.rows = {.indices = indices, .row_length = kWidth, .values = values.data()}},
        {.array = dense.empty() ? nullptr : dense.data()}};
    return shard.push(
        {.pieces = pieces, .lr = 0.5, .gradient_scale = 0.75, .weight = 3, .sequence = sequence},
        Deadline::after(kLong));
  }
  /// The same with zeros elsewhere.
  Result<Shard::Pushed> push_dense(Shard& shard, std::uint64_t sequence) const {
    Values all(static_cast<std::size_t>(kElements));
    for (std::size_t i = 0; i < indices.size(); ++i) {
      std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(i) * kWidth, kWidth,
                  all.begin() + indices[i] * kWidth);
    }
    const PushedPiece pieces[] = {{.array = all.data()}, {.array = dense.data()}};
    return shard.push(
        {.pieces = pieces, .lr = 0.5, .gradient_scale = 0.75, .weight = 3, .sequence = sequence});
  }
};

double largest_difference(const Shard::View& a, const Shard::View& b) {
  double largest = 0;
  for (const auto& [piece, elements] : {std::pair{0, kElements}, {1, kDense}}) {
    const auto i = static_cast<std::size_t>(piece);
    const auto* x = reinterpret_cast<const double*>(a.pieces[i]);
    const auto* y = reinterpret_cast<const double*>(b.pieces[i]);
    for (std::int64_t k = 0; k < elements; ++k) {
      largest = std::max(largest, std::abs(x[k] - y[k]));
    }
  }
  return largest;
}

/// Shards of one kind of memory in this process, one for each worker.
class LocalShards {
 public:
  explicit LocalShards(const RunTerms& terms)
      : memory_(transport::MemoryFile::anonymous(std::uint64_t{1} << 26).take_or_throw()) {
    const ShardOptions options{
        .workers = kWorkers,
        .optimizer = terms.optimizer,
        .policy = protocol::make_policy(terms.policy, kWorkers).take_or_throw()};
    for (int w = 0; w < kWorkers; ++w) {
      shards_.push_back(std::make_unique<SharedShard>(terms.pieces[0], options, w, ShardWait{}));
    }
    shards_[0]->create(memory_.data());
    shards_[1]->attach(memory_.data());
  }
  SharedShard& of(int worker) { return *shards_[static_cast<std::size_t>(worker)]; }

 private:
  transport::MemoryFile memory_;
  std::vector<std::unique_ptr<SharedShard>> shards_;
};

enum class Location { kMapped, kRemote, kWithBackup };

/// Workers of server processes.
class Workers {
 public:
  Workers(Location place, const RunTerms& terms)
      : servers_(place == Location::kWithBackup ? 2 : 1) {
    for (int w = 0; w < kWorkers; ++w) {
      WorkerSession::Options options =
          session_options(servers_[0].address(), w, kWorkers, kLong, place == Location::kMapped);
      options.backups = place == Location::kWithBackup;
      if (options.backups) options.servers.push_back(servers_[1].address());
      workers_.push_back(Worker::begin(options, terms));
    }
  }
  Shard& of(int worker) { return *workers_[static_cast<std::size_t>(worker)].shards[0]; }
  ServerProcess& server(std::size_t i) { return servers_[i]; }

 private:
  std::vector<ServerProcess> servers_;
  std::vector<Worker> workers_;
};

class Rows : public ::testing::TestWithParam<Location> {};
INSTANTIATE_TEST_SUITE_P(All, Rows,
                         ::testing::Values(Location::kMapped, Location::kRemote,
                                           Location::kWithBackup));

/// Pushes rows to the workers' shards, the same dense to other ones, and compares all versions.
void expect_dense(Location place, Kind policy, const optim::Options& optimizer) {
  const RunTerms terms = table_terms(policy, optimizer);
  Workers workers(place, terms);
  LocalShards local(terms);
  Rng rng(7, "rows");
  for (std::uint64_t step = 0; step < 12; ++step) {
    for (int w = 0; w < kWorkers; ++w) {
      const auto view = workers.of(w).read(Deadline::after(kLong)).take_or_throw();
      const auto expected = local.of(w).read().take_or_throw();
      EXPECT_EQ(view.version, expected.version);
      ASSERT_LT(largest_difference(view, expected), 1e-12) << "step " << step << ", worker " << w;
    }
    for (int w = 0; w < kWorkers; ++w) {
      // some overlap, and some steps have few rows or none
      const Sparse gradient =
          Sparse::random(rng, std::array<std::int64_t, 4>{40, 1, 500, 0}[step % 4]);
      const auto pushed = gradient.push(workers.of(w), step).take_or_throw();
      EXPECT_EQ(pushed.decision, gradient.push_dense(local.of(w), step).take_or_throw().decision);
      EXPECT_EQ(gradient.push(workers.of(w), step).take_or_throw().decision.action,
                PushAction::kRepeated);
    }
  }
  ASSERT_GE(workers.of(0).state().take_or_throw().version, 12u);
}

TEST_P(Rows, AreADenseGradientOfZerosElsewhere) {
  expect_dense(GetParam(), Kind::kAsync, {});
  expect_dense(GetParam(), Kind::kSync, {.kind = Rule::kAdagrad});
  // also with a rule that changes other rows
  expect_dense(GetParam(), Kind::kSync, {.momentum = 0.9});
}

TEST_P(Rows, OutOfRangeOrOfAnotherLengthChangeNothing) {
  Workers workers(GetParam(), table_terms(Kind::kSync, {}));
  Rng rng(7, "rows");
  Sparse bad = Sparse::random(rng, 3);
  bad.indices[2] = kRows;
  for (int w = 0; w < kWorkers; ++w) (void)workers.of(w).read().take_or_throw();
  const Status refused = bad.push(workers.of(0), 0).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("1000 rows, and the gradient has row 1000"));
  // a row of 17000 is longer than the table: a server would have no room for what follows
  for (const std::int64_t length : {7, 17000, -1}) {
    const PushedPiece uneven[] = {
        {.rows = {.indices = bad.indices, .row_length = length, .values = bad.values.data()}}, {}};
    const Status other = workers.of(0).push({.pieces = uneven}).status();
    EXPECT_EQ(other.code(), Code::kInvalidArgument) << length;
    EXPECT_THAT(other.message(), HasSubstr("16000 elements, which are not whole rows of"));
  }
  EXPECT_EQ(workers.of(0).state().take_or_throw().worker(0).pushes, 0u);
  bad.indices[2] = 0;
  EXPECT_TRUE(bad.push(workers.of(0), 0).ok());
}

// What goes to and from a server, and from it to its backup, is proportional to the rows.
TEST(RowsOfTables, CostBytesForTheirRowsOnly) {
  const optim::Options optimizer{.kind = Rule::kAdagrad};
  ServerProcess first, second;
  BreakingProxy to_first(first.address(), 1), to_second(second.address(), 1);
  to_first.hold();
  to_second.hold();
  WorkerSession::Options options =
      session_options(to_first.address(), 0, 1, kLong, /*share_memory=*/false);
  options.servers.push_back(to_second.address());
  options.backups = true;
  RunTerms terms = table_terms(Kind::kSync, optimizer);
  terms.workers = 1;
  Worker me = Worker::begin(options, terms);
  Rng rng(3, "rows");
  std::uint64_t sequence = 0;
  const auto steps_cost = [&](std::int64_t rows) {
    const std::int64_t at_first = to_first.bytes(), at_second = to_second.bytes();
    for (int i = 0; i < 10; ++i, ++sequence) {
      (void)me.shards[0]->read().take_or_throw();
      (void)Sparse::random(rng, rows).push(*me.shards[0], sequence).take_or_throw();
    }
    return std::pair{(to_first.bytes() - at_first) / 10, (to_second.bytes() - at_second) / 10};
  };
  (void)steps_cost(1);  // both of its copies are read whole
  const auto [few, few_copied] = steps_cost(10);
  (void)steps_cost(100);
  const auto [many, many_copied] = steps_cost(100);
  // a row is pushed once, and read into each of two copies; beside its elements go an index, and
  // the numbers of a range
  const std::int64_t most = 90 * (kRowBytes + 8 + 2 * (kRowBytes + 24));
  EXPECT_GT(many - few, 90 * 3 * kRowBytes - 1000);
  EXPECT_LT(many - few, most + 1000);
  EXPECT_LT(few, 10 * 500 + 3000) << "the table has " << kElements * 8 << " bytes";
  EXPECT_GT(many_copied - few_copied, 90 * kRowBytes - 1000);
  EXPECT_LT(many_copied - few_copied, 90 * (kRowBytes + 8) + 1000);
  EXPECT_TRUE(me.session->finish().ok());
}

// Gradients and learning rates of ones: each weight counts the pushes that had its row.
TEST(RowsOfTables, AKilledServerCostsNoneAndDoublesNone) {
  RunTerms terms = table_terms(Kind::kAsync, {});
  Workers workers(Location::kWithBackup, terms);
  Rng rng(5, "rows");
  std::map<std::int64_t, int> pushes;
  for (std::uint64_t step = 0; step < 60; ++step) {
    if (step == 30) workers.server(0).send_signal(SIGKILL);
    for (int w = 0; w < kWorkers; ++w) {
      const auto view = workers.of(w).read(Deadline::after(kLong)).take_or_throw();
      ASSERT_EQ(view.version, kWorkers * step + static_cast<std::uint64_t>(w));
      const auto* weights = reinterpret_cast<const double*>(view.pieces[0]);
      for (std::int64_t r = 0; r < kRows; ++r) {
        ASSERT_EQ(weights[r * kWidth + 3], -0.375 * pushes[r]) << "row " << r << ", step " << step;
      }
      Sparse gradient = Sparse::random(rng, 20);
      std::ranges::fill(gradient.values, 1);
      for (const std::int64_t row : gradient.indices) ++pushes[row];
      const auto pushed = gradient.push(workers.of(w), step).take_or_throw();
      EXPECT_EQ(pushed.decision.action, PushAction::kUpdate);
    }
  }
  EXPECT_EQ(workers.server(0).outcome().code(), Code::kCancelled) << "it was killed";
}

TEST(ChangeStamps, SayWhatHasChangedSince) {
  const std::vector<ShardPiece> pieces = {{.begin = 0, .end = 100, .dtype = DType::kFloat32},
                                          {.begin = 0, .end = 0, .dtype = DType::kFloat32},
                                          {.begin = 5, .end = 22, .dtype = DType::kFloat64}};
  ChangeStamps stamps(pieces);
  std::vector<std::byte> memory(stamps.bytes());
  stamps.attach(memory.data());
  stamps.initialise();
  EXPECT_THAT(stamps.since(0), ElementsAre());
  stamps.note({.piece = 0, .begin = 31, .end = 33}, 1);  // blocks of 32 elements
  stamps.note({.piece = 0, .begin = 96, .end = 97}, 2);
  stamps.note({.piece = 2, .begin = 16, .end = 17}, 2);  // blocks of 16, and a rest
  using R = ChangedRange;
  EXPECT_THAT(stamps.since(0), ElementsAre(R{0, 0, 64}, R{0, 96, 100}, R{2, 16, 17}));
  EXPECT_THAT(stamps.since(1), ElementsAre(R{0, 96, 100}, R{2, 16, 17}));
  EXPECT_THAT(stamps.since(2), ElementsAre());
  const float array = 0;
  const PushedPiece of_first[] = {{.array = &array}, {}, {}};
  stamps.note({.pieces = of_first}, /*only_rows=*/true, 4);
  stamps.note({.piece = 0, .begin = 0, .end = 1}, 3);  // of a writer that comes late
  stamps.note_all(3);
  EXPECT_THAT(stamps.since(3), ElementsAre(R{0, 0, 100}));
  EXPECT_THAT(stamps.since(4), ElementsAre());
}

}  // namespace
}  // namespace stormo::server
