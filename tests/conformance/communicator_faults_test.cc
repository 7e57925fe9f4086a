// Links between hosts that are late, cut, damaged or out of order, under every operation: late ones
// change nothing, all others become one first cause for every rank, in time, and never wrong data.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <mutex>
#include <set>

#include "tests/conformance/at_once.h"
#include "tests/conformance/bad_wire.h"
#include "tests/conformance/every_operation.h"
#include "tests/conformance/faulty.h"
#include "tests/conformance/job_ranks.h"

namespace stormo::comm {
namespace {

using namespace std::chrono_literals;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using transport::WireFault;

constexpr std::int64_t kCount = 20011;
constexpr Duration kDeadline = 2000ms;  // on busy cores the fault may come late
constexpr Duration kMargin = 20s;       // to start, too
constexpr int kAtOnce = 8;

class BadLinks : public ::testing::TestWithParam<std::vector<int>> {};

std::string hosts_name(const ::testing::TestParamInfo<std::vector<int>>& param) {
  std::string name;
  for (const int n : param.param) name += (name.empty() ? "of" : "and") + std::to_string(n);
  return name;
}

/// Every rank repeats the operation until it fails, which all must do with one cause. `happened` is
/// asked while the group lives.
void expect_one_cause(const NamedOperation& operation, const std::vector<int>& hosts,
                      JobOptions options, const std::function<bool()>& happened) {
  std::mutex mutex;
  std::set<std::string> causes;
  bool has_happened = false;
  const auto body = [&](Communicator& c) {
    Status outcome;
    TimePoint start{};
    for (int i = 0; i < 1000 && outcome.ok(); ++i) {
      start = std::chrono::steady_clock::now();
      outcome = operation.run(c, kCount, Deadline::after(kDeadline));
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, kDeadline + kMargin);
    EXPECT_THAT(outcome.to_string(), Not(HasSubstr("wrong data")));
    EXPECT_THAT(outcome.message(), HasSubstr(c.status().message()));
    const std::lock_guard lock(mutex);
    causes.insert(c.status().to_string());
    has_happened |= happened();
  };
  on_group(make_job(hosts, std::move(options)), body, /*finalize=*/false);
  EXPECT_TRUE(has_happened);
  EXPECT_EQ(causes.size(), 1u) << ::testing::PrintToString(causes);
  EXPECT_THAT(*causes.begin(), ContainsRegex("rank [0-3] .host host[0-3].* (#|tag )[0-9]+"))
      << "rank, host and operation";
}

/// Messages have connections of their own.
bool uses_transport(const NamedOperation& operation) { return operation.name != "send_and_recv"; }

/// Calls f(operation) for every operation, several at once: most of the time they wait.
template <class F>
void with_every_operation(F f) {
  testing::at_once(kAtOnce, every_operation().size(), [&](std::size_t i) {
    SCOPED_TRACE(std::string(every_operation()[i].name));
    f(every_operation()[i]);
  });
}

/// Frames at which the wire breaks: at the beginning, in the middle and between operations, and
/// after many. Each operation takes its turn at three of them, so that each is met by several.
constexpr std::array kFrames = {0, 1, 2, 3, 5, 8, 13, 21, 34};

std::vector<int> frames_for(const NamedOperation& operation) {
  const auto i = static_cast<std::size_t>(&operation - every_operation().data());
  return {kFrames[i % kFrames.size()], kFrames[(i + 3) % kFrames.size()],
          kFrames[(i + 6) % kFrames.size()]};
}

enum class Checksums { kOff, kOn };

void break_the_wire(const std::vector<int>& hosts, WireFault fault, Checksums checksums) {
  with_every_operation([&](const NamedOperation& operation) {
    for (const int frame : frames_for(operation)) {
      SCOPED_TRACE("frame " + std::to_string(frame));
      transport::BadWire wire(fault, frame);
      JobOptions options;
      options.tcp.checksum = checksums == Checksums::kOn;
      options.tcp.route = [&](const std::string& address) { return wire.route(address); };
      expect_one_cause(operation, hosts, std::move(options), [&] { return wire.happened(); });
    }
  });
}

/// The wires of a job whose ranks all have the same fault before them.
class FaultyWires {
 public:
  explicit FaultyWires(transport::FaultPlan plan) : plan_(std::move(plan)) {}
  JobOptions options() {
    JobOptions o;
    o.wrap = [this](std::unique_ptr<transport::Transport> wire) {
      auto faulty = transport::make_faulty(std::move(wire), plan_);
      wires_.push_back(faulty.get());
      return faulty;
    };
    return o;
  }
  /// While the job lives.
  std::uint64_t count(std::uint64_t transport::FaultCounts::*which) const {
    std::uint64_t sum = 0;
    for (const transport::FaultyTransport* wire : wires_) sum += wire->faults().*which;
    return sum;
  }

