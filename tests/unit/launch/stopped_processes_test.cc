// Which processes stay stopped.
#include <stormo/launch/process/stopped_processes.h>

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include <gtest/gtest.h>

namespace stormo::launch {
namespace {

/// A child that waits for signals.
class Child {
 public:
  Child() : pid_(::fork()) {
    while (pid_ == 0) ::pause();
  }
  ~Child() {
    send(SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  pid_t pid() const { return pid_; }
  void send(int signal) const { ::kill(pid_, signal); }
  void stop() const {
    send(SIGSTOP);
    ::waitpid(pid_, nullptr, WUNTRACED);
  }
  void go_on() const {
    send(SIGCONT);
    ::waitpid(pid_, nullptr, WCONTINUED);
  }

 private:
  pid_t pid_;
};

TEST(StoppedProcesses, CountLooksInARow) {
  const Child child;
  StoppedProcesses stopped(2 * StoppedProcesses::kInterval);
  EXPECT_FALSE(is_stopped(child.pid()));
  EXPECT_FALSE(stopped.is_stopped_too_long(child.pid()));
  child.stop();
  EXPECT_TRUE(is_stopped(child.pid()));
  EXPECT_FALSE(stopped.is_stopped_too_long(child.pid()));
  EXPECT_FALSE(stopped.is_stopped_too_long(child.pid()));
  child.go_on();
  EXPECT_FALSE(stopped.is_stopped_too_long(child.pid())) << "it begins again";
  child.stop();
  EXPECT_FALSE(stopped.is_stopped_too_long(child.pid()));
  EXPECT_FALSE(stopped.is_stopped_too_long(child.pid()));
  EXPECT_TRUE(stopped.is_stopped_too_long(child.pid()));
}

TEST(StoppedProcesses, AProcessThatIsNotThereIsNotStopped) { EXPECT_FALSE(is_stopped(1 << 30)); }

}  // namespace
}  // namespace stormo::launch
