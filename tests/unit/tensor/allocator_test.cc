#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <cstdint>
#include <thread>
#include <vector>

#include <stormo/tensor/allocator.h>
#include <stormo/transport/memory/arena.h>

namespace stormo::tensor {
namespace {

constexpr std::int64_t kThreshold = static_cast<std::int64_t>(kArenaThresholdBytes);

/// The arena of this program; never destroyed, as the allocator demands.
transport::Arena& arena() {
  static transport::Arena* const arena = [] {
    auto created = transport::Arena::create({.capacity_bytes = std::uint64_t{256} << 20});
    throw_if_error(created.status());
    install_arena_allocator(**created);
    return std::move(created).value().release();
  }();
  return *arena;
}

class ArenaAllocator : public ::testing::Test {
 protected:
  std::uint64_t in_use() const { return arena_.stats().in_use_bytes; }
  transport::Arena& arena_ = arena();
};

torch::Tensor bytes(std::int64_t count) { return torch::empty({count}, torch::kUInt8); }

TEST_F(ArenaAllocator, TakesLargeBlocksFromTheArenaAndSmallOnesNot) {
  for (const std::int64_t n : {kThreshold, kThreshold + 1, 3 * kThreshold, 40 * kThreshold + 17}) {
    EXPECT_TRUE(in_arena(bytes(n))) << n;
    EXPECT_TRUE(arena_.contains(bytes(n).data_ptr())) << n;
  }
  for (const std::int64_t n : {std::int64_t{0}, std::int64_t{1}, kThreshold - 1}) {
    EXPECT_FALSE(in_arena(bytes(n))) << n;
  }
  EXPECT_FALSE(in_arena({}));
}

TEST_F(ArenaAllocator, AlignsEveryBlock) {
  for (const std::int64_t n : {std::int64_t{1}, std::int64_t{100}, kThreshold, kThreshold + 3}) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(bytes(n).data_ptr()) % 64, 0u) << n;
  }
}

TEST_F(ArenaAllocator, GivesEverythingBack) {
  const std::uint64_t before = in_use();
  {
    const torch::Tensor a = torch::randn({256, 256});
    const torch::Tensor b = a.clone();
    const torch::Tensor view = b.slice(0, 1, 3);
    EXPECT_TRUE(in_arena(b));
    EXPECT_TRUE(in_arena(view));  // a small view of a large storage
    EXPECT_TRUE(a.equal(b));
    EXPECT_GE(in_use(), before + 2 * 256 * 256 * 4);
  }
  EXPECT_EQ(in_use(), before);
}

TEST_F(ArenaAllocator, ResizeMovesBetweenTheTwoPlaces) {
  const std::uint64_t before = in_use();
  torch::Tensor t = torch::arange(1000, torch::kInt64);
  EXPECT_FALSE(in_arena(t));
  t.resize_({100000});
  EXPECT_TRUE(in_arena(t));
  EXPECT_TRUE(t.slice(0, 0, 1000).equal(torch::arange(1000, torch::kInt64)));
  t.resize_({200000});
  EXPECT_TRUE(t.slice(0, 0, 1000).equal(torch::arange(1000, torch::kInt64)));
  t.reset();
  EXPECT_EQ(in_use(), before);
}

TEST_F(ArenaAllocator, LeavesForeignMemoryAlone) {
  const std::uint64_t before = in_use();
  std::vector<float> owned(100000, 2.0f);
  {
    const torch::Tensor t = torch::from_blob(owned.data(), {100000});
    EXPECT_FALSE(in_arena(t));
    EXPECT_EQ(t.sum().item<float>(), 200000.0f);
  }
  EXPECT_EQ(owned[99999], 2.0f);
  EXPECT_EQ(in_use(), before);
}

TEST_F(ArenaAllocator, SurvivesSwappedStorages) {
  const std::uint64_t before = in_use();
  {
    torch::Tensor large = torch::ones({kThreshold});
    torch::Tensor small = torch::zeros({8});
    const void* place = large.data_ptr();
    const at::DataPtr stays = small.storage().unsafeGetStorageImpl()->set_data_ptr(
        large.storage().unsafeGetStorageImpl()->set_data_ptr(at::DataPtr()));
    EXPECT_EQ(small.data_ptr(), place);
    torch::Tensor other = torch::zeros({kThreshold});
    other.set_data(torch::full({kThreshold}, 3.0f));
    EXPECT_TRUE(in_arena(other));
    large.reset();
  }
  EXPECT_EQ(in_use(), before);
}

TEST_F(ArenaAllocator, HandsOutTheRawPointerOfAStorage) {
  c10::Allocator* const allocator = c10::GetCPUAllocator();
  ASSERT_NE(allocator->raw_deleter(), nullptr);
  const std::uint64_t before = in_use();
  for (const std::size_t n : {std::size_t{100}, kArenaThresholdBytes}) {
    c10::DataPtr p = allocator->allocate(n);
    EXPECT_EQ(p.get(), p.get_context());
    void* const raw = p.release_context();
    allocator->raw_deleter()(raw);
  }
  EXPECT_EQ(in_use(), before);
}

