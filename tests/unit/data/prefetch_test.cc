#include <stormo/data/prefetch.h>

#include <gmock/gmock.h>
#include <torch/types.h>

#include <atomic>
#include <semaphore>
#include <stdexcept>
#include <thread>

namespace stormo::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// 20 samples, sample i being the number i; fails or blocks on demand.
class Numbers final : public Dataset {
 public:
  std::int64_t size() const override { return 20; }
  Batch get(std::span<const std::int64_t> indices, std::int64_t epoch) const override {
    if (++calls > fail_after) throw_failure();
    if (gated) gate.acquire();
    std::vector<std::int64_t> values(indices.begin(), indices.end());
    return {torch::tensor(values, torch::kInt64), torch::full({std::ssize(values)}, epoch)};
  }
  void throw_failure() const {
    if (throw_error) throw Error(Status(Code::kCorrupt, "sample 7 is damaged"));
    throw std::runtime_error("disk on fire");
  }

  mutable std::atomic<int> calls{0};
  mutable std::counting_semaphore<> gate{0};
  int fail_after = 1 << 30;
  bool throw_error = false;
  bool gated = false;
};

Sampler sampler(int rank = 0, int size = 1) { return Sampler(20, 6, 1, true, rank, size); }

TEST(Prefetcher, DeliversTheStepsInOrderAsTheSamplerSays) {
  for (const int threads : {1, 2, 4}) {
    for (const int depth : {1, 2, 5}) {
      for (const int rank : {0, 1, 2}) {
        Sampler expected = sampler(rank, 3);
        std::int64_t cursor = 32;
        Prefetcher prefetcher(std::make_shared<Numbers>(), sampler(rank, 3), cursor, depth,
                              threads);
        for (int step = 0; step < 25; ++step) {
          auto loaded = prefetcher.next();
          ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
          const auto slice = expected.slice(cursor);
          cursor = slice.next;
          EXPECT_EQ(loaded->slice.next, cursor);
          EXPECT_EQ(loaded->slice.indices, slice.indices);
          EXPECT_EQ(loaded->slice.epoch, slice.epoch);
          EXPECT_EQ(loaded->slice.global_size, slice.global_size);
          EXPECT_EQ(loaded->batch.size(), std::ssize(slice.indices));
          EXPECT_TRUE(loaded->batch.input.equal(torch::tensor(slice.indices, torch::kInt64)));
          EXPECT_TRUE(loaded->batch.target.eq(slice.epoch).all().item<bool>());
        }
      }
    }
  }
}

TEST(Prefetcher, LoadsAsManyBatchesAtATimeAsItHasThreads) {
  const auto numbers = std::make_shared<Numbers>();
  numbers->gated = true;
  Prefetcher prefetcher(numbers, sampler(), 0, 3, 3);
  while (numbers->calls.load() < 3) std::this_thread::yield();  // all three wait at the gate
  numbers->gate.release(1 << 20);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(prefetcher.next().ok());
}

TEST(Prefetcher, CarriesAnExceptionBehindTheBatchesBeforeIt) {
  for (const bool error : {true, false}) {
    const auto numbers = std::make_shared<Numbers>();
    numbers->fail_after = 3;
    numbers->throw_error = error;
    Prefetcher prefetcher(numbers, sampler(), 0, 8);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(prefetcher.next().ok());
    for (int i = 0; i < 2; ++i) {  // it stays
      const Status status = prefetcher.next().status();
      EXPECT_EQ(status.code(), error ? Code::kCorrupt : Code::kIo);
      EXPECT_THAT(status.message(),
                  AllOf(HasSubstr("load the batch at sample 18"),
                        HasSubstr(error ? "sample 7 is damaged" : "disk on fire")));
    }
    EXPECT_EQ(numbers->calls.load(), 4);
  }
}

TEST(Prefetcher, LoadsNoFurtherThanItsDepth) {
  const auto numbers = std::make_shared<Numbers>();
  numbers->gated = true;
  numbers->gate.release(4);
  {
    Prefetcher prefetcher(numbers, sampler(), 0, 2);
    EXPECT_TRUE(prefetcher.next().ok());
    EXPECT_TRUE(prefetcher.next().ok());
    // Two taken, two may wait; a fifth load would need a fifth permit and block the destructor.
  }
  EXPECT_LE(numbers->calls.load(), 4);
}

TEST(Prefetcher, StopsAtAnyMoment) {
  for (int taken = 0; taken < 4; ++taken) {
    for (const int depth : {1, 3}) {
      const auto numbers = std::make_shared<Numbers>();
      Prefetcher prefetcher(numbers, sampler(), 0, depth);
      for (int i = 0; i < taken; ++i) EXPECT_TRUE(prefetcher.next().ok());
    }
  }
}

}  // namespace
}  // namespace stormo::data
