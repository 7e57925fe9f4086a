// Copies of a loaded program: they are as processes that were started by themselves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <iterator>
#include <string>

#include <stormo/base/temporary_folder.h>
#include <stormo/launch/process/fork_server.h>
#include <stormo/launch/process/signals.h>

#include "tests/built.h"

namespace stormo::launch {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string read_line(int fd) {
  std::string out;
  for (char c = 0; !out.ends_with('\n') && ::read(fd, &c, 1) == 1;) out += c;
  return out;
}

/// The server, where there is no other child.
pid_t child_of_this_process() {
  const std::string self = std::to_string(::getpid());
  return std::stoi(read_file("/proc/self/task/" + self + "/children"));
}

class ForkServerTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0); }

  std::string loaded() const { return folder_.path() / "loaded"; }
  Child program(std::vector<std::string> environment = {"NAME=server"}) const {
    return {.file = testing::built("fork_worker"),
            .argv = {"worker", loaded()},
            .environment = std::move(environment),
            .group = ::getpgrp(),
            .cpus = {}};
  }
  /// Waits for the end of a child.
  static int status_of(pid_t pid) {
    int status = 0;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    forget_child(pid);
    return status;
  }

 private:
  TemporaryFolder folder_ = TemporaryFolder::create("fork-server").take_or_throw();
};

TEST_F(ForkServerTest, CopiesOfOneLoadedProgramGetWhatTheyWereGiven) {
  auto server = ForkServer::start(program()).take_or_throw();
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = 500;  // since the start of the server
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &files), 0);
  for (int i = 0; i < 3; ++i) {
    Pipe secret = make_pipe().take_or_throw();  // the first gets the number of the server's socket
    Pipe out = make_pipe().take_or_throw();
    ASSERT_EQ(::write(secret.write.get(), "key", 3), 3);
    secret.write.reset();
    Child child;
    const std::string name = "rank" + std::to_string(i);
    child.argv = {"worker", "", name};
    child.environment = {"NAME=" + name, "SECRET_FD=" + std::to_string(secret.read.get()),
                         "WHAT=" + std::to_string(i)};
    child.output = out.write.get();
    child.inherited = secret.read.get();
    child.group = i == 0 ? 0 : ::getpgrp();
    child.cpus = {read_cpus().cores.front().front()};
    const pid_t pid = server->spawn(child).take_or_throw();
    out.write.reset();
    EXPECT_TRUE(is_started_child(pid));
    const int group = i == 0 ? pid : ::getpgrp();
    EXPECT_EQ(read_line(out.read.get()), "2 arguments, last " + name + ", name " + name +
                                             ", server none, secret key, input '', group " +
                                             std::to_string(group) + ", cpus 1, files 500\n");
    EXPECT_EQ(WEXITSTATUS(status_of(pid)), i);
  }
  EXPECT_EQ(read_file(loaded()), ".") << "it was loaded more than once";
}

// The mark of a job, and a rank's number for whoever looks at it with ps.
TEST_F(ForkServerTest, ProcShowsTheEnvironmentOfTheCopy) {
  auto server = ForkServer::start(program({"NAME=server", "JOB=a"})).take_or_throw();
  for (const bool fits : {true, false}) {
    Child child;
    child.argv = {"worker", "x"};
    child.environment = {"NAME=rank", "JOB=a", "WHAT=wait",
                         "FILLER=" + std::string(fits ? 1000 : 100'000, 'x')};
    Pipe out = make_pipe().take_or_throw();
    child.output = out.write.get();
    const pid_t pid = server->spawn(child).take_or_throw();
    EXPECT_THAT(read_line(out.read.get()), HasSubstr(" name rank,")) << "it lacks variables";
    const std::string shown = read_file("/proc/" + std::to_string(pid) + "/environ");
    EXPECT_THAT(shown, HasSubstr(std::string("JOB=a\0", 6)));
    if (fits) {
      EXPECT_THAT(shown, StartsWith(std::string("NAME=rank\0JOB=a\0WHAT=wait\0", 26)));
    }
    ::kill(pid, SIGKILL);
    EXPECT_EQ(WTERMSIG(status_of(pid)), SIGKILL);
  }
}

TEST_F(ForkServerTest, CopiesOutliveTheServerButNotTheLauncher) {
  Pipe pids = make_pipe().take_or_throw();
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    auto server = ForkServer::start(program()).take_or_throw();
    Child child;
    child.argv = {"worker", "x"};
    child.environment = {"WHAT=wait"};
    const pid_t pid = server->spawn(child).take_or_throw();
    server->end();
    const bool lives = ::waitpid(pid, nullptr, WNOHANG) == 0;
    const pid_t told = lives ? pid : 0;
    [[maybe_unused]] const ssize_t n = ::write(pids.write.get(), &told, sizeof told);
    ::_exit(0);
  }
  pid_t copy = 0;
  ASSERT_EQ(::read(pids.read.get(), &copy, sizeof copy), static_cast<ssize_t>(sizeof copy));
  EXPECT_GT(copy, 0) << "it ended with the server";
  EXPECT_EQ(WEXITSTATUS(status_of(launcher)), 0);
  EXPECT_EQ(WTERMSIG(status_of(copy)), SIGKILL);  // this process has adopted it
}

// It would wait for ever, and a launcher reads signals only between its waits.
TEST_F(ForkServerTest, WhoWaitsForAStoppedServerHearsSignals) {
  auto server = ForkServer::start(program()).take_or_throw();
  const pid_t pid = child_of_this_process();
  ASSERT_EQ(::kill(pid, SIGSTOP), 0);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(pid), &info, WSTOPPED), 0);
  for (const std::size_t bytes : {0u, 8u << 20}) {  // which no socket takes at once
    const auto signals = SignalReader::create().take_or_throw();
    Child child;
    child.argv = {"worker", "x"};
    child.environment = {"FILLER=" + std::string(bytes, 'x')};
    ASSERT_EQ(::raise(SIGTERM), 0);
    const auto spawned = server->spawn(child);
    EXPECT_EQ(spawned.status().code(), Code::kInterrupted) << spawned.status().message();
    EXPECT_EQ(signals->next(), SIGTERM) << "it was taken away from whom it is for";
  }
}

TEST_F(ForkServerTest, SaysWhatFailed) {
  const auto dead = ForkServer::start(program({"WHAT=die"}));
  ASSERT_FALSE(dead.ok());
  EXPECT_THAT(dead.status().message(), HasSubstr("ended while it was loaded"));
  auto server = ForkServer::start(program()).take_or_throw();
  Child child;
  child.argv = {"worker", "x"};
  child.group = 1;  // of another session
  const auto refused = server->spawn(child);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("setpgid"));
  child.group = ::getpgrp();
  ::kill(child_of_this_process(), SIGTERM);  // as for all of its group: the launcher decides
  child.environment = {"WHAT=7"};
  EXPECT_EQ(WEXITSTATUS(status_of(server->spawn(child).take_or_throw())), 7);
  server->end();
  const auto late = server->spawn(child);
  ASSERT_FALSE(late.ok());
  EXPECT_THAT(late.status().message(),
              HasSubstr("ended while it was forked, or the one that forks"));
}

}  // namespace
}  // namespace stormo::launch
