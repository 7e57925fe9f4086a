// What every Shard does, in memory that is shared, of a server on this host, and behind a
// connection.
#include <stormo/server/shard.h>

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/server/shard/shared_shard.h>
#include <stormo/transport/memory/memory_file.h>

#include "server_run.h"

namespace stormo::server {
namespace {

using protocol::PushAction;
using std::chrono::milliseconds;
using Kind = protocol::PolicyOptions::Kind;
using Values = std::vector<double>;

enum class Location { kShared, kMapped, kRemote, kWithBackup };

/// Two workers and their shards, of which shard 1 is used: it has two pieces.
class Shards {
 public:
  Shards(Location place, Kind policy,
         protocol::Compensation compensation = protocol::Compensation::kNone) {
    RunTerms terms = small_terms(2, policy);
    terms.policy.compensation = compensation;
    if (place == Location::kShared) {
      share(terms);
      return;
    }
    run_ = std::make_unique<ServedRun>();
    backup_ = std::make_unique<ServedRun>();
    for (int w = 0; w < 2; ++w) {
      WorkerSession::Options options =
          session_options(run_->address(), w, 2, kLong, place == Location::kMapped);
      options.backups = place == Location::kWithBackup;
      if (options.backups) options.servers.push_back(backup_->address());
      workers_.push_back(Worker::begin(options, terms));
      shards_.push_back(workers_.back().shards[1].get());
    }
  }
  Shard& of(int worker) { return *shards_[static_cast<std::size_t>(worker)]; }
  Ledger& ledger(int worker) {
    return workers_[static_cast<std::size_t>(worker)].session->ledger();
  }

  /// Pushes a gradient of `value` to the first piece, and none to the second.
  Result<Shard::Pushed> push(int worker, std::uint64_t sequence, double value, double lr = 1,
                             Duration limit = kLong) {
    const Values gradient(static_cast<std::size_t>(kShardElements), value);
    const PushedPiece pieces[] = {{.array = gradient.data()}, {}};
    return of(worker).push({.pieces = pieces, .lr = lr, .sequence = sequence},
                           Deadline::after(limit));
  }
  double read(int worker) { return first(of(worker).read(Deadline::after(kLong)).take_or_throw()); }
  /// The value that all elements of the first piece have.
  static double first(const Shard::View& view) {
    const auto* w = reinterpret_cast<const double*>(view.pieces[0]);
    for (std::int64_t i = 0; i < kShardElements; ++i) EXPECT_EQ(w[i], w[0]) << "element " << i;
    return w[0];
  }

 private:
  void share(const RunTerms& terms) {
    memory_.emplace(transport::MemoryFile::anonymous(std::uint64_t{1} << 26).take_or_throw());
    const ShardOptions options{.workers = 2,
                               .optimizer = terms.optimizer,
                               .policy = protocol::make_policy(terms.policy, 2).take_or_throw()};
    for (int w = 0; w < 2; ++w) {
      own_.push_back(std::make_unique<SharedShard>(terms.pieces[1], options, w, ShardWait{}));
      shards_.push_back(own_.back().get());
    }
    own_[0]->create(memory_->data());
    own_[1]->attach(memory_->data());
  }

