// Whether a process runs, seen from another one.
#include <gtest/gtest.h>
#include <stormo/transport/store/peer_activity.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>

namespace stormo::transport {
namespace {

/// A process that computes, or sleeps.
class Child {
 public:
  explicit Child(bool computes) : pid_(::fork()) {
    if (pid_ != 0) return;
    for (std::atomic<int> n{0};; ++n)
      if (!computes) ::pause();
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  void stop() const {
    ::kill(pid_, SIGSTOP);
    siginfo_t info{};
    ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED), 0);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

TEST(PeerActivity, WhoComputesOrWaitsForACoreRuns) {
  const Child child(/*computes=*/true);
  PeerActivity activity(child.pid());
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(activity.ran()) << i;
}

TEST(PeerActivity, WhoIsStoppedDoesNot) {
  const Child child(/*computes=*/true);
  child.stop();
  EXPECT_FALSE(PeerActivity(child.pid()).ran()) << "at the first look";
}

TEST(PeerActivity, WhoSleepsDoesNotAfterAWhile) {
  const Child child(/*computes=*/false);
  PeerActivity activity(child.pid());
  int looks = 1;
  while (activity.ran()) ASSERT_LT(++looks, 1'000'000);
  EXPECT_FALSE(activity.ran());
}

TEST(PeerActivity, OfOthersNothingIsKnown) {
  EXPECT_FALSE(PeerActivity(0).ran());
  EXPECT_FALSE(PeerActivity::of_socket(STDIN_FILENO).ran()) << "no socket";
}

}  // namespace
}  // namespace stormo::transport
