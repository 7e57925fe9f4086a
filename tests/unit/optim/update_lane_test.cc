// An update is gone on with, whatever instruction the process that made it was killed at. It is
// made in single steps: what its memory is like after each of them is what another process finds.
#include <stormo/optim/update_lane.h>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

namespace stormo::optim {
namespace {

using Kind = Options::Kind;

constexpr std::uint32_t kBlocks = 4;
constexpr int kInBlock = 150;  // elements: two parts and some; vectors and single ones
constexpr int kInPart = UpdateJournal::kPart / sizeof(float);
constexpr std::uint32_t kIdle = 2;  // a block that the update leaves alone
constexpr std::uint32_t kChild = 1, kOther = 2;
constexpr int kCount = kBlocks * kInBlock;

/// What AdamW changes. Done twice, or half, it leaves other values.
const Options kAdamW{.kind = Kind::kAdamW, .weight_decay = 0.1};
struct Weights {
  float weights[kCount];
  float slots[kMaxSlots][kCount];
};

/// A lane and what it updates, in one piece of memory, so that all of it can be copied.
struct alignas(64) Memory {
  std::byte lane[sizeof(UpdateLane::Memory)];
  Weights values;
};
UpdateLane lane_of(Memory& memory) {
  return UpdateLane(reinterpret_cast<UpdateLane::Memory*>(memory.lane));
}

template <class T>
struct Gradient {
  Gradient() {
    for (int i = 0; i < kCount; ++i) values[static_cast<std::size_t>(i)] = T(i % 17) / 8 - 1;
  }
  std::array<T, kCount> values;
  GradientTerm term{.data = values.data()};
};

/// The elements of a block from `begin` bytes of it on.
UpdateRange piece_of(Weights& values, std::uint32_t block, std::size_t begin = 0) {
  static const Gradient<float> gradient;
  const auto first = static_cast<std::int64_t>(block) * kInBlock;
  return {.begin = first + static_cast<std::int64_t>(begin / sizeof(float)),
          .end = first + kInBlock,
          .weights = values.weights,
          .gradients = {&gradient.term, 1},
          .slots = {values.slots[0], values.slots[1]}};
}

UpdateStep step_of(std::uint64_t number) {
  return {.lr = 0.1, .number = static_cast<std::int64_t>(number)};
}

UpdateLane::Work work_on(Memory& memory, std::uint64_t number) {
  return {.number = number,
          .blocks = kBlocks,
          .changes = [&memory](std::uint32_t block) -> UpdateJournal::Changes {
            if (block == kIdle) return {};
            const auto part = [&](float* array) {
              return std::as_writable_bytes(std::span(array + block * kInBlock, kInBlock));
            };
            Weights& values = memory.values;
            return {part(values.weights), part(values.slots[0]), part(values.slots[1])};
          },
          .perform =
              [&memory, number](std::uint32_t block, UpdateJournal& journal) {
                journaled_update_of(kAdamW, DType::kFloat32)(
                    kAdamW, step_of(number), piece_of(memory.values, block, journal.begin()),
                    journal);
              }};
}

Weights expected(std::uint64_t updates) {
  Weights out{};
  for (std::uint64_t u = 1; u <= updates; ++u) {
    for (std::uint32_t block = 0; block < kBlocks; ++block) {
      if (block != kIdle) update(kAdamW, step_of(u), piece_of(out, block));
    }
  }
  return out;
}

/// As an update does before it changes a part.
void save_part(const UpdateJournal::Changes& changes, UpdateJournal& journal) {
  const std::size_t bytes = std::min(changes[0].size() - journal.begin(), UpdateJournal::kPart);
  for (std::size_t array = 0; array < changes.size(); ++array) {
    if (changes[array].empty()) continue;
    std::copy_n(&changes[array][journal.begin()], bytes, journal.place(array));
  }
  journal.note_saved(bytes);
}

bool equal(const Weights& a, const Weights& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

void take_over(Memory& memory, const UpdateLane::Work& work) {
  UpdateLane lane = lane_of(memory);
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
  UpdateLane lane = lane_of(memory);
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
    // of three blocks each part was saved, and each vector changed in three arrays
    ASSERT_GT(states_.size(), 3U * (3 * 2 + 3 * kInBlock / 16));
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
    half.perform = [&](std::uint32_t block, UpdateJournal& journal) {
      UpdateRange some = piece_of(memory.values, block, journal.begin());
      some.end = std::min(some.end, some.begin + kInPart / 2);
      save_part(half.changes(block), journal);
      update(kAdamW, step_of(2), some);
      throw Killed{};
    };
    UpdateLane lane = lane_of(memory);
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
    reinterpret_cast<UpdateLane::Memory*>(memory.lane)->journal.parts = {};  // nothing is saved
    take_over(memory, work_on(memory, 2));
    if (!equal(memory.values, expected(2))) ++wrong;
  }
  EXPECT_GE(wrong, 3 * 3 * kInBlock / 16);
}

/// One block of a rule's values. `Kind` and momentum decide how many slots there are.
template <class T>
struct Block {
  std::array<std::vector<T>, 1 + kMaxSlots> arrays;
  std::size_t used = 0;

