#include <stormo/protocol/server/portions.h>

#include <chrono>
#include <vector>

#include <gtest/gtest.h>

namespace stormo::protocol {
namespace {

using std::chrono::milliseconds;

TimePoint at(Duration since) { return TimePoint(since); }

TEST(PortionState, IsOneWord) {
  for (const PortionState& state : {PortionState{}, PortionState{7, 0, -1},
                                    PortionState{0xffffffff, 65533, 1}, PortionState{3, 511, 0}}) {
    EXPECT_EQ(PortionState::unpack(state.pack()), state);
  }
  EXPECT_EQ(PortionState{}.pack(), 0u) << "memory that is zero is a portion of the first batch";
}

TEST(PortionState, IsTakenGivenUpAndDone) {
  PortionState state = taken({.batch = 4}, 2);
  EXPECT_EQ(state, (PortionState{4, 2, -1}));
  state = taken(state, 5);
  EXPECT_EQ(state, (PortionState{4, 2, 5}));
  EXPECT_EQ(given_up(state, 2), (PortionState{4, 5, -1}));
  EXPECT_EQ(given_up(state, 5), (PortionState{4, 2, -1}));
  EXPECT_EQ(given_up(state, 9), state);
  EXPECT_EQ(done(state), (PortionState{5, -1, -1}));
}

TEST(Portions, AFreeOneComesFirstAndCopiesOnlyOfThoseThatAreLate) {
  std::vector<PortionView> all = {{.state = {1, -1, -1}},
                                  {.state = {0, 3, -1}, .begun = at(milliseconds(10))},
                                  {.state = {0, 1, -1}, .begun = at(milliseconds(4))},
                                  {.state = {0, -1, -1}}};
  const auto choose = [&](int worker, Duration now, Duration usual = milliseconds(5)) {
    return choose_portion(all, 0, worker, at(now), usual);
  };
  EXPECT_EQ(choose(0, milliseconds(100)).portion, 3u);
  all[3].state = done(all[3].state);
  EXPECT_FALSE(choose(0, milliseconds(13)).portion) << "the oldest is late at 4 + 2 * 5 ms";
  EXPECT_EQ(choose(0, milliseconds(13)).again, at(milliseconds(14)));
  EXPECT_EQ(choose(0, milliseconds(14)).portion, 2u);
  EXPECT_EQ(choose(1, milliseconds(100)).portion, 1u) << "not its own";
  all[2].state = taken(all[2].state, 0);
  EXPECT_EQ(choose(4, milliseconds(100)).portion, 1u) << "two workers are enough";
  EXPECT_FALSE(choose(0, milliseconds(100), Duration::zero()).portion) << "nothing is known yet";
  all[1].state = done(all[1].state);
  EXPECT_FALSE(choose(4, milliseconds(100)).portion);
}

}  // namespace
}  // namespace stormo::protocol