TEST_F(ArenaAllocator, AutogradLeavesFreshGradientsInTheArena) {
  torch::nn::Linear linear(300, 200);  // 240 kB of weights, 800 B of bias
  for (int step = 0; step < 2; ++step) {
    linear->zero_grad();  // sets to none
    ASSERT_FALSE(linear->weight.grad().defined());
    linear->forward(torch::randn({16, 300})).square().sum().backward();
    EXPECT_TRUE(in_arena(linear->weight.grad()));
    EXPECT_TRUE(linear->weight.grad().is_contiguous());
    EXPECT_FALSE(in_arena(linear->bias.grad()));
  }
}

TEST_F(ArenaAllocator, AThreadMayHaveItsOwn) {
  auto made =
      transport::Arena::create({.capacity_bytes = std::uint64_t{16} << 20, .single_process = true});
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  transport::Arena& own = transport::Arena::immortal(std::move(made).value());
  const std::uint64_t before = in_use();
  torch::Tensor theirs;
  std::thread([&] {
    const ThreadArena guard(own);
    theirs = bytes(kThreshold);
    const torch::Tensor too_large = bytes(std::int64_t{32} << 20);
    EXPECT_FALSE(in_arena(too_large));
  }).join();
  EXPECT_TRUE(own.contains(theirs.data_ptr()));
  EXPECT_EQ(in_use(), before);
  {
    const ThreadArena guard(own);
    EXPECT_TRUE(own.contains(bytes(kThreshold).data_ptr()));
  }
  EXPECT_TRUE(arena_.contains(bytes(kThreshold).data_ptr()));
  theirs.reset();  // on another thread than it was made
  EXPECT_EQ(own.stats().in_use_bytes, 0u);
}

TEST_F(ArenaAllocator, TakesAndFreesOnAnyThread) {
  const std::uint64_t before = in_use();
  std::vector<torch::Tensor> made(8);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < made.size(); ++i) {
    threads.emplace_back([&made, i] {
      for (int n = 0; n < 50; ++n) made[i] = bytes(kThreshold + n * 1000);
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& t : made) EXPECT_TRUE(in_arena(t));
  made.clear();
  EXPECT_EQ(in_use(), before);
}

TEST_F(ArenaAllocator, FallsBackWhenTheArenaIsExhausted) {
  std::vector<torch::Tensor> all;
  while (all.empty() || in_arena(all.back())) {
    ASSERT_LE(all.size(), 5u);
    all.push_back(bytes(100 << 20));  // 256 MiB of address space hold two of them
  }
  all.back()[123].fill_(7);
  EXPECT_EQ(all.back()[123].item<int>(), 7);
}

// What libtorch may do in a child without its threads: take, read and free single blocks.
int in_child(const torch::Tensor& inherited, const transport::Arena& arena) {
  const std::uint64_t before = arena.stats().in_use_bytes;
  torch::Tensor copy = inherited;
  copy.reset();
  {
    torch::Tensor fresh = torch::empty({kThreshold}, torch::kUInt8);
    if (in_arena(fresh)) return 2;
    static_cast<std::uint8_t*>(fresh.data_ptr())[kThreshold - 1] = 1;
  }
  c10::GetCPUAllocator()->raw_deleter()(inherited.data_ptr());  // as the last owner would
  return arena.stats().in_use_bytes == before ? 0 : 3;
}

TEST_F(ArenaAllocator, ChildUsesMallocAndNeverFreesArenaBlocks) {
  const torch::Tensor mine = torch::ones({kThreshold}, torch::kUInt8);
  ASSERT_TRUE(in_arena(mine));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(in_child(mine, arena_));
  int state = 0;
  ASSERT_EQ(waitpid(child, &state, 0), child);
  ASSERT_TRUE(WIFEXITED(state));
  EXPECT_EQ(WEXITSTATUS(state), 0);
  EXPECT_EQ(mine.sum().item<std::int64_t>(), kThreshold);
  EXPECT_TRUE(in_arena(bytes(kThreshold)));
}

TEST_F(ArenaAllocator, InstallsOnceAndServesTheNewestArena) {
  c10::Allocator* const allocator = c10::GetCPUAllocator();
  install_arena_allocator(arena_);
  EXPECT_EQ(c10::GetCPUAllocator(), allocator);

  const torch::Tensor before = bytes(kThreshold);
  auto second = transport::Arena::create({.capacity_bytes = 1 << 20, .single_process = true});
  ASSERT_TRUE(second.ok());
  transport::Arena* const leaked = std::move(second).value().release();
  install_arena_allocator(*leaked);
  torch::Tensor after = bytes(kThreshold);
  EXPECT_TRUE(leaked->contains(after.data_ptr()));
  EXPECT_TRUE(in_arena(before));
  EXPECT_TRUE(in_arena(after));
  after.reset();
  EXPECT_EQ(leaked->stats().in_use_bytes, 0u);
}

}  // namespace
}  // namespace stormo::tensor
