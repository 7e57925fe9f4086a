#include <stormo/server/shard/in_place_shard.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/base/rng.h>
#include <stormo/server/shard/shared_shard.h>
#include <stormo/transport/memory/memory_file.h>

namespace stormo::server {
namespace {

using protocol::Compensation;
using protocol::PolicyOptions;
using protocol::PushAction;
using testing::HasSubstr;
using Rule = optim::Options::Kind;

constexpr std::int64_t kRows = 300, kLength = 7;  // a row lies in two blocks now and then
constexpr std::int64_t kOther = 1000;             // elements of the second piece

ShardOptions shard_options(int workers, const optim::Options& rule = {},
                           const PolicyOptions& policy = {}) {
  return {.workers = workers,
          .optimizer = rule,
          .policy = protocol::make_policy(policy, workers).take_or_throw()};
}

/// A table [kRows, kLength] and a vector [kOther], and an InPlaceShard for each worker.
template <class T>
class Table {
 public:
  static constexpr DType kType = std::is_same_v<T, float> ? DType::kFloat32 : DType::kFloat64;

  explicit Table(int workers, const optim::Options& rule = {}, const PolicyOptions& policy = {})
      : memory_(transport::MemoryFile::anonymous(std::uint64_t{1} << 20).take_or_throw()) {
    const std::vector<ShardPiece> pieces = {
        {.parameter = 3, .begin = 0, .end = kRows * kLength, .dtype = kType},
        {.parameter = 5, .begin = 10, .end = 10 + kOther, .dtype = kType}};
    for (int w = 0; w < workers; ++w) {
      workers_.push_back(
          std::make_unique<InPlaceShard>(pieces, shard_options(workers, rule, policy), w));
    }
    EXPECT_LE(workers_[0]->bytes(), memory_.size());
    workers_[0]->create(memory_.data());
    for (const auto& w : workers_) w->attach(memory_.data());
  }

  InPlaceShard& of(int worker) { return *workers_[static_cast<std::size_t>(worker)]; }

  Result<Shard::Pushed> push(int worker, const std::vector<std::int64_t>& rows,
                             const std::vector<T>& values, double lr = 1,
                             const T* other = nullptr) {
    const PushedPiece pieces[] = {
        {.rows = {.indices = rows, .row_length = kLength, .values = values.data()}},
        {.array = other}};
    return of(worker).push(
        {.pieces = pieces, .lr = lr, .sequence = of(worker).state()->worker(worker).pushes});
  }

  /// All values of a piece, read as workers that push meanwhile allow it.
  std::vector<T> values(std::size_t piece = 0) {
    const Shard::View view = of(0).look().take_or_throw();
    T* live = reinterpret_cast<T*>(const_cast<std::byte*>(view.pieces[piece]));
    std::vector<T> out;
    for (std::int64_t i = 0; i < of(0).pieces()[piece].elements(); ++i)
      out.push_back(std::atomic_ref(live[i]).load(std::memory_order_relaxed));
    return out;
  }

 private:
  transport::MemoryFile memory_;
  std::vector<std::unique_ptr<InPlaceShard>> workers_;
};

template <class T>
std::vector<T> random_values(std::size_t count, std::uint64_t seed) {
  Rng rng(seed, "values");
  std::vector<T> out(count);
  for (T& v : out) v = static_cast<T>(rng.uniform() - 0.5);
  return out;
}

std::vector<std::int64_t> random_rows(std::uint64_t seed) {
  Rng rng(seed, "rows");
  std::vector<std::int64_t> out;
  for (std::int64_t row = 0; row < kRows; ++row) {
    if (rng.uniform() < 0.3) out.push_back(row);
  }
  return out;
}

/// The same updates one after the other, in memory of its own.
template <class T>
struct Oracle {
  Oracle(const optim::Options& options, std::vector<T> first)
      : rule(options), weights(std::move(first)), slot(weights.size(), 0) {}

  void update(std::int64_t first, std::int64_t count, const T* gradient, double lr) {
    const optim::GradientTerm term{.data = gradient};
    optim::update(rule, {.lr = lr},
                  {.begin = 0,
                   .end = count,
                   .dtype = Table<T>::kType,
                   .weights = weights.data() + first,
                   .gradients = {&term, 1},
                   .gradient_dtype = Table<T>::kType,
                   .slots = {slot.data() + first, nullptr}});
  }

