// An update is gone on with, whatever instruction the process that made it was killed at. It is
// made in single steps: what its memory is like after each of them is what another process finds.
#include <stormo/optim/update_lane.h>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <memory>
#include <vector>

namespace stormo::optim {
namespace {

constexpr std::uint32_t kBlocks = 4;
constexpr int kInBlock = 5;         // elements
constexpr std::uint32_t kIdle = 2;  // a block that the update leaves alone
constexpr std::uint32_t kChild = 1, kOther = 2;

struct Weights {
  float weights[kBlocks * kInBlock];
  float slots[kBlocks * kInBlock];
};

/// A lane and what it updates, in one piece of memory, so that all of it can be copied.
struct alignas(64) Memory {
  std::byte lane[64 * 3];
  Weights values;
};
constexpr std::size_t kSaved = 2 * kInBlock * sizeof(float);

/// Done twice, or half, it leaves other values.
void advance(Weights& values, int i) {
  values.slots[i] = 0.5F * values.slots[i] + static_cast<float>(i + 1);
  values.weights[i] -= 0.25F * values.slots[i];
}

UpdateLane::Work work_on(Memory& memory, std::uint64_t number) {
  return {.number = number,
          .blocks = kBlocks,
          .changes = [&memory](std::uint32_t block) -> UpdateLane::Changes {
            if (block == kIdle) return {};
            const std::span weights(memory.values.weights + block * kInBlock, kInBlock);
            const std::span slots(memory.values.slots + block * kInBlock, kInBlock);
            return {std::as_writable_bytes(weights), std::as_writable_bytes(slots)};
          },
          .perform =
              [&memory](std::uint32_t block) {
                for (int i = 0; i < kInBlock; ++i) {
                  advance(memory.values, static_cast<int>(block) * kInBlock + i);
                }
              }};
}

Weights expected(int updates) {
  Weights out{};
  for (int u = 0; u < updates; ++u) {
    for (int i = 0; i < static_cast<int>(kBlocks) * kInBlock; ++i) {
      if (i / kInBlock != static_cast<int>(kIdle)) advance(out, i);
    }
  }
  return out;
}

bool equal(const Weights& a, const Weights& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

void take_over(Memory& memory, const UpdateLane::Work& work) {
  UpdateLane lane(memory.lane);
  if (lane.worker() != kOther) {
    ASSERT_TRUE(lane.claim(kOther, lane.worker()));
  }
  lane.run(work);
  EXPECT_TRUE(lane.is_done(work));
  lane.leave();
}

/// All that the memory is like, one after the other, while a process makes the second update.
/// Nothing: there is no ptrace here.
std::vector<Memory> states_of_an_update() {
  void* const mapped =
      mmap(nullptr, sizeof(Memory), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  Memory& memory = *new (mapped) Memory{};
  take_over(memory, work_on(memory, 1));
  const UpdateLane::Work work = work_on(memory, 2);
  UpdateLane lane(memory.lane);
  std::vector<Memory> states{memory};
  const pid_t child = fork();
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(1);
    ::raise(SIGSTOP);
    lane.claim(kChild);
    lane.run(work);
    lane.leave();
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  while (WIFSTOPPED(status)) {
    if (std::memcmp(&states.back(), &memory, sizeof memory) != 0) states.push_back(memory);
    if (ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr) != 0) break;
    ::waitpid(child, &status, 0);
  }
  const bool was_traced = WIFSIGNALED(status) && equal(memory.values, expected(2));
  munmap(mapped, sizeof(Memory));
  return was_traced ? states : std::vector<Memory>();
}

class ProcessKilled : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { states_ = states_of_an_update(); }
  void SetUp() override {
    if (states_.empty()) GTEST_SKIP() << "machine: a process may not be traced here";
    // each element of three blocks was changed twice, and saved
    ASSERT_GT(states_.size(), 3U * kInBlock * 2);
  }
  static std::vector<Memory> states_;
};
std::vector<Memory> ProcessKilled::states_;

TEST_F(ProcessKilled, AtAnyInstructionAnotherOneGoesOn) {
  for (std::size_t i = 0; i < states_.size(); ++i) {
    Memory memory = states_[i];
    take_over(memory, work_on(memory, 2));
    EXPECT_TRUE(equal(memory.values, expected(2))) << "state " << i;
    take_over(memory, work_on(memory, 3));
    EXPECT_TRUE(equal(memory.values, expected(3))) << "state " << i;
  }
}

TEST_F(ProcessKilled, AndWhoGoesOnMayBeKilledToo) {
  struct Killed {};
  for (std::size_t i = 0; i < states_.size(); ++i) {
    Memory memory = states_[i];
    UpdateLane::Work half = work_on(memory, 2);
    half.perform = [&](std::uint32_t block) {
      advance(memory.values, static_cast<int>(block) * kInBlock);
      throw Killed{};
    };
    UpdateLane lane(memory.lane);
    if (!lane.is_done(half)) {
      EXPECT_THROW(lane.run(half), Killed);
    }
    take_over(memory, work_on(memory, 2));
    EXPECT_TRUE(equal(memory.values, expected(2))) << "state " << i;
  }
}

// The test sees what it is about: without what was saved there are states that cannot be gone on
// from.
TEST_F(ProcessKilled, WhatIsNotRestoredIsWrong) {
  int wrong = 0;
  for (const Memory& state : states_) {
    Memory memory = state;
    std::memset(memory.lane + sizeof(std::uint64_t), 0, sizeof(std::uint64_t));  // nothing is saved
    take_over(memory, work_on(memory, 2));
    if (!equal(memory.values, expected(2))) ++wrong;
  }
  EXPECT_GE(wrong, 3 * kInBlock);
}

TEST(UpdateLane, HasOneWorkerAtATime) {
  Memory memory{};
  static_assert(sizeof memory.lane >= 64 + kSaved);
  EXPECT_EQ(UpdateLane::bytes(kSaved), 64U + 64U);
  UpdateLane lane(memory.lane);
  EXPECT_EQ(lane.worker(), 0U);
  EXPECT_TRUE(lane.claim(kChild));
  EXPECT_FALSE(lane.claim(kOther));
  EXPECT_EQ(lane.worker(), kChild);
  EXPECT_TRUE(lane.claim(kOther, kChild)) << "it has ended";
  EXPECT_FALSE(lane.claim(kOther, kChild)) << "another one was faster";
  lane.leave();
  EXPECT_EQ(lane.worker(), 0U);
}

TEST(UpdateLane, WithoutBlocksIsDone) {
  Memory memory{};
  UpdateLane lane(memory.lane);
  UpdateLane::Work none = work_on(memory, 1);
  EXPECT_FALSE(lane.is_done(none));
  none.blocks = 0;
  EXPECT_TRUE(lane.is_done(none));
  lane.run(none);
}

}  // namespace
}  // namespace stormo::optim
