// Timeouts are those of the group, whoever waits.
#include <gmock/gmock.h>
#include <poll.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/unit/c10d/backends.h"

namespace stormo::c10d {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

/// As DDP waits: for the future, which knows no timeout.
std::string error_of_future(::c10d::Work& work) {
  const auto future = work.getFuture();
  try {
    future->waitAndThrow();
  } catch (const c10::DistBackendError& e) {
    return e.what_without_backtrace();
  }
  return "nothing";
}

/// A part of all ranks.
c10::intrusive_ptr<::c10d::Backend> part_of(::c10d::Backend& b, std::chrono::milliseconds timeout) {
  auto options = c10::make_intrusive<StormoOptions>(timeout);
  options->group_name = "part";
  return b.split({}, {0, 1}, options);
}

// A second operation waits behind the one that is late.
TEST(Timeout, EndsWhatIsWaitedForThroughAFuture) {
  for (const bool sparse : {false, true}) {
    const Backends backends({2}, 400ms);
    on_backends(backends, [&](::c10d::Backend& b) {
      if (b.getRank() == 1) return;
      const Tensor zeros = torch::zeros({3});
      Tensors one{sparse ? zeros.to_sparse() : zeros}, other{zeros};
      const auto begin = std::chrono::steady_clock::now();
      const auto work = b.allreduce(one);
      const auto next = b.allreduce(other);
      EXPECT_THAT(error_of_future(*work),
                  AllOf(HasSubstr("the timeout has passed"), HasSubstr("rank 1: ")));
      EXPECT_LT(std::chrono::steady_clock::now() - begin, 25s);
      EXPECT_THAT(error_of_future(*next), HasSubstr("the timeout has passed"));
    });
  }
}

TEST(Timeout, OfAGroupMayBeLongerThanThatOfItsWorld) {
  const Backends backends({2}, 300ms);
  on_backends(backends, [](::c10d::Backend& b) {
    const auto part = part_of(b, 30s);
    Tensors one{torch::ones({3})};
    if (b.getRank() == 1) ::poll(nullptr, 0, 1000);
    const auto work = part->allreduce(one);
    EXPECT_EQ(error_of_future(*work), "nothing");
    EXPECT_EQ(one[0][0].item<float>(), 2);
  });
}

TEST(Timeout, OfAGroupMayBeShorterThanThatOfItsWorld) {
  const Backends backends({2}, 30s);
  std::atomic<bool> is_over = false;
  on_backends(backends, [&](::c10d::Backend& b) {
    const auto part = part_of(b, 10s);
    part->setTimeout(300ms);
    if (b.getRank() == 1) {
      while (!is_over) std::this_thread::yield();
      return;
    }
    Tensors one{torch::ones({3})};
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_THAT(error_of_future(*part->allreduce(one)), HasSubstr("the timeout has passed"));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 25s);
    is_over = true;
  });
}

TEST(Timeout, MayBeLongerThanAClockGoes) {
  on_backends(Backends({2}, std::chrono::milliseconds::max()), [](::c10d::Backend& b) {
    Tensors one{torch::ones({3})};
    EXPECT_EQ(error_of_wait(*b.allreduce(one)), "nothing");
  });
}

// Rank 0 would have to say who is missing.
TEST(Timeout, OfAMonitoredBarrierEndsItWithoutRankZero) {
  const Backends backends({2}, 30s);
  on_backends(backends, [](::c10d::Backend& b) {
    if (b.getRank() == 0) return;
    ::c10d::BarrierOptions opts;
    opts.timeout = 100ms;
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_THROW(b.monitoredBarrier(opts), c10::Error);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 25s);
  });
}

}  // namespace
}  // namespace stormo::c10d
