// A push of rows to a shard with versions writes little of a copy that holds an older version. The
// result is that of a pass over the whole shard.
#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/base/rng.h>
#include <stormo/server/shard/shared_shard.h>
#include <stormo/transport/memory/memory_file.h>

#include "row_classes.h"

namespace stormo::server {
namespace {

using protocol::Compensation;
using protocol::PolicyOptions;
using Policy = PolicyOptions::Kind;
using Rule = optim::Options::Kind;

constexpr int kWorkers = 3;
constexpr std::int64_t kRows = 300, kWidth = 10, kElements = kRows * kWidth, kDense = 50;

/// A shard, and a SharedShard for each worker and a server process.
class Shards {
 public:
  Shards(const std::vector<ShardPiece>& pieces, const optim::Options& optimizer,
         const PolicyOptions& policy)
      : memory_(transport::MemoryFile::anonymous(std::uint64_t{1} << 25).take_or_throw()) {
    const ShardOptions options{.workers = kWorkers,
                               .optimizer = optimizer,
                               .policy = protocol::make_policy(policy, kWorkers).take_or_throw()};
    for (int w = 0; w <= kWorkers; ++w) {
      all_.push_back(
          std::make_unique<SharedShard>(pieces, options, w,
                                        ShardWait{.policy = transport::wait_policy(kWorkers, 2),
                                                  .patience = std::chrono::seconds(20)}));
    }
    all_[0]->create(memory_.data());
    for (const auto& shard : all_) shard->attach(memory_.data());
  }
  SharedShard& of(std::size_t worker) { return *all_[worker]; }
  SharedShard& server() { return *all_.back(); }

  /// Weights, optimizer state and numbers of updates of the current version.
  std::vector<std::string> all() {
    std::vector<std::string> out;
    throw_if_error(server()
                       .save([&](std::size_t i, const PieceArrays& a) {
                         const std::size_t bytes = server().pieces()[i].bytes();
                         out.push_back(std::to_string(a.updates));
                         for (const std::byte* p : {a.weights, a.slots[0], a.mean_square}) {
                           if (p == nullptr) continue;
                           out.emplace_back(reinterpret_cast<const char*>(p), bytes);
                         }
                       })
                       .status());
    return out;
  }

 private:
  transport::MemoryFile memory_;
  std::vector<std::unique_ptr<SharedShard>> all_;
};

std::vector<ShardPiece> table_and_dense(DType dtype) {
  return {{.parameter = 0, .begin = 0, .end = kElements, .dtype = dtype},
          {.parameter = 1, .begin = 0, .end = kDense, .dtype = dtype}};
}

/// Gradients of random rows, and now and then of the dense parameter: for one shard as rows, for
/// another one with zeros elsewhere.
template <class T>
class RandomPush {
 public:
  explicit RandomPush(Rng& rng)
      : all_(static_cast<std::size_t>(kElements)), dense_(static_cast<std::size_t>(kDense)) {
    const std::int64_t count = std::array<std::int64_t, 4>{1, 3, 60, 0}[rng.below(4)];
    const auto first = static_cast<std::int64_t>(rng.below(kRows));
    for (std::int64_t i = 0; i < count; ++i) {
      indices_.push_back((first + i * (kRows / count)) % kRows);
      for (std::int64_t k = 0; k < kWidth; ++k) {
        values_.push_back(static_cast<T>(rng.uniform()) - T{0.5});
        all_[static_cast<std::size_t>(indices_.back() * kWidth + k)] = values_.back();
      }
    }
    for (T& g : dense_) g = static_cast<T>(rng.uniform());
    has_dense_ = rng.below(3) == 0;
  }
  void push(Shard& shard, std::uint64_t sequence, bool as_rows) const {
    PushedPiece pieces[] = {{.array = all_.data()},
                            {.array = has_dense_ ? dense_.data() : nullptr}};
    if (as_rows) {
      pieces[0] = {.rows = {.indices = indices_, .row_length = kWidth, .values = values_.data()}};
    }
    (void)shard.push({.pieces = pieces, .lr = 0.3, .sequence = sequence}).take_or_throw();
  }