  std::optional<transport::MemoryFile> memory_;
  std::vector<std::unique_ptr<SharedShard>> own_;
  std::unique_ptr<ServedRun> run_, backup_;
  std::vector<Worker> workers_;
  std::vector<Shard*> shards_;
};

class Conformance : public testing::TestWithParam<Location> {};
std::string name_of(const testing::TestParamInfo<Location>& test) {
  static const std::vector<std::string> names = {"shared", "mapped", "remote", "with_backup"};
  return names[static_cast<std::size_t>(test.param)];
}
INSTANTIATE_TEST_SUITE_P(All, Conformance,
                         testing::Values(Location::kShared, Location::kMapped, Location::kRemote,
                                         Location::kWithBackup),
                         name_of);

TEST_P(Conformance, AReadSeesThePushesBeforeIt) {
  Shards shards(GetParam(), Kind::kAsync);
  EXPECT_EQ(shards.read(0), 0);
  const auto pushed = shards.push(0, 0, 2, 0.5).take_or_throw();
  EXPECT_EQ(pushed.decision.action, PushAction::kUpdate);
  const auto view = shards.of(1).read().take_or_throw();
  EXPECT_EQ(Shards::first(view), -1);
  EXPECT_EQ(view.version, 1u);
  EXPECT_EQ(view.commit, pushed.commit);
  EXPECT_EQ(shards.of(1).pieces().size(), 2u);
  const auto state = shards.of(1).state().take_or_throw();
  EXPECT_EQ(state, shards.of(0).state().take_or_throw());
  EXPECT_EQ(state.worker(0).pushes, 1u);
  EXPECT_EQ(state.worker(1).reads, 1u);
  EXPECT_EQ(state.worker(1).version_read, 1u);
}

TEST_P(Conformance, AViewStaysUntilTheNextRead) {
  Shards shards(GetParam(), Kind::kAsync);
  const auto view = shards.of(1).read().take_or_throw();
  for (std::uint64_t i = 0; i < 10; ++i) {
    (void)shards.read(0);
    (void)shards.push(0, i, 1).take_or_throw();
  }
  EXPECT_EQ(Shards::first(view), 0);
  shards.of(1).begin_read(Deadline::never());
  EXPECT_EQ(Shards::first(view), 0) << "a read that was begun is for the view that comes";
  EXPECT_NE(shards.read(1), 0);
}

TEST_P(Conformance, ALookDoesNotCount) {
  Shards shards(GetParam(), Kind::kSync);
  (void)shards.push(0, 0, 1).take_or_throw();
  EXPECT_EQ(Shards::first(shards.of(0).look().take_or_throw()), 0);
  EXPECT_EQ(shards.of(0).state().take_or_throw().worker(0).reads, 0u);
}

TEST_P(Conformance, SetAndSaveHaveAllArrays) {
  Shards shards(GetParam(), Kind::kAsync);
  Values weights(static_cast<std::size_t>(kShardElements), 5), slot = weights;
  slot[3] = 8;
  const auto bytes = [](Values& values) { return reinterpret_cast<std::byte*>(values.data()); };
  Values small = {1, 2, 3, 4, 5, 6, 7};
  throw_if_error(
      shards.of(0).set(0, {.weights = bytes(weights), .slots = {bytes(slot)}, .updates = 41}));
  throw_if_error(shards.of(0).set(1, {.weights = bytes(small), .slots = {}, .updates = 7}));
  std::vector<std::int64_t> updates;
  Values saved[2], saved_slot;
  auto view = shards.of(1).save([&](std::size_t piece, const PieceArrays& arrays) {
    const auto count = static_cast<std::size_t>(shards.of(1).pieces()[piece].elements());
    saved[piece].resize(count);
    std::memcpy(saved[piece].data(), arrays.weights, count * sizeof(double));
    updates.push_back(arrays.updates);
    if (piece != 0) return;
    saved_slot.resize(count);
    std::memcpy(saved_slot.data(), arrays.slots[0], count * sizeof(double));
  });
  EXPECT_EQ(Shards::first(std::move(view).take_or_throw()), 5);
  EXPECT_EQ(saved[0], weights);
  EXPECT_EQ(saved[1], small);
  EXPECT_EQ(saved_slot, slot);
  EXPECT_THAT(updates, testing::ElementsAre(41, 7));
}

TEST_P(Conformance, SetAndSaveHaveTheMeanSquareOfGradients) {
  Shards shards(GetParam(), Kind::kAsync, protocol::Compensation::kAdaptiveDelay);
  Values slot(static_cast<std::size_t>(kShardElements), 3), mean = slot;
  mean[5] = 8;
  const auto bytes = [](Values& values) { return reinterpret_cast<std::byte*>(values.data()); };
  throw_if_error(
      shards.of(0).set(0, {.slots = {bytes(slot)}, .mean_square = bytes(mean), .updates = 1}));
  (void)shards.read(0);
  (void)shards.push(0, 0, 2).take_or_throw();
  Values saved_slot, saved;
  (void)shards.of(1)
      .save([&](std::size_t piece, const PieceArrays& arrays) {
        if (piece != 0) return;
        const auto* s = reinterpret_cast<const double*>(arrays.slots[0]);
        const auto* m = reinterpret_cast<const double*>(arrays.mean_square);
        saved_slot.assign(s, s + kShardElements);
        saved.assign(m, m + kShardElements);
      })
      .take_or_throw();
  EXPECT_EQ(saved_slot[5], 0.5 * 3 + 2) << "momentum";
  EXPECT_DOUBLE_EQ(saved[4], 0.95 * 3 + 0.05 * 4);
  EXPECT_DOUBLE_EQ(saved[5], 0.95 * 8 + 0.05 * 4);
}

TEST_P(Conformance, ARepeatedPushIsNotUsedTwice) {
  Shards shards(GetParam(), Kind::kAsync);
  (void)shards.push(0, 0, 1).take_or_throw();
  EXPECT_EQ(shards.push(0, 0, 1).take_or_throw().decision.action, PushAction::kRepeated);
  EXPECT_EQ(shards.read(1), -1);
  EXPECT_EQ(shards.push(0, 2, 1).status().code(), Code::kInvalidArgument);
}

TEST_P(Conformance, SyncWaitsForAllAndKeepsTheDeadline) {
  Shards shards(GetParam(), Kind::kSync);
  for (int w = 0; w < 2; ++w) EXPECT_EQ(shards.read(w), 0);
  EXPECT_EQ(shards.push(0, 0, 1).take_or_throw().decision.action, PushAction::kAdd);
  const Status early = shards.of(0).read(Deadline::after(milliseconds(50))).status();
  EXPECT_EQ(early.code(), Code::kDeadlineExceeded);
  std::thread waits([&] { EXPECT_EQ(shards.read(0), -2); });
  EXPECT_EQ(shards.push(1, 0, 3).take_or_throw().decision.action, PushAction::kAddAndUpdate);
  waits.join();
}

TEST_P(Conformance, WhoHasLeftJoinsBeforeItPushes) {
  Shards shards(GetParam(), Kind::kSync);
  for (int w = 0; w < 2; ++w) (void)shards.read(w);
  (void)shards.push(0, 0, 1).take_or_throw();
  (void)shards.of(1).leave(0.5).take_or_throw();
  EXPECT_EQ(shards.read(0), -0.5) << "nobody waits for it";
  EXPECT_EQ(shards.of(1).read().status().code(), Code::kPeerLost);
  EXPECT_EQ(shards.push(1, 0, 1).status().code(), Code::kPeerLost);
  const auto joined = shards.of(1).join().take_or_throw();
  EXPECT_EQ(joined.sequence, 1u);
  EXPECT_EQ(shards.read(1), -0.5);
  EXPECT_EQ(shards.push(1, 1, 1).take_or_throw().decision.action, PushAction::kAdd);
}

TEST_P(Conformance, AnExchangeMovesBothSides) {
  Shards shards(GetParam(), Kind::kAsync);
  Values large(static_cast<std::size_t>(kShardElements), 8), small(7, 4);
  void* own[] = {large.data(), small.data()};
  const auto first = shards.of(0).elastic_average(own, 0.25, 0, Deadline::never()).take_or_throw();
  EXPECT_EQ(first.decision.action, PushAction::kUpdate);
  EXPECT_THAT(large, testing::Each(6));
  EXPECT_THAT(small, testing::Each(3));
  EXPECT_EQ(shards.read(1), 2);
  const auto again = shards.of(0).elastic_average(own, 0.25, 0, Deadline::never()).take_or_throw();
  EXPECT_EQ(again.decision.action, PushAction::kRepeated);
  EXPECT_THAT(large, testing::Each(6));
  (void)shards.of(0).elastic_average(own, 0.5, 1, Deadline::never()).take_or_throw();
  EXPECT_THAT(large, testing::Each(4));
  EXPECT_EQ(shards.read(1), 4);
}

TEST_P(Conformance, CallsThatWereBegunAreFinished) {
  Shards shards(GetParam(), Kind::kAsync);
  const Values ones(static_cast<std::size_t>(kShardElements), 1);
  const PushedPiece pieces[] = {{.array = ones.data()}, {}};
  for (std::uint64_t i = 0; i < 5; ++i) {
    const PushedGradient gradient{.pieces = pieces, .lr = 1, .sequence = i};
    for (int w = 0; w < 2; ++w) shards.of(w).begin_read(Deadline::never());
    for (int w = 0; w < 2; ++w) (void)shards.read(w);
    for (int w = 0; w < 2; ++w) shards.of(w).begin_push(gradient, Deadline::never());
    for (int w = 0; w < 2; ++w) {
      EXPECT_EQ(shards.of(w).push(gradient, Deadline::never()).take_or_throw().decision.action,
                PushAction::kUpdate);
    }
  }
  EXPECT_EQ(shards.of(0).state().take_or_throw().version, 10u);
}

bool is_remote(Location at) { return at == Location::kRemote || at == Location::kWithBackup; }

/// The weights of piece 1 are small: seven elements.
double second(const Shard::View& view) { return *reinterpret_cast<const double*>(view.pieces[1]); }

// Where nothing is sent before, the gradients that the push has count.
TEST_P(Conformance, APushTakesThePartsThatWereSentBefore) {
  Shards shards(GetParam(), Kind::kAsync);
  Shard& shard = shards.of(0);
  EXPECT_EQ(shard.is_remote(), is_remote(GetParam()));
  Values large(static_cast<std::size_t>(kShardElements), 1), small(7, 1);
  const PushedPiece pieces[] = {{.array = large.data(), .is_sent = true}, {.array = small.data()}};
  double v = 0, w = 0;
  for (std::uint64_t step = 0; step < 2; ++step) {
    const std::size_t first = 0;
    const double part = 1 + static_cast<double>(step);
    large.assign(large.size(), part);
    shard.begin_part({.pieces = pieces, .sequence = step}, std::span(&first, 1));
    (void)shard.state().take_or_throw();  // a reply comes after those to earlier requests
    large.assign(large.size(), 100);
    const PushedGradient gradient{.pieces = pieces, .lr = 1, .sequence = step};
    EXPECT_EQ(shard.push(gradient, Deadline::never()).take_or_throw().decision.action,
              PushAction::kUpdate);
    w -= v = 0.5 * v + (is_remote(GetParam()) ? part : 100);
    const auto view = shards.of(1).read().take_or_throw();
    EXPECT_EQ(Shards::first(view), w);
    EXPECT_EQ(second(view), step == 0 ? -1 : -2.5);
  }
}

// Of another push, or of one whose server knows nothing of it: then all of it is sent.
TEST_P(Conformance, PartsThatAreMissingAreSentAgain) {
  Shards shards(GetParam(), Kind::kAsync);
  Values large(static_cast<std::size_t>(kShardElements), 9), small(7, 1);
  const PushedPiece pieces[] = {{.array = large.data(), .is_sent = true},
                                {.array = small.data(), .is_sent = true}};
  const std::size_t both[] = {0, 1};
  shards.of(0).begin_part({.pieces = pieces, .sequence = 5}, both);
  (void)shards.of(0).state().take_or_throw();
  large.assign(large.size(), 2);
  const PushedGradient gradient{.pieces = pieces, .lr = 1, .sequence = 0};
  EXPECT_EQ(shards.of(0).push(gradient, Deadline::never()).take_or_throw().decision.action,
            PushAction::kUpdate);
  EXPECT_EQ(shards.read(1), -2);
}

TEST_P(Conformance, APieceIsReadWhenItHasArrived) {
  Shards shards(GetParam(), Kind::kAsync);
  (void)shards.push(1, 0, 3).take_or_throw();
  Shard& shard = shards.of(0);
  shard.begin_read(Deadline::never());
  const auto first = shard.arrival(0);
  if (!is_remote(GetParam())) {
    EXPECT_EQ(first.status().code(), Code::kInvalidArgument);
    return;
  }
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(*reinterpret_cast<const double*>(*first), -3);
  const std::byte* later = shard.arrival(1).take_or_throw();
  const auto view = shard.read().take_or_throw();
  EXPECT_EQ(view.pieces, (std::vector<const std::byte*>{*first, later}));
  EXPECT_EQ(Shards::first(view), -3);
}

/// Without a server there is no session; shared_ledger_test has that ledger.
class LedgerConformance : public testing::TestWithParam<Location> {};
INSTANTIATE_TEST_SUITE_P(All, LedgerConformance,
                         testing::Values(Location::kMapped, Location::kRemote,
                                         Location::kWithBackup),
                         name_of);

TEST_P(LedgerConformance, EveryStepIsDealtOnce) {
  Shards shards(GetParam(), Kind::kAsync);
  throw_if_error(shards.ledger(0).deal({.first_step = 2, .steps = 5, .first_sample = 60}));
  EXPECT_EQ(shards.ledger(1).terms().take_or_throw().first_sample, 60);
  for (std::uint64_t step = 2; step < 5; ++step) {
    for (int w = 0; w < 2; ++w) {
      const Ledger::Outcome outcome{.loss_sum = step > 2 ? 1.5 : 0, .samples = step > 2 ? 4 : 0};
      EXPECT_EQ(shards.ledger(w).next(outcome).take_or_throw().task,
                (StepTask{.part = w, .step = step}));
    }
  }
  std::thread waits([&] { EXPECT_TRUE(shards.ledger(1).wait(Deadline::after(kLong)).ok()); });
  const auto last = shards.ledger(0).next({.loss_sum = 1.5, .samples = 4}).take_or_throw();
  waits.join();
  EXPECT_EQ(last.task, std::nullopt);
  EXPECT_FALSE(last.all_done) << "the other has a task in hand";
  EXPECT_EQ(last.totals.samples, 20);
  EXPECT_EQ(last.others, 1);
  throw_if_error(shards.ledger(1).stop(15));
  EXPECT_EQ(shards.ledger(0).look().take_or_throw().stop_signal, 15);
  throw_if_error(shards.ledger(1).leave());
  EXPECT_EQ(shards.ledger(0).look().take_or_throw().others, 0);
}

}  // namespace
}  // namespace stormo::server
