// Workers as processes that are killed and stopped at any moment.
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <memory>
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

using std::chrono::milliseconds;
using Kind = protocol::PolicyOptions::Kind;

constexpr std::int64_t kElements = 100'000;
constexpr int kWorkers = 4;

/// What workers do: push gradients, push rows, or exchange values of their own.
enum class Work { kPush, kPushRows, kExchange };

/// A shard in a memory file, which children of fork() share.
class Job {
 public:
  explicit Job(Kind policy, Work work = Work::kPush)
      : work_(work),
        memory_(transport::MemoryFile::create("shard", std::uint64_t{1} << 27).take_or_throw()),
        policy_(protocol::make_policy({.kind = policy, .n = 2, .backups = 1}, kWorkers)
                    .take_or_throw()),
        shard_(make(0)) {
    shard_->create(memory_.data());
  }
  ~Job() {
    for (const pid_t pid : children_) ::kill(pid, SIGKILL);
    for (const pid_t pid : children_) ::waitpid(pid, nullptr, 0);
  }

  SharedShard& shard() { return *shard_; }
  pid_t child(int worker) const { return children_[static_cast<std::size_t>(worker)]; }

  void start_all(int count = kWorkers) {
    for (int w = 0; w < count; ++w) {
      const pid_t pid = ::fork();
      if (pid == 0) work(w);
      children_.push_back(pid);
    }
  }
  void kill(int worker) {
    ::kill(child(worker), SIGKILL);
    int status = 0;
    ::waitpid(child(worker), &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status)) << "worker " << worker << " ended with " << status;
    const auto dead = make(worker);
    dead->attach(memory_.data());
    dead->release_copies(worker);
    (void)dead->evict(worker).take_or_throw();
  }

  /// Momentum 0.5 and gradients of 1: value and state of every element follow from the version. An
  /// average of ones is 1, and there are no updates.
  void expect_whole() {
    const protocol::ShardState state = shard_->current_state();
    const std::uint64_t updates = policy_->replaces() ? 0 : state.version;
    double v = 0, w = policy_->replaces() ? 1 : 0;
    for (std::uint64_t i = 0; i < updates; ++i) w -= v = 0.5 * v + 1;
    const PieceArrays arrays = shard_->values(0);
    const auto all_are = [](const std::byte* array, double value) {
      const auto* x = reinterpret_cast<const double*>(array);
      return std::all_of(x, x + kElements, [value](double e) { return e == value; });
    };
    EXPECT_TRUE(all_are(arrays.weights, w)) << "version " << state.version;
    EXPECT_TRUE(all_are(arrays.slots[0], v)) << "version " << state.version;
    EXPECT_EQ(arrays.updates, static_cast<std::int64_t>(updates));
  }

  /// Each exchange is of values that are the same everywhere, and of no other exchange: so the
  /// centre is the same everywhere, too.
  void expect_whole_centre() {
    const auto* c = reinterpret_cast<const double*>(shard_->values(0).weights);
    EXPECT_TRUE(std::all_of(c, c + kElements, [c](double e) { return e == c[0]; }))
        << "version " << version();
  }

  void expect_whole_rows() {
    EXPECT_TRUE(RowClasses::is_whole(shard_->values(0).weights, version()))
        << "version " << version();
  }

  std::uint64_t version() { return shard_->current_state().version; }
  /// Waits until the version has grown by `updates`; false when it does not.
  bool grows_by(std::uint64_t updates) {
    const Deadline end = Deadline::after(std::chrono::seconds(60));
    const std::uint64_t target = version() + updates;
    while (version() < target && !end.expired()) ::poll(nullptr, 0, 1);
    return version() >= target;
  }

 private:
  std::unique_ptr<SharedShard> make(int worker) {
    const bool has_rows = work_ == Work::kPushRows;
    const std::vector<ShardPiece> elements = {
        {.parameter = 0, .begin = 0, .end = kElements, .dtype = DType::kFloat64}};
    return std::make_unique<SharedShard>(
        has_rows ? RowClasses::pieces() : elements,
        ShardOptions{
            .workers = kWorkers, .optimizer = {.momentum = has_rows ? 0 : 0.5}, .policy = policy_},
        worker,
        ShardWait{.policy = transport::wait_policy(kWorkers, 1), .patience = milliseconds(100)});
  }

  [[noreturn]] void work(int worker) {
    switch (work_) {
      case Work::kPush: train(worker);
      case Work::kPushRows: train_rows(worker);
      case Work::kExchange: draw(worker);
    }
    ::_exit(1);
  }

  // A worker process: reads and pushes until it is killed. Ends with 3 when it sees a torn version.
  [[noreturn]] void train(int worker) {
    const auto mine = make(worker);
    mine->attach(memory_.data());
    const std::vector<double> gradient(static_cast<std::size_t>(kElements), 1);
    const PushedPiece pieces[] = {{.array = gradient.data()}};
    for (std::uint64_t sequence = 0;; ++sequence) {
      const auto view = mine->read();
      if (!view.ok()) ::_exit(1);
      const auto* w = reinterpret_cast<const double*>(view->pieces[0]);
      if (!std::all_of(w, w + kElements, [w](double e) { return e == w[0]; })) ::_exit(3);
      if (!mine->push({.pieces = pieces, .lr = 1, .sequence = sequence}).ok()) ::_exit(2);
    }
  }

  // The same with rows of random classes.
  [[noreturn]] void train_rows(int worker) {
    const auto mine = make(worker);
    mine->attach(memory_.data());
    const RowClasses classes;
    Rng rng(static_cast<std::uint64_t>(worker), "rows");
    for (std::uint64_t sequence = 0;; ++sequence) {
      const auto view = mine->read();
      if (!view.ok()) ::_exit(1);
      if (!RowClasses::is_whole(view->pieces[0], view->version)) ::_exit(3);
      if (!classes.push(*mine, sequence, rng.below(RowClasses::kClasses)).ok()) ::_exit(2);
    }
  }

  // Exchanges until it is killed. Ends with 3 when its own values are torn.
  [[noreturn]] void draw(int worker) {
    const auto mine = make(worker);
    mine->attach(memory_.data());
    std::vector<double> x(static_cast<std::size_t>(kElements));
    void* pieces[] = {x.data()};
    Rng rng(static_cast<std::uint64_t>(worker), "values");
    for (std::uint64_t sequence = 0;; ++sequence) {
      std::ranges::fill(x, rng.uniform());
      if (!mine->elastic_average(pieces, 0.5, sequence).ok()) ::_exit(2);
      if (!std::ranges::all_of(x, [&x](double e) { return e == x[0]; })) ::_exit(3);
    }
  }

  Work work_;
  transport::MemoryFile memory_;
  std::shared_ptr<const protocol::Policy> policy_;
  std::unique_ptr<SharedShard> shard_;
  std::vector<pid_t> children_;
};

