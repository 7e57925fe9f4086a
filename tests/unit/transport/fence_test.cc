// Who is kept out of whose memory, and how.
#include <stormo/transport/shm/fence.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <stormo/transport/shm/peer_process.h>

namespace stormo::transport {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::shared_ptr<HostRegion> region_of_two() {
  auto made = HostRegion::create(2);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return std::make_shared<HostRegion>(std::move(*made));
}

const auto kSilent = [](std::string_view) {};

/// Rank 1, a process that runs `body` and ends.
class Peer {
 public:
  explicit Peer(const std::shared_ptr<HostRegion>& region,
                const std::function<void(Fence&)>& body) {
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::alarm(60);
    Fence fence(region, 1, kSilent);
    body(fence);
    ::_exit(0);
  }
  ~Peer() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Peer(const Peer&) = delete;
  pid_t pid() const { return pid_; }
  /// Until it stops, or ends: the status of waitpid().
  int next_status() {
    int status = -1;
    EXPECT_EQ(::waitpid(pid_, &status, WUNTRACED), pid_);
    if (WIFEXITED(status) || WIFSIGNALED(status)) pid_ = 0;
    return status;
  }

 private:
  pid_t pid_ = 0;
};

class FenceOfTwo : public ::testing::Test {
 protected:
  void close() { fence_.close(); }
  void await_peer_inside() const {
    while (region_->cell(1).inside.load() == 0) std::this_thread::yield();
  }

  std::shared_ptr<HostRegion> region_ = region_of_two();
  std::vector<std::string> said_;
  std::atomic<bool> was_told_{false};
  Fence fence_{region_, 0,
               [this](std::string_view line) {
                 said_.emplace_back(line);
                 was_told_ = true;
               },
               300ms};
};

TEST_F(FenceOfTwo, NobodyEntersWhenItIsClosed) {
  Fence other(region_, 1, kSilent);
  EXPECT_TRUE(other.enter());
  other.leave();
  close();
  EXPECT_TRUE(other.is_closed());
  EXPECT_FALSE(other.enter());
  EXPECT_EQ(region_->cell(1).inside.load(), 0u);
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(FenceOfTwo, AProcessThatLeavesLives) {
  Fence patient(
      region_, 0, [this](std::string_view line) { said_.emplace_back(line); }, 60s);
  Peer peer(region_, [](Fence& fence) {
    fence.enter();
    while (!fence.is_closed()) std::this_thread::yield();
    fence.leave();
    for (;;) ::pause();
  });
  await_peer_inside();
  patient.close();
  EXPECT_EQ(::waitpid(peer.pid(), nullptr, WNOHANG), 0) << "it has left, and goes on";
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(FenceOfTwo, AStoppedProcessIsEndedAtOnce) {
  Peer peer(region_, [](Fence& fence) {
    fence.enter();
    ::raise(SIGSTOP);
  });
  EXPECT_TRUE(WIFSTOPPED(peer.next_status()));
  close();
  const int status = peer.next_status();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  EXPECT_THAT(said_, ElementsAre(HasSubstr("was stopped when the group failed: ended")));
}

/// It may use memory of its peers by addresses of its own.
TEST_F(FenceOfTwo, AStoppedProcessIsEndedOutsideToo) {
  Peer peer(region_, [](Fence&) { ::raise(SIGSTOP); });
  EXPECT_TRUE(WIFSTOPPED(peer.next_status()));
  close();
  const int status = peer.next_status();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

TEST_F(FenceOfTwo, AStoppedProcessIsWaitedForWhereThatIsWanted) {
  std::atomic<bool> is_told{false};
  Fence waits(
      region_, 0,
      [&](std::string_view line) {
        said_.emplace_back(line);
        is_told = true;
      },
      1s, OnStopped::kWait);
  for (const bool enters : {true, false}) {
    is_told = false;
    region_->closed().store(0);
    Peer peer(region_, [&](Fence& fence) {
      if (enters) fence.enter();
      ::raise(SIGSTOP);
      if (enters) fence.leave();
      for (;;) ::pause();
    });
    EXPECT_TRUE(WIFSTOPPED(peer.next_status()));
    std::thread debugger([&] {
      while (!is_told) std::this_thread::yield();
      ::poll(nullptr, 0, 1200);  // beyond all patience with one that runs
      ::kill(peer.pid(), SIGCONT);
    });
    waits.close();
    debugger.join();
    EXPECT_EQ(region_->cell(1).inside.load(), 0u);
    EXPECT_EQ(::waitpid(peer.pid(), nullptr, WNOHANG), 0) << "it lives";
  }
  const auto waiting = HasSubstr("is stopped, and the group has failed: waiting");
  EXPECT_THAT(said_, ElementsAre(waiting, waiting));
}

TEST_F(FenceOfTwo, AProcessThatDoesNotLeaveIsEnded) {
  Peer peer(region_, [](Fence& fence) {
    fence.enter();
    for (;;) ::pause();
  });
  await_peer_inside();
  close();
  const int status = peer.next_status();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  EXPECT_THAT(said_, ElementsAre(HasSubstr("did not leave its operation")));
}

TEST_F(FenceOfTwo, ADeadProcessIsNotWaitedFor) {
  Peer peer(region_, [](Fence& fence) {
    fence.enter();
    ::raise(SIGKILL);
  });
  EXPECT_TRUE(WIFSIGNALED(peer.next_status()));
  ASSERT_EQ(region_->cell(1).inside.load(), 1u) << "it died inside";
  close();
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(FenceOfTwo, AThreadIsWaitedForHoweverLongItTakes) {
  Fence other(region_, 1, kSilent);
  EXPECT_TRUE(other.enter());
  std::thread leaves_late([&] {
    while (!was_told_) std::this_thread::yield();  // beyond all patience
    other.leave();
  });
  close();
  EXPECT_EQ(region_->cell(1).inside.load(), 0u);
  leaves_late.join();
  EXPECT_THAT(said_, ElementsAre(HasSubstr("waiting for it")));
}

TEST_F(FenceOfTwo, OfAProcessThatCannotBeSignalledItIsSaidThatItMayStillWrite) {
  Peer peer(region_, [](Fence& fence) {
    fence.enter();
    for (;;) ::pause();
  });
  await_peer_inside();
  region_->cell(1).process.pid_namespace += 1;
  close();
  EXPECT_THAT(said_, ElementsAre(HasSubstr("may still write")));
  EXPECT_EQ(::kill(peer.pid(), 0), 0) << "lives";
}

TEST(PeerProcess, IsNeverAnotherOneOfThatNumber) {
  ProcessName name = ProcessName::own();
  EXPECT_EQ(name.pid, ::getpid());
  EXPECT_TRUE(PeerProcess(name).can_be_ended());
  EXPECT_FALSE(PeerProcess(name).is_gone());
  name.started -= 1;  // of an earlier process
  EXPECT_FALSE(PeerProcess(name).can_be_ended());
  EXPECT_TRUE(PeerProcess(name).is_gone());
  EXPECT_FALSE(PeerProcess(ProcessName{}).is_gone()) << "nothing is known";
}

}  // namespace
}  // namespace stormo::transport
