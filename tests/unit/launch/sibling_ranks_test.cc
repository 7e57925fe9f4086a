#include <stormo/launch/process/sibling_ranks.h>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <string_view>
#include <vector>

namespace stormo::launch {
namespace {

using namespace std::string_view_literals;

TEST(SiblingRanks, AVariableIsAWholeName) {
  constexpr std::string_view kAll = "A_RANK=7\0RANK=3\0RANKS=5\0EMPTY=\0"sv;
  EXPECT_EQ(variable_in(kAll, "RANK"), "3");
  EXPECT_EQ(variable_in(kAll, "EMPTY"), "");
  EXPECT_EQ(variable_in(kAll, "NONE"), "");
  EXPECT_EQ(variable_in("", "RANK"), "");
}

TEST(SiblingRanks, WithoutALauncherThisProcessIsRank0) {
  const std::vector<SiblingRank> ranks = sibling_ranks("none");
  ASSERT_EQ(ranks.size(), 1u);
  EXPECT_EQ(ranks[0].rank, 0);
  EXPECT_EQ(ranks[0].process, ::getpid());
  EXPECT_EQ(ranks[0].letter, 'R');
  EXPECT_GT(ranks[0].memory_bytes, 100'000u);
}

/// A child that has this environment, and waits to be killed.
pid_t start(const std::string& variable) {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    std::string text = variable;
    char program[] = "sleep", time[] = "600";
    char* const arguments[] = {program, time, nullptr};
    char* const environment[] = {text.data(), nullptr};
    ::execve("/bin/sleep", arguments, environment);
    ::_exit(127);
  }
  ::close(ends[1]);
  char none = 0;
  EXPECT_EQ(::read(ends[0], &none, 1), 0);  // closed by exec
  ::close(ends[0]);
  return child;
}

// Their launcher is the test; who looks is one more child of it.
TEST(SiblingRanks, AreTheChildrenOfOneLauncherThatHaveARank) {
  std::vector<pid_t> children;
  for (const char* variable : {"STORMO_RANK=12", "STORMO_RANK=3", "RANK=1", "STORMO_RANK=x"}) {
    children.push_back(start(variable));
  }
  ::kill(children[1], SIGSTOP);
  ASSERT_EQ(::waitpid(children[1], nullptr, WUNTRACED), children[1]);
  const pid_t looker = ::fork();
  if (looker == 0) {
    const std::vector<SiblingRank> ranks = sibling_ranks("stormo");
    const bool right = ranks.size() == 2 && ranks[0].rank == 3 && ranks[0].letter == 'T' &&
                       ranks[1].rank == 12 && ranks[1].process == children[0];
    ::_exit(right ? 0 : 1);
  }
  int outcome = -1;
  EXPECT_EQ(::waitpid(looker, &outcome, 0), looker);
  EXPECT_EQ(outcome, 0);
  for (const pid_t child : children) {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
}

}  // namespace
}  // namespace stormo::launch