  optim::Options rule;
  std::vector<T> weights, slot;
};

template <class T>
void one_worker_is_the_sequential_run(Rule kind) {
  const optim::Options rule{.kind = kind};
  Table<T> table(1, rule);
  Oracle<T> rows(rule, random_values<T>(kRows * kLength, 1));
  Oracle<T> other(rule, random_values<T>(kOther, 2));
  for (std::size_t piece = 0; piece < 2; ++piece) {
    PieceArrays first;
    first.weights = reinterpret_cast<std::byte*>((piece == 0 ? rows : other).weights.data());
    throw_if_error(table.of(0).set(piece, first));
  }
  for (std::uint64_t step = 10; step < 20; ++step) {
    const std::vector<std::int64_t> which = random_rows(step);
    const std::vector<T> values = random_values<T>(which.size() * kLength, step);
    const std::vector<T> dense = random_values<T>(kOther, step + 100);
    throw_if_error(table.push(0, which, values, 0.1, dense.data()).status());
    for (std::size_t i = 0; i < which.size(); ++i)
      rows.update(which[i] * kLength, kLength, values.data() + i * kLength, 0.1);
    other.update(0, kOther, dense.data(), 0.1);
    ASSERT_EQ(table.values(0), rows.weights);
    ASSERT_EQ(table.values(1), other.weights);
  }
  const auto compare = [&](std::size_t piece, const PieceArrays& live) {
    EXPECT_EQ(live.updates, 10);
    const Oracle<T>& wanted = piece == 0 ? rows : other;
    if (kind == Rule::kSgd) return;
    EXPECT_EQ(std::memcmp(live.slots[0], wanted.slot.data(), wanted.slot.size() * sizeof(T)), 0);
  };
  throw_if_error(table.of(0).save(compare).status());
}

TEST(InPlaceShard, OneWorkerIsTheSequentialRunBitForBit) {
  for (const Rule rule : {Rule::kSgd, Rule::kAdagrad}) {
    one_worker_is_the_sequential_run<float>(rule);
    one_worker_is_the_sequential_run<double>(rule);
  }
}

TEST(InPlaceShard, GoesOnWithASavedState) {
  const optim::Options rule{.kind = Rule::kAdagrad};
  Table<double> first(1, rule), second(1, rule);
  const auto rows = random_rows(1);
  const auto values = random_values<double>(rows.size() * kLength, 1);
  throw_if_error(first.push(0, rows, values).status());
  const auto copy = [&](std::size_t i, const PieceArrays& a) {
    throw_if_error(second.of(0).set(i, a));
  };
  throw_if_error(first.of(0).save(copy).status());
  for (Table<double>* table : {&first, &second})
    throw_if_error(table->push(0, rows, values).status());
  EXPECT_EQ(first.values(), second.values());
  const auto count = [](std::size_t, const PieceArrays& a) { EXPECT_EQ(a.updates, 2); };
  throw_if_error(second.of(0).save(count).status());
}

/// Calls body(worker) on a thread for each worker, all at the same time.
void on_threads(int workers, const std::function<void(int)>& body) {
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  for (int w = 0; w < workers; ++w) {
    threads.emplace_back([&, w] {
      ++ready;
      while (ready < workers) std::this_thread::yield();
      body(w);
    });
  }
  for (std::thread& t : threads) t.join();
}

TEST(InPlaceShard, WorkersWithRowsOfTheirOwnLoseNothing) {
  constexpr int kWorkers = 4, kPushes = 200;
  Table<float> table(kWorkers);
  on_threads(kWorkers, [&](int w) {
    std::vector<std::int64_t> rows;
    for (std::int64_t row = w; row < kRows; row += kWorkers) rows.push_back(row);
    const std::vector<float> ones(rows.size() * kLength, -1.0F);
    for (int i = 0; i < kPushes; ++i) {
      (void)table.of(w).read();
      throw_if_error(table.push(w, rows, ones).status());
    }
  });
  EXPECT_THAT(table.values(), testing::Each(float{kPushes}));
  const protocol::ShardState state = table.of(0).state().take_or_throw();
  EXPECT_EQ(state.version, std::uint64_t{kWorkers} * kPushes);
  EXPECT_EQ(state.staleness().count, state.version);
  for (const protocol::WorkerState& w : state.workers) EXPECT_EQ(w.pushes, std::uint64_t{kPushes});
}

// Each push adds 1 + 2^-34: a mixture of the halves of two sums is no sum.
TEST(InPlaceShard, OverlappingRowsAreNeverTorn) {
  constexpr int kPushers = 3, kPushes = 40'000;
  constexpr double kUnit = 1 + 0x1p-34;
  Table<double> table(kPushers + 1);
  const std::vector<std::int64_t> rows = {0, 1};
  const std::vector<double> gradient(rows.size() * kLength, -kUnit);
  std::atomic<int> pushing{kPushers};
  double* const live =
      reinterpret_cast<double*>(const_cast<std::byte*>(table.of(0).look()->pieces[0]));
  const auto expect_sums = [&](double least) {
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const double value = std::atomic_ref(live[i]).load(std::memory_order_relaxed);
      ASSERT_EQ(std::round(value) * kUnit, value);
      ASSERT_GE(value, least);
      ASSERT_LE(value, kPushers * kPushes * kUnit);
    }
  };
  on_threads(kPushers + 1, [&](int w) {
    while (w == kPushers && pushing > 0) expect_sums(0);
    for (int i = 0; w < kPushers && i < kPushes; ++i)
      throw_if_error(table.push(w, rows, gradient).status());
    if (w < kPushers) --pushing;
  });
  expect_sums(1);
  EXPECT_EQ(table.of(0).state()->version, std::uint64_t{kPushers} * kPushes);
}

TEST(InPlaceShard, RefusesRowsThatAreNotThereBeforeItChangesAny) {
  Table<float> table(1);
  const std::vector<float> ones(3 * kLength, 1.0F);
  for (const std::int64_t wrong : {kRows, std::int64_t{-1}}) {
    const auto pushed = table.push(0, {0, 1, wrong}, ones);
    EXPECT_EQ(pushed.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(pushed.status().message(), HasSubstr("piece 0 of the shard, of parameter 3"));
    EXPECT_THAT(pushed.status().message(),
                HasSubstr("has 300 rows, and the gradient has row " + std::to_string(wrong)));
  }
  const std::int64_t row = 0;
  const PushedPiece halves[] = {
      {.rows = {.indices = {&row, 1}, .row_length = 8, .values = ones.data()}}, {}};
  const auto pushed = table.of(0).push({.pieces = halves, .lr = 1});
  EXPECT_THAT(pushed.status().message(), HasSubstr("not whole rows of 8"));
  EXPECT_THAT(table.values(), testing::Each(0.0F));
  EXPECT_EQ(table.of(0).state()->version, 0u);
}

TEST(InPlaceShard, CountsReadsPushesAndStaleness) {
  Table<float> table(2, {}, {.compensation = Compensation::kInverseStaleness});
  const std::vector<float> ones(kLength, -1.0F);
  EXPECT_EQ(table.of(0).read()->version, 0u);
  EXPECT_EQ(table.of(1).read()->version, 0u);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(table.push(1, {1}, ones)->commit, 1u + unsigned(i));
  const Shard::Pushed late = table.push(0, {0}, ones).take_or_throw();
  EXPECT_EQ(late.decision.staleness, 4u);
  EXPECT_EQ(table.values()[0], 0.25F) << "the rate is divided by the staleness";
  EXPECT_EQ(table.of(0).read()->version, 5u);
  EXPECT_EQ(table.push(0, {0}, ones)->decision.staleness, 0u);
  const protocol::ShardState state = table.of(1).state().take_or_throw();
  EXPECT_EQ(state.version, 6u);
  EXPECT_EQ(state.worker(0).reads, 2u);
  EXPECT_EQ(state.worker(0).staleness.max, 4u);
  EXPECT_EQ(state.worker(1).staleness.sum, 0u + 1 + 2 + 3);
  EXPECT_EQ(state.worker(1).staleness.histogram[3], 1u);
}

TEST(InPlaceShard, TakesAPushOnce) {
  Table<float> table(1);
  const std::vector<float> dense(kRows * kLength, -1.0F);
  const PushedPiece pieces[] = {{.array = dense.data()}, {}};
  PushedGradient gradient{.pieces = pieces, .lr = 1};
  EXPECT_EQ(table.of(0).push(gradient)->decision.action, PushAction::kUpdate);
  EXPECT_EQ(table.of(0).push(gradient)->decision.action, PushAction::kRepeated);
  EXPECT_THAT(table.values(), testing::Each(1.0F));
  gradient.sequence = 2;
  EXPECT_THAT(table.of(0).push(gradient).status().message(), HasSubstr("push 1 was not received"));
}

TEST(InPlaceShard, AWorkerLeavesAndComesBack) {
  Table<float> table(2);
  const std::vector<float> ones(kLength, -1.0F);
  throw_if_error(table.of(0).leave(1).status());
  EXPECT_EQ(table.of(1).state()->active_workers(), 1);
  for (int i = 0; i < 3; ++i) throw_if_error(table.push(1, {1}, ones).status());
  EXPECT_EQ(table.of(0).join()->sequence, 3u);
  EXPECT_EQ(table.of(1).state()->active_workers(), 2);
  throw_if_error(table.push(0, {0}, ones).status());
}

TEST(InPlaceShard, RefusesWhatNeedsVersionsOrMovesOtherElements) {
  EXPECT_TRUE(InPlaceShard::check(shard_options(2)).ok());
  EXPECT_TRUE(InPlaceShard::check(shard_options(2, {.kind = Rule::kAdagrad})).ok());
  using enum PolicyOptions::Kind;
  for (const auto kind : {kSync, kSsp, kNSoftsync, kBackupWorkers}) {
    const Status status = InPlaceShard::check(shard_options(2, {}, {.kind = kind}));
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("go with policy async"));
  }
  EXPECT_FALSE(
      InPlaceShard::check(shard_options(2, {}, {.compensation = Compensation::kDelay})).ok());
  for (const optim::Options& rule :
       {optim::Options{.momentum = 0.9}, optim::Options{.weight_decay = 0.1},
        optim::Options{.kind = Rule::kAdamW}}) {
    EXPECT_THAT(InPlaceShard::check(shard_options(2, rule)).message(),
                HasSubstr("use sgd without momentum or adagrad"));
  }
}

}  // namespace
}  // namespace stormo::server