 private:
  std::vector<std::int64_t> indices_;
  std::vector<T> values_, all_, dense_;
  bool has_dense_ = false;
};

/// Every worker reads now and then, so that copies of different ages are free.
template <class T>
void expect_full_pass(DType dtype, const optim::Options& optimizer, const PolicyOptions& policy) {
  Shards rows(table_and_dense(dtype), optimizer, policy);
  Shards whole(table_and_dense(dtype), optimizer, policy);
  Rng rng(11, "rows");
  std::vector<std::uint64_t> sequence(kWorkers);
  for (int step = 0; step < 300; ++step) {
    const auto w = static_cast<std::size_t>(rng.below(kWorkers));
    if (rng.below(2) == 0) {
      (void)rows.of(w).read().take_or_throw();
      (void)whole.of(w).read().take_or_throw();
    }
    const RandomPush<T> gradient(rng);
    const bool as_rows = rng.below(20) != 0;  // now and then a dense one between them
    gradient.push(rows.of(w), sequence[w], as_rows);
    gradient.push(whole.of(w), sequence[w]++, /*as_rows=*/false);
    ASSERT_EQ(rows.all(), whole.all()) << "step " << step;
  }
}

TEST(RowVersions, AreThoseOfAFullPass) {
  const PolicyOptions async{.kind = Policy::kAsync};
  expect_full_pass<float>(DType::kFloat32, {}, async);
  expect_full_pass<double>(DType::kFloat64, {.kind = Rule::kAdagrad}, async);
  // rules that change other rows
  expect_full_pass<float>(DType::kFloat32, {.momentum = 0.9}, async);
  expect_full_pass<float>(DType::kFloat32, {.kind = Rule::kAdagrad, .weight_decay = 0.1}, async);
  for (const auto how : {Compensation::kDelay, Compensation::kAdaptiveDelay}) {
    expect_full_pass<double>(DType::kFloat64, {}, {.kind = Policy::kAsync, .compensation = how});
  }
}

// After an exchange, weights are new everywhere, and the optimizer's state is that of before.
TEST(RowVersions, AfterAnExchangeAreThoseOfAFullPass) {
  const optim::Options adagrad{.kind = Rule::kAdagrad};
  Shards rows(table_and_dense(DType::kFloat32), adagrad, {.kind = Policy::kAsync});
  Shards whole(table_and_dense(DType::kFloat32), adagrad, {.kind = Policy::kAsync});
  Rng rng(12, "rows");
  for (std::uint64_t step = 0; step < 40; ++step) {
    if (step % 5 == 4) {
      for (Shards* shards : {&rows, &whole}) {
        std::vector<float> table(static_cast<std::size_t>(kElements), 2), dense(kDense, 3);
        void* own[] = {table.data(), dense.data()};
        (void)shards->of(0).elastic_average(own, 0.5, step).take_or_throw();
      }
    } else {
      const RandomPush<float> gradient(rng);
      gradient.push(rows.of(0), step, /*as_rows=*/true);
      gradient.push(whole.of(0), step, /*as_rows=*/false);
    }
    ASSERT_EQ(rows.all(), whole.all()) << "step " << step;
  }
}

// A mark that no push has made is seen in the next version only if that was written whole.
TEST(RowVersions, WriteOnlyWhatHasChanged) {
  const auto mark_is_copied = [](const optim::Options& optimizer) {
    Shards shards(RowClasses::pieces(), optimizer, {.kind = Policy::kAsync});
    const RowClasses classes;
    // every copy that is used has been written once
    for (std::uint64_t i = 0; i < 5; ++i) (void)classes.push(shards.of(0), i, 0).take_or_throw();
    const auto mark_of = [](const std::byte* weights) {
      return reinterpret_cast<const double*>(weights)[7 * RowClasses::kWidth];
    };
    reinterpret_cast<double*>(shards.of(0).values(0).weights)[7 * RowClasses::kWidth] = 42;
    (void)classes.push(shards.of(0), 5, 0).take_or_throw();
    return mark_of(shards.of(0).values(0).weights) == 42;
  };
  EXPECT_FALSE(mark_is_copied({}));
  EXPECT_FALSE(mark_is_copied({.kind = Rule::kAdagrad}));
  EXPECT_TRUE(mark_is_copied({.momentum = 0.5})) << "this rule changes other rows";
}

// So a writer that is killed leaves none that looks complete.
TEST(RowVersions, ACopyHoldsNothingFromItsFirstByteToItsCommit) {
  ShardMemory memory(RowClasses::pieces(), kWorkers, {.kind = Rule::kAdagrad}, false);
  const auto file = transport::MemoryFile::anonymous(memory.bytes()).take_or_throw();
  memory.attach(file.data());
  memory.initialise();
  const auto commit = [&](const Commit& copies, std::uint64_t version) {
    ShardMemory::Lease lease{.to = copies, .state = protocol::ShardState(kWorkers)};
    lease.from = Commit::unpack(memory.header().commit.load());
    lease.state.version = version;
    EXPECT_TRUE(memory.commit(0, lease));
  };
  const Commit second{.weights = 1, .slots = 1}, third{.weights = 2, .slots = 2};
  EXPECT_EQ(memory.start_writing(second), std::nullopt) << "it was never written";
  commit(second, 7);
  EXPECT_EQ(memory.start_writing({.weights = 1, .slots = 0}), 0) << "the slots are older";
  EXPECT_EQ(memory.start_writing(second), std::nullopt) << "its weights are being written";
  commit(third, 8);
  commit(second, 8);
  EXPECT_EQ(memory.start_writing(second), 8);
  EXPECT_EQ(memory.start_writing(second), std::nullopt);
}

// Nobody loses the lease here: who lost it would read what others write, in vain. For that see
// RowFaults.
TEST(RowVersions, OfThreadsAreWholeAndLoseNothing) {
  Shards shards(RowClasses::pieces(), {}, {.kind = Policy::kAsync});
  constexpr std::uint64_t kPushes = 300;
  std::vector<std::thread> workers;
  for (std::size_t w = 0; w < kWorkers; ++w) {
    workers.emplace_back([&, w] {
      Rng rng(w, "rows");
      const RowClasses classes;
      for (std::uint64_t i = 0; i < kPushes; ++i) {
        const auto view = shards.of(w).read().take_or_throw();
        EXPECT_TRUE(RowClasses::is_whole(view.pieces[0], view.version)) << view.version;
        (void)classes.push(shards.of(w), i, rng.below(RowClasses::kClasses)).take_or_throw();
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  const auto last = shards.server().look().take_or_throw();
  EXPECT_EQ(last.version, kWorkers * kPushes);
  EXPECT_TRUE(RowClasses::is_whole(last.pieces[0], last.version));
}

}  // namespace
}  // namespace stormo::server