 private:
  const transport::FaultPlan plan_;
  std::vector<transport::FaultyTransport*> wires_;  // owned by the job
};

TEST_P(BadLinks, LateOnesChangeNothing) {
  transport::FaultPlan plan{.seed = 7};
  plan.delay_probability = 0.3;
  plan.max_delay = 3ms;
  FaultyWires wires(plan);
  on_group(
      make_job(GetParam(), wires.options()),
      [&](Communicator& c) {
        for (const NamedOperation& operation : every_operation()) {
          for (const std::int64_t count : {std::int64_t{0}, std::int64_t{1}, kCount}) {
            EXPECT_OK(operation.run(c, count, Deadline::after(20s)).within(operation.name));
          }
        }
        EXPECT_GT(wires.count(&transport::FaultCounts::delays), 0u);
      },
      /*finalize=*/true);
}

TEST_P(BadLinks, DeadEndpointsAreOneCauseForAll) {
  with_every_operation([](const NamedOperation& operation) {
    if (!uses_transport(operation)) return;
    for (const int frame : frames_for(operation)) {
      SCOPED_TRACE("message " + std::to_string(frame));
      transport::FaultPlan plan;
      plan.cut_before_message = static_cast<std::uint64_t>(frame);
      FaultyWires wires(plan);
      expect_one_cause(operation, GetParam(), wires.options(),
                       [&] { return wires.count(&transport::FaultCounts::cuts) > 0; });
    }
  });
}

TEST_P(BadLinks, ACutConnectionIsOneCauseForAll) {
  break_the_wire(GetParam(), WireFault::kCut, Checksums::kOff);
}

TEST_P(BadLinks, AFlippedBitIsOneCauseForAll) {
  break_the_wire(GetParam(), WireFault::kFlippedBit, Checksums::kOn);
}

TEST_P(BadLinks, AFlippedBitOfAHeaderIsOneCauseForAllWithoutChecksumsToo) {
  break_the_wire(GetParam(), WireFault::kFlippedHeader, Checksums::kOff);
}

TEST_P(BadLinks, AReorderedMessageIsOneCauseForAllWithoutChecksumsToo) {
  break_the_wire(GetParam(), WireFault::kReordered, Checksums::kOff);
}

INSTANTIATE_TEST_SUITE_P(Tcp, BadLinks, ::testing::Values(std::vector<int>{1, 1, 1, 1}),
                         hosts_name);
INSTANTIATE_TEST_SUITE_P(Mixed, BadLinks, ::testing::Values(std::vector<int>{2, 2}), hosts_name);

TEST(Checksums, FindWhatIsTakenForDataWithoutThem) {
  for (const bool checksum : {false, true}) {
    transport::BadWire wire(WireFault::kFlippedBit, 0);
    JobOptions options;
    options.tcp.checksum = checksum;
    options.tcp.route = [&](const std::string& address) { return wire.route(address); };
    const auto body = [&](Communicator& c) {
      Elements x = c.rank() == 0 ? terms(0, kCount) : Elements(static_cast<std::size_t>(kCount));
      const Status outcome = c.broadcast(x, 0, Deadline::after(10s));
      if (c.rank() == 0) return;
      EXPECT_EQ(outcome.code(), checksum ? Code::kCorrupt : Code::kOk) << outcome.to_string();
      EXPECT_EQ(outcome.message().find("checksum") != std::string::npos, checksum);
      EXPECT_NE(x, terms(0, kCount)) << "the fault is there";
    };
    on_group(make_job({1, 1}, options), body, /*finalize=*/false);
    EXPECT_TRUE(wire.happened());
  }
}

}  // namespace
}  // namespace stormo::comm
