#include <gmock/gmock.h>
#include <stormo/base/proc.h>
#include <stormo/base/temporary_folder.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace stormo {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Proc, TellsTheStateOfThisProcess) {
  const auto state = process_state("/proc/self");
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ(state->letter, 'R');  // it reads
  EXPECT_EQ(state->parent, ::getppid());
  EXPECT_GT(state->started, 0u);
}

TEST(Proc, ANameMayHoldAnything) {
  const TemporaryFolder folder = TemporaryFolder::create("proc").take_or_throw();
  std::ofstream(folder.path() / "stat")
      << "7 (a) Z\n) 9 () T 12 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 4711 20\n";
  const auto state = process_state(folder.path());
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ(state->letter, 'T');
  EXPECT_EQ(state->parent, 12);
  EXPECT_EQ(state->started, 4711u);
}

TEST(Proc, NoStateOfAProcessThatIsGone) { EXPECT_FALSE(process_state("/proc/none").has_value()); }

TEST(Proc, ListsNumbersInOrder) {
  const TemporaryFolder folder = TemporaryFolder::create("proc").take_or_throw();
  for (const char* name : {"12", "3", "x", "4x", "100"}) std::ofstream(folder.path() / name) << "";
  EXPECT_THAT(numbers_in(folder.path()), ElementsAre(3, 12, 100));
  EXPECT_THAT(numbers_in("/proc/self/task"), Contains(::getpid()));
  EXPECT_THAT(numbers_in(folder.path() / "none"), IsEmpty());
}

}  // namespace
}  // namespace stormo