/// Computes for a time, so that what follows comes at any moment of the workers.
void spend(Duration time) {
  for (const Deadline end = Deadline::after(time); !end.expired();) std::this_thread::yield();
}

class Faults : public testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(All, Faults,
                         testing::Values(Kind::kSync, Kind::kAsync, Kind::kSsp, Kind::kNSoftsync,
                                         Kind::kBackupWorkers, Kind::kAverage),
                         [](const auto& test) {
                           return std::string(
                               protocol::policy_names()[static_cast<std::size_t>(test.param)]);
                         });

TEST_P(Faults, KilledWorkersLeaveNoHalfMadeUpdate) {
  for (std::uint64_t round = 0; round < 5; ++round) {
    Job job(GetParam());
    job.start_all();
    Rng rng(round, "kills");
    for (const int w : {0, 2, 3}) {
      EXPECT_TRUE(job.grows_by(3));
      spend(std::chrono::microseconds(rng.below(5000)));
      job.kill(w);
    }
    EXPECT_TRUE(job.grows_by(3));
    job.kill(1);
    job.expect_whole();
  }
}

TEST(ExchangeFaults, KilledWorkersLeaveTheCentreWhole) {
  for (std::uint64_t round = 0; round < 10; ++round) {
    Job job(Kind::kAsync, Work::kExchange);
    job.start_all();
    Rng rng(round, "kills");
    for (const int w : {0, 2, 3}) {
      EXPECT_TRUE(job.grows_by(3));
      spend(std::chrono::microseconds(rng.below(3000)));
      job.kill(w);
    }
    EXPECT_TRUE(job.grows_by(3));
    job.kill(1);
    job.expect_whole_centre();
  }
}

// Others would smooth out what is torn.
TEST(ExchangeFaults, AWorkerThatIsAloneLeavesTheCentreWhole) {
  for (std::uint64_t round = 0; round < 60; ++round) {
    Job job(Kind::kAsync, Work::kExchange);
    job.start_all(/*count=*/1);
    EXPECT_TRUE(job.grows_by(2));
    spend(std::chrono::microseconds(Rng(round, "kills").below(1000)));
    job.kill(0);
    job.expect_whole_centre();
  }
}

// Copies that they leave are used again, and only in parts.
TEST(RowFaults, KilledAndStoppedWorkersLeaveWholeVersions) {
  for (std::uint64_t round = 0; round < 8; ++round) {
    Job job(Kind::kAsync, Work::kPushRows);
    job.start_all();
    Rng rng(round, "kills");
    for (const int w : {0, 2, 3}) {
      EXPECT_TRUE(job.grows_by(20));
      spend(std::chrono::microseconds(rng.below(1000)));
      ::kill(job.child(1), SIGSTOP);
      EXPECT_TRUE(job.grows_by(5));
      ::kill(job.child(1), SIGCONT);
      job.kill(w);
    }
    EXPECT_TRUE(job.grows_by(20));
    job.kill(1);
    job.expect_whole_rows();
  }
}

// A worker that is stopped in the middle of a push loses its lease; continued, it does no harm.
TEST_P(Faults, AStoppedWorkerDoesNotStopTheOthers) {
  const bool waits =
      GetParam() == Kind::kSync || GetParam() == Kind::kSsp || GetParam() == Kind::kAverage;
  Job job(GetParam());
  job.start_all();
  Rng rng(7, "stops");
  for (int round = 0; round < 12; ++round) {
    EXPECT_TRUE(job.grows_by(3));
    spend(std::chrono::microseconds(rng.below(3000)));
    ::kill(job.child(round % kWorkers), SIGSTOP);
    if (!waits) {
      EXPECT_TRUE(job.grows_by(5));
    }
    ::kill(job.child(round % kWorkers), SIGCONT);
  }
  EXPECT_TRUE(job.grows_by(20));
  for (int w = 0; w < kWorkers; ++w) job.kill(w);
  job.expect_whole();
}

}  // namespace
}  // namespace stormo::server
