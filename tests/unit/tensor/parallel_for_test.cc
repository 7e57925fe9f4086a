#include <stormo/tensor/parallel_for.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

namespace stormo::tensor {
namespace {

class ParallelFor : public testing::Test {
 protected:
  ParallelFor() { at::set_num_threads(2); }
  ~ParallelFor() override { at::set_num_threads(before_); }
  const int before_ = at::get_num_threads();
};

TEST_F(ParallelFor, VisitsEverythingOnceInPartsOfTheGrain) {
  for (const std::int64_t count : {0, 1, 7, 8, 9, 64, 1000, 4097}) {
    std::vector<std::atomic<int>> visits(static_cast<std::size_t>(count));
    parallel_for(count, 8, [&](std::int64_t begin, std::int64_t end) {
      EXPECT_EQ(begin % 8, 0);
      EXPECT_LE(end, count);
      for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
    });
    EXPECT_TRUE(std::all_of(visits.begin(), visits.end(), [](const auto& v) { return v == 1; }))
        << count;
  }
}

// Two parts that wait for each other: alone the caller would never end the first.
TEST_F(ParallelFor, RunsOnSeveralThreadsAtOnce) {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::atomic<int> arrived{0};
  parallel_for(2, 1, [&](std::int64_t, std::int64_t) {
    {
      const std::lock_guard lock(mutex);
      threads.insert(std::this_thread::get_id());
    }
    ++arrived;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (arrived < 2 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  });
  EXPECT_EQ(threads.size(), 2u);
}

TEST_F(ParallelFor, IsSerialInsideItself) {
  std::atomic<int> calls{0};
  parallel_for(2, 1, [&](std::int64_t, std::int64_t) {
    parallel_for(100, 1, [&](std::int64_t begin, std::int64_t end) {
      ++calls;
      EXPECT_EQ(begin, 0);
      EXPECT_EQ(end, 100);
    });
  });
  EXPECT_EQ(calls, 2);
}

TEST_F(ParallelFor, ExceptionsArriveAtTheCaller) {
  EXPECT_THROW(parallel_for(100, 1,
                            [](std::int64_t begin, std::int64_t end) {
                              if (begin <= 99 && 99 < end) throw std::runtime_error("last");
                            }),
               std::runtime_error);
}

}  // namespace
}  // namespace stormo::tensor
