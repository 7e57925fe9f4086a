#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <functional>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

#include <stormo/protocol/supervisor.h>
#include <stormo/train/failure.h>
#include <stormo/train/loop/stop_signal.h>
#include <stormo/train/record/step_log.h>
#include <stormo/train/record/step_parts.h>
#include <stormo/train/step/lane_timer.h>
#include <stormo/train/world/thread_share.h>

namespace stormo::train {
namespace {

CpuShare on(int host, std::initializer_list<int> cpus) {
  CpuShare share{.host = host, .usable_cores = static_cast<std::int64_t>(cpus.size()), .bits = {}};
  for (const int cpu : cpus) share.set(cpu);
  return share;
}

TEST(ThreadShare, DividesCoresAmongTheRanksThatShareThem) {
  const CpuShare all = on(0, {0, 1, 2, 3, 64, 65, 700, 1023});
  for (const int ranks : {1, 2, 3, 8}) {
    const ThreadShare share = share_threads(std::vector(static_cast<std::size_t>(ranks), all), 0);
    EXPECT_EQ(share.threads, 8 / ranks);
    EXPECT_FALSE(share.oversubscribed);
  }
  const ThreadShare crowded = share_threads(std::vector(9, all), 0);
  EXPECT_EQ(crowded.threads, 1);
  EXPECT_TRUE(crowded.oversubscribed);
}

TEST(ThreadShare, BoundRanksKeepTheirOwnCores) {
  EXPECT_EQ(share_threads(std::vector{on(0, {0, 1}), on(0, {2, 3})}, 0).threads, 2);
}

TEST(ThreadShare, AllRanksGetTheLeast) {
  EXPECT_EQ(share_threads(std::vector{on(0, {0, 1, 2, 3}), on(1, {0, 1})}, 0).threads, 2);
}

TEST(ThreadShare, ARequestWins) {
  const ThreadShare share = share_threads(std::vector{on(0, {0, 1}), on(0, {0, 1})}, 4);
  EXPECT_EQ(share.threads, 4);
  EXPECT_TRUE(share.oversubscribed);
}

TEST(StopSignal, NotesTheFirstSignalWhileItLives) {
  struct sigaction before {};
  sigaction(SIGTERM, nullptr, &before);
  {
    const StopSignal stop;
    const StopSignal nested;
    EXPECT_EQ(StopSignal::received(), 0);
    std::raise(SIGTERM);
    std::raise(SIGINT);
    EXPECT_EQ(StopSignal::received(), SIGTERM);
  }
  struct sigaction after {};
  sigaction(SIGTERM, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
  const StopSignal again;
  EXPECT_EQ(StopSignal::received(), 0);
}

TEST(StopSignal, NoticesOfSchedulersAreNotedBeforeThereIsARun) {
  struct sigaction before {
  }, while_alive{};
  sigaction(SIGTERM, nullptr, &before);
  const StopSignal early(StopSignal::Scope::kNotices);
  sigaction(SIGTERM, nullptr, &while_alive);
  EXPECT_EQ(before.sa_handler, while_alive.sa_handler) << "the user's signals end it as before";
  std::raise(SIGXCPU);
  std::raise(SIGUSR1);
  {
    const StopSignal run;
    EXPECT_EQ(StopSignal::received(), SIGXCPU) << "still known";
  }
  EXPECT_TRUE(StopSignal::take_usr1());
  EXPECT_FALSE(StopSignal::take_usr1()) << "taken once";
}

TEST(StopSignal, SigtermOfOthersThanTheLauncherAsksAMemberToLeave) {
  using Leave = StopSignal::Leave;
  {
    const StopSignal run;
    std::raise(SIGTERM);
    EXPECT_EQ(StopSignal::asked_to_leave(), Leave::kNotAsked) << "it is no member";
  }
  const StopSignal member(StopSignal::Scope::kMember);
  const StopSignal run;
  std::raise(SIGTERM);
  EXPECT_EQ(StopSignal::asked_to_leave(), Leave::kByOthers);
  EXPECT_EQ(StopSignal::received(), 0);
  std::raise(SIGINT);
  EXPECT_EQ(StopSignal::received(), SIGINT) << "for all, whoever has sent it";
}

/// What a child process finds out of the signals that `send`, in its parent, sends to it.
int seen_by_child(const std::function<void(pid_t)>& send) {
  std::array<int, 2> ready{};
  EXPECT_EQ(::pipe(ready.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const StopSignal member(StopSignal::Scope::kMember);
    [[maybe_unused]] const ssize_t n = ::write(ready[1], "x", 1);
    while (StopSignal::received() == 0 &&
           StopSignal::asked_to_leave() == StopSignal::Leave::kNotAsked)
      ::poll(nullptr, 0, 1);
    ::_exit(StopSignal::received() != 0 ? 100 : static_cast<int>(StopSignal::asked_to_leave()));
  }
  char x = 0;
  EXPECT_EQ(::read(ready[0], &x, 1), 1);
  send(child);
  int status = 0;
  ::waitpid(child, &status, 0);
  for (const int fd : ready) ::close(fd);
  return WEXITSTATUS(status);
}

TEST(StopSignal, SigtermOfTheLauncherIsForAllUnlessItIsMarked) {
  EXPECT_EQ(seen_by_child([](pid_t child) { ::kill(child, SIGTERM); }), 100);
  EXPECT_EQ(seen_by_child([](pid_t child) {
              ::sigqueue(child, SIGTERM, {.sival_int = protocol::kLeaveMark});
            }),
            static_cast<int>(StopSignal::Leave::kByLauncher));
}

TEST(StopSignal, WithoutTheLauncherSigtermIsForAll) {
  std::array<int, 2> seen{};
  ASSERT_EQ(::pipe(seen.data()), 0);
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    const pid_t parent = ::getpid();
    if (::fork() != 0) ::pause();
    const StopSignal member(StopSignal::Scope::kMember);
    ::kill(parent, SIGKILL);
    while (::getppid() == parent) ::poll(nullptr, 0, 1);
    std::raise(SIGTERM);
    const int received = StopSignal::received();
    [[maybe_unused]] const ssize_t n = ::write(seen[1], &received, sizeof received);
    ::_exit(0);
  }
  ::close(seen[1]);
  int received = 0;
  EXPECT_EQ(::read(seen[0], &received, sizeof received), static_cast<ssize_t>(sizeof received));
  EXPECT_EQ(received, SIGTERM);
  ::waitpid(launcher, nullptr, 0);
  ::close(seen[0]);
}

TEST(Failure, NamesTypeAndText) {
  const auto describe = [](const auto& exception) {
    try {
      throw exception;
    } catch (...) {
      return failure_of_current_exception();
    }
  };
  EXPECT_EQ(describe(std::runtime_error("boom")).to_string(),
            "exception: std::runtime_error: boom");
  EXPECT_EQ(describe(Error(invalid_argument("no"))), invalid_argument("no"));
  EXPECT_EQ(describe(7).to_string(), "exception: int");
}

class LastEvent final : public Sink {
 public:
  void record(const Event& event) override {
    rank = event.rank;
    step = event.step;
    ++count;
  }
  Rank rank = -1;
  std::int64_t step = -2;
  int count = 0;
};

// Some lanes do several things at once, and a share above 100 % means nothing.
TEST(LaneTimer, MeasuresForHowLongALaneIsBusyAndNamesRankAndStep) {
  LastEvent sink;
  LaneTimer timer(3);
  timer.pass_to(&sink);
  timer.set_step(7);
  const TimePoint zero{};
  const auto record = [&](int start, int end) {
    timer.record({.lane = Lane::kWait,
                  .start = zero + std::chrono::seconds(start),
                  .end = zero + std::chrono::seconds(end)});
  };
  record(2, 4);
  record(3, 5);    // overlaps
  record(8, 9);    // apart
  record(1, 3);    // late
  record(10, 12);  // apart
  record(7, 11);   // around
  { const Interval interval(timer, Lane::kData, "load"); }
  EXPECT_EQ(sink.count, 7);
  EXPECT_EQ(sink.rank, 3);
  EXPECT_EQ(sink.step, 7);
  EXPECT_DOUBLE_EQ(timer.take()[static_cast<std::size_t>(Lane::kWait)], 9.0);  // 1..5, 7..12
  EXPECT_DOUBLE_EQ(timer.take()[static_cast<std::size_t>(Lane::kWait)], 0.0);
  record(0, 1);  // before the last take()
  EXPECT_DOUBLE_EQ(timer.take()[static_cast<std::size_t>(Lane::kWait)], 0.0);
}

TEST(StepParts, CollectivesInsideOfAComputationDoNotCount) {
  LastEvent sink;
  StepParts parts(&sink);
  const auto record = [&](Lane lane, const char* name, int start, int end) {
    const TimePoint zero{};
    parts.record({.lane = lane,
                  .name = name,
                  .start = zero + std::chrono::seconds(start),
                  .end = zero + std::chrono::seconds(end)});
  };
  record(Lane::kData, "load", 0, 3);
  record(Lane::kWait, "all_reduce", 3, 5);  // between computations
  record(Lane::kWait, "all_reduce", 6, 8);
  record(Lane::kCommunication, "all_reduce", 8, 9);
  record(Lane::kCompute, "forward", 5, 15);  // around the last two
  record(Lane::kCommunication, "recv", 17, 18);
  record(Lane::kWait, "move_gradient", 16, 19);  // around the receive
  record(Lane::kCompute, "backward", 15, 25);
  record(Lane::kCompute, "update", 25, 27);
  record(Lane::kCompute, "evaluate", 27, 99);
  std::thread([&] { record(Lane::kCompute, "of another thread", 0, 50); }).join();
  EXPECT_EQ(sink.count, 11);
  using protocol::PartSeconds;
  EXPECT_EQ(parts.take(), (PartSeconds{7 + 7, 3, 0, 2}));  // compute, data, link, optimizer
  EXPECT_EQ(parts.take(), PartSeconds{});
}

TEST(RecentLoss, IsTheMeanOverTheSamplesOfTheLastSteps) {
  RecentLoss loss(3);
  EXPECT_EQ(loss.steps(), 0);
  loss.add(100, 1);
  loss.add(8, 4);
  EXPECT_DOUBLE_EQ(loss.mean(), 108.0 / 5);
  loss.add(3, 2);
  loss.add(2, 4);  // the first one has left
  EXPECT_EQ(loss.steps(), 3);
  EXPECT_DOUBLE_EQ(loss.mean(), 1.3);
}

}  // namespace
}  // namespace stormo::train
