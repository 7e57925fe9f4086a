// The clocks of hosts that differ, read through messages.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include <cli/train/host_clocks.h>

#include "tests/unit/comm/ranks.h"

namespace stormo::cli {
namespace {

using namespace std::chrono_literals;

/// Of a host, ahead of the real one.
class ClockAhead final : public Clock {
 public:
  explicit ClockAhead(Duration by) : by_(by) {}
  TimePoint now() const override { return real_.now() + by_; }

 private:
  RealClock real_;
  Duration by_;
};

/// By rank, of hosts with these ranks, what each reads where the clocks are so much ahead.
std::vector<observe::ClockReading> read(const std::vector<int>& ranks_per_host,
                                        const std::vector<Duration>& ahead) {
  std::vector<observe::ClockReading> out(8);
  comm::on_group(
      comm::make_hosts(ranks_per_host),
      [&](comm::Communicator& world) {
        const ClockAhead clock(ahead[static_cast<std::size_t>(world.cross_rank())]);
        out[static_cast<std::size_t>(world.rank())] =
            read_clock_of_rank_0(world, clock).take_or_throw();
      },
      true);
  return out;
}

TEST(HostClocks, AreReadWithinATenthOfAMillisecond) {
  const std::vector<Duration> ahead = {1s, 6s, -4s};
  std::int64_t largest = 0;
  for (int attempt = 0; attempt < 5; ++attempt) {  // other work on this machine delays all messages
    const auto readings = read({2, 1, 2}, ahead);
    EXPECT_EQ(readings[0].offset_ns, 0);
    EXPECT_EQ(readings[1].offset_ns, 0);
    EXPECT_EQ(readings[3].offset_ns, readings[4].offset_ns);  // one host
    const std::int64_t second = readings[2].offset_ns + Duration(5s).count(),
                       third = readings[3].offset_ns - Duration(5s).count();
    largest = std::max(std::abs(second), std::abs(third));
    if (largest < Duration(100us).count()) return;
  }
  ADD_FAILURE() << largest << " ns";
}

TEST(HostClocks, NeedNoMessagesOnOneHost) {
  const auto readings = read({3}, {7s});
  for (const int rank : {0, 1, 2}) EXPECT_EQ(readings[static_cast<std::size_t>(rank)].offset_ns, 0);
}

}  // namespace
}  // namespace stormo::cli
