// Groups that are left while something is pending: by their ranks, and at the end of a process.
#include <gmock/gmock.h>
#include <poll.h>
#include <torch/torch.h>

#include <array>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include <stormo/c10d/leave_all.h>

#include "tests/unit/c10d/backends.h"

namespace stormo::c10d {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using torch::Tensor;
using Tensors = std::vector<Tensor>;
using WorkPtr = c10::intrusive_ptr<::c10d::Work>;

c10::intrusive_ptr<StormoOptions> named(const std::string& name,
                                        std::chrono::milliseconds timeout = 30s) {
  auto options = c10::make_intrusive<StormoOptions>(timeout);
  options->group_name = name;
  return options;
}

/// Ranks 0 and 2 exchange messages; nobody waits for rank 1.
void go_on(::c10d::Backend& b, std::chrono::milliseconds time) {
  const int peer = 2 - b.getRank();
  std::int64_t more = 1;
  const auto end = std::chrono::steady_clock::now() + time;
  while (more != 0) {
    ::poll(nullptr, 0, 1);  // leaves the cores to others
    more = std::chrono::steady_clock::now() < end ? 1 : 0;
    Tensors mine{torch::full({1}, more, torch::kInt64)}, theirs{torch::zeros({1}, torch::kInt64)};
    const auto sent = b.send(mine, peer, 1);
    b.recv(theirs, peer, 1)->wait();
    sent->wait();
    more &= theirs[0].item<std::int64_t>();
  }
  EXPECT_EQ(b.getError(), ::c10d::ErrorType::SUCCESS);
}

struct Pending {
  const char* name;
  std::function<WorkPtr(::c10d::Backend&, Tensors&)> start;
};

const Pending kPending[] = {
    {"isend", [](::c10d::Backend& b, Tensors& one) { return b.send(one, 0, 9); }},
    {"irecv", [](::c10d::Backend& b, Tensors& one) { return b.recv(one, 0, 9); }},
    {"all_reduce", [](::c10d::Backend& b, Tensors& one) { return b.allreduce(one); }},
    {"sparse all_reduce",
     [](::c10d::Backend& b, Tensors&) {
       Tensors sparse{torch::ones({1 << 16}).to_sparse()};
       return b.allreduce(sparse);
     }},
};

// At the end of a process: tests/pytorch/leaving_test.py.
TEST(LeaveWithPending, IsAnEndInOrder) {
  std::vector<std::thread> side_by_side;
  for (const Pending& pending : kPending) {
    side_by_side.emplace_back([&pending] {
      const Backends backends({3});
      on_backends(backends, [&](::c10d::Backend& b) {
        if (b.getRank() != 1) return go_on(b, 3s);  // longer than what is pending has
        Tensors one{torch::ones({1 << 18})};
        const WorkPtr work = pending.start(b, one);
        const auto begin = std::chrono::steady_clock::now();
        b.shutdown();
        EXPECT_LT(std::chrono::steady_clock::now() - begin, 25s) << pending.name;
        EXPECT_THAT(error_of_wait(*work, 60s), HasSubstr("cancelled")) << pending.name;
      });
    });
  }
  for (std::thread& each : side_by_side) each.join();
}

TEST(LeaveWithPending, AFailedMonitoredBarrierDoesNotHinder) {
  const Backends backends({3});
  on_backends(backends, [&](::c10d::Backend& b) {
    if (b.getRank() == 1) return;
    ::c10d::BarrierOptions opts;
    opts.timeout = 100ms;
    EXPECT_THROW(b.monitoredBarrier(opts), c10::Error);
    if (b.getRank() == 0) b.shutdown();
  });
  EXPECT_EQ(backends[1].getError(), ::c10d::ErrorType::SUCCESS);
}

/// In each group a message is pending that nobody receives.
TEST(LeaveAll, LeavesGroupsSideBySideAndAlsoThoseOfSplit) {
  const Backends backends({2});
  constexpr int kGroups = 6;
  std::array<std::vector<c10::intrusive_ptr<::c10d::Backend>>, 2> groups;
  Tensors one{torch::ones({1 << 18})};
  on_backends(backends, [&](::c10d::Backend& b) {
    auto& own = groups[static_cast<std::size_t>(b.getRank())];
    for (int i = 0; i < kGroups; ++i) {
      own.push_back(b.split({}, {0, 1}, named("group " + std::to_string(i))));
      if (b.getRank() == 0) own.back()->send(one, 1, 0);
    }
  });
  const auto begin = std::chrono::steady_clock::now();
  leave_all();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 11s) << "2 s for all, not for each";
  for (const auto& own : groups) {
    for (const auto& group : own) EXPECT_THROW(group->barrier({})->wait(), c10::Error);
  }
}

}  // namespace
}  // namespace stormo::c10d