  explicit Block(const Options& o) : used(1 + slot_names(o).size()) {
    for (auto& array : arrays) {
      for (int i = 0; i < kInBlock; ++i) array.push_back(T(i % 7 + 1) / 4);
    }
  }
  UpdateJournal::Changes changes() {
    UpdateJournal::Changes out;
    for (std::size_t a = 0; a < used; ++a) out[a] = std::as_writable_bytes(std::span(arrays[a]));
    return out;
  }
  UpdateRange piece(std::size_t begin = 0) {
    static const Gradient<T> gradient;
    UpdateRange range{.begin = static_cast<std::int64_t>(begin / sizeof(T)),
                      .end = kInBlock,
                      .dtype = DTypeOf<T>::value,
                      .weights = arrays[0].data(),
                      .gradients = {&gradient.term, 1},
                      .gradient_dtype = DTypeOf<T>::value};
    for (std::size_t a = 1; a < used; ++a) range.slots[a - 1] = arrays[a].data();
    return range;
  }
};

template <class T>
void expect_that_it_goes_on(const Options& o) {
  SCOPED_TRACE(static_cast<int>(o.kind));
  struct Killed {};
  Block<T> expected(o), block(o);
  update(o, step_of(1), expected.piece());
  UpdateLane::Memory memory{};
  UpdateLane lane(&memory);
  UpdateLane::Work work{.blocks = 1, .changes = [&](std::uint32_t) { return block.changes(); }};
  // the first part is done, the second one is lost
  work.perform = [&](std::uint32_t, UpdateJournal& journal) {
    UpdateRange first = block.piece();
    first.end = static_cast<std::int64_t>(UpdateJournal::kPart / sizeof(T));
    save_part(block.changes(), journal);
    update(o, step_of(1), first);
    save_part(block.changes(), journal);
    for (const auto& bytes : block.changes()) {
      if (!bytes.empty()) std::memset(&bytes[UpdateJournal::kPart], 0xFF, UpdateJournal::kPart);
    }
    throw Killed{};
  };
  EXPECT_THROW(lane.run(work), Killed);
  work.perform = [&](std::uint32_t, UpdateJournal& journal) {
    EXPECT_EQ(journal.begin(), UpdateJournal::kPart);
    journaled_update_of(o, DTypeOf<T>::value)(o, step_of(1), block.piece(journal.begin()), journal);
  };
  lane.run(work);
  EXPECT_TRUE(lane.is_done(work));
  for (std::size_t a = 0; a < block.used; ++a) EXPECT_EQ(block.arrays[a], expected.arrays[a]) << a;
}

TEST(UpdateLane, EveryRuleGoesOnWithTheSameBits) {
  for (const Kind kind :
       {Kind::kSgd, Kind::kAdamW, Kind::kAdam, Kind::kAdagrad, Kind::kRmsProp, Kind::kLion}) {
    for (const double momentum : {0.0, 0.9}) {
      const Options o{.kind = kind, .momentum = momentum, .weight_decay = 0.1};
      expect_that_it_goes_on<float>(o);
      expect_that_it_goes_on<double>(o);
    }
  }
}

TEST(UpdateLane, HasOneWorkerAtATime) {
  Memory memory{};
  UpdateLane lane = lane_of(memory);
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
  UpdateLane lane = lane_of(memory);
  UpdateLane::Work none = work_on(memory, 1);
  EXPECT_FALSE(lane.is_done(none));
  none.blocks = 0;
  EXPECT_TRUE(lane.is_done(none));
  lane.run(none);
}

}  // namespace
}  // namespace stormo::optim
