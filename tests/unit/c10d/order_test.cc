// Operations that PyTorch may start in any order, and what they tell when they end.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <barrier>
#include <future>
#include <latch>
#include <thread>

#include <stormo/c10d/blocking_call.h>

#include "tests/unit/c10d/backends.h"

namespace stormo::c10d {
namespace {

using namespace std::chrono_literals;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

/// Group i has the ranks i and i + 1 of a circle of three. Each rank starts the one with the next
/// rank first: whoever waited for that would wait for all.
TEST(Order, OfOverlappingGroupsMayGoInACircle) {
  on_ranks({3}, [](::c10d::Backend& world) {
    const int me = world.getRank(), next = (me + 1) % 3, last = (me + 2) % 3;
    auto options = c10::make_intrusive<StormoOptions>(10s);
    std::array<c10::intrusive_ptr<::c10d::Backend>, 3> groups;
    for (int i = 0; i < 3; ++i) {
      options->group_name = "pair " + std::to_string(i);
      groups[static_cast<std::size_t>(i)] =
          world.split({}, {std::min(i, (i + 1) % 3), std::max(i, (i + 1) % 3)}, options);
    }
    for (const std::int64_t count : {3, 4 << 20}) {
      const auto own = [&] { return Tensors{torch::full({count}, me + 1.)}; };
      Tensors with_next = own(), with_last = own(), with_all = own();
      std::vector<c10::intrusive_ptr<::c10d::Work>> works;
      if (me == 0) works.push_back(world.allreduce(with_all));
      works.push_back(groups[static_cast<std::size_t>(me)]->allreduce(with_next));
      if (me == 1) works.push_back(world.allreduce(with_all));
      works.push_back(groups[static_cast<std::size_t>(last)]->allreduce(with_last));
      if (me == 2) works.push_back(world.allreduce(with_all));
      for (const auto& work : works) work->wait();
      EXPECT_TRUE(torch::all(with_next[0] == me + next + 2).item<bool>());
      EXPECT_TRUE(torch::all(with_last[0] == me + last + 2).item<bool>());
      EXPECT_TRUE(torch::all(with_all[0] == 6).item<bool>());
    }
  });
}

TEST(Order, OfMessagesIsFree) {
  on_ranks({2, 2}, [](::c10d::Backend& b) {
    const int n = b.getSize(), me = b.getRank();
    const auto value = [](int from, int to, int tag) { return 100. * from + 10 * to + tag; };
    constexpr std::int64_t kCount = 1 << 16;
    std::vector<c10::intrusive_ptr<::c10d::Work>> works;
    std::vector<Tensors> in, out;
    for (int peer = 0; peer < n; ++peer) {
      if (peer == me) continue;
      for (int tag = 0; tag < 2; ++tag) {
        out.push_back({torch::full({kCount}, value(me, peer, tag))});
        works.push_back(b.send(out.back(), peer, tag));
      }
      for (int tag = 1; tag >= 0; --tag) {
        in.push_back({torch::zeros({kCount, 2}).select(1, 0)});
        works.push_back(b.recv(in.back(), peer, tag));
      }
    }
    for (auto work = works.rbegin(); work != works.rend(); ++work) (*work)->wait();
    std::size_t i = 0;
    for (int peer = 0; peer < n; ++peer) {
      if (peer == me) continue;
      for (int tag = 1; tag >= 0; --tag) {
        EXPECT_EQ(in[i++][0][kCount - 1].item<float>(), value(peer, me, tag));
      }
    }
  });
}

/// 16 MiB, from private memory and from the Arena, where a peer of the same host reads them.
TEST(Order, EverybodySendsToAllBeforeAnybodyReceives) {
  const Backends backends({2, 1});
  std::barrier all_have_sent(3);
  on_backends(backends, [&](::c10d::Backend& b) {
    const int me = b.getRank();
    constexpr std::int64_t kCount = 4 << 20;
    std::vector<c10::intrusive_ptr<::c10d::Work>> works;
    std::vector<Tensors> in, out;
    for (const int tag : {0, 1}) {
      for (const int peer : {(me + 1) % 3, (me + 2) % 3}) {
        out.push_back(
            {tag == 0 ? torch::empty({kCount}) : b.allocateTensor(kCount, torch::kFloat)});
        out.back()[0].fill_(10 * me + tag);
        works.push_back(b.send(out.back(), peer, tag));
      }
    }
    all_have_sent.arrive_and_wait();
    for (const int tag : {1, 0}) {
      for (const int peer : {(me + 1) % 3, (me + 2) % 3}) {
        in.push_back({torch::zeros({kCount})});
        works.push_back(b.recv(in.back(), peer, tag));
      }
    }
    for (const auto& work : works) work->wait();
    std::size_t i = 0;
    for (const int tag : {1, 0}) {
      for (const int peer : {(me + 1) % 3, (me + 2) % 3}) {
        EXPECT_TRUE(torch::all(in[i++][0] == 10 * peer + tag).item<bool>());
      }
    }
  });
}

TEST(Order, WhoReceivesFromAnySourceIsToldWhose) {
  on_ranks({3}, [](::c10d::Backend& b) {
    Tensors one{torch::full({2}, 1. * b.getRank())};
    if (b.getRank() != 0) {
      b.send(one, 0, 7)->wait();
      return;
    }
    std::set<int> sources;
    for (int i = 0; i < 2; ++i) {
      const auto work = b.recvAnysource(one, 7);
      work->wait();
      EXPECT_EQ(one[0][0].item<float>(), work->sourceRank());
      sources.insert(work->sourceRank());
    }
    EXPECT_EQ(sources, (std::set{1, 2}));
  });
}

TEST(Work, IsCountedNamedAndHasAFuture) {
  on_ranks({2}, [](::c10d::Backend& b) {
    EXPECT_EQ(b.getSequenceNumberForGroup(), 0u);
    Tensors one{torch::ones({2})};
    const auto work = b.allreduce(one);
    const auto future = work->getFuture();
    future->wait();
    EXPECT_EQ(future->value().toTensorVector().at(0)[0].item<float>(), 2);
    EXPECT_TRUE(work->wait());
    EXPECT_TRUE(work->isCompleted() && work->isSuccess());
    EXPECT_EQ(work->getSequencenumber(), 1u);
    EXPECT_EQ(b.getSequenceNumberForGroup(), 1u);
    EXPECT_EQ(work->retrieveOpType(), ::c10d::OpType::ALLREDUCE);
    EXPECT_TRUE(work->result().at(0).is_same(one[0]));
    const auto late = work->getFuture();
    EXPECT_TRUE(late->completed());
  });
}

TEST(Work, MayBeForgotten) {
  on_ranks({2}, [](::c10d::Backend& b) {
    const Tensor sum = torch::ones({1 << 18});
    {
      Tensors one{sum};
      b.allreduce(one);
    }
    b.barrier()->wait();
    EXPECT_EQ(sum[5].item<float>(), 2);
  });
}

TEST(Work, AWaitMayEndBeforeTheOperation) {
  on_ranks({2}, [](::c10d::Backend& b) {
    Tensors one{torch::ones({2})};
    if (b.getRank() == 0) {
      const auto work = b.recv(one, 1, 0);
      EXPECT_THAT(error_of_wait(*work, 50ms), HasSubstr("50 ms"));
      EXPECT_EQ(b.getError(), ::c10d::ErrorType::SUCCESS);
      Tensors go{torch::ones({1})};
      b.send(go, 1, 1)->wait();
      EXPECT_TRUE(work->wait());
      EXPECT_EQ(one[0][0].item<float>(), 3);
    } else {
      Tensors go{torch::zeros({1})};
      b.recv(go, 0, 1)->wait();
      one[0].fill_(3);
      b.send(one, 0, 0)->wait();
    }
  });
}

TEST(Work, OfWhichTheTimeoutPassesFailsTheGroup) {
  const Backends backends({2}, 200ms);
  on_backends(backends, [&](::c10d::Backend& b) {
    if (b.getRank() == 1) return;
    Tensors one{torch::ones({2})};
    const auto work = b.allreduce(one);
    // of the wait, or of the operation, which is the same time
    EXPECT_THAT(error_of_wait(*work),
                AnyOf(HasSubstr("200 ms"), HasSubstr("the timeout has passed")));
    EXPECT_NE(b.getError(), ::c10d::ErrorType::SUCCESS);
    EXPECT_THAT(error_of_wait(*b.barrier()), HasSubstr("all_reduce"));
  });
}

std::string error_of_monitored_barrier(::c10d::Backend& b, bool wait_all_ranks) {
  ::c10d::BarrierOptions opts;
  opts.timeout = 100ms;
  try {
    b.monitoredBarrier(opts, wait_all_ranks);
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  }
  return "nothing";
}

TEST(Group, MonitoredBarrierNamesWhoIsMissing) {
  on_ranks({3}, [](::c10d::Backend& b) {
    b.monitoredBarrier({});
    if (b.getRank() == 1) return;
    EXPECT_THAT(error_of_monitored_barrier(b, false),
                HasSubstr(b.getRank() == 0 ? "Rank 1 failed to pass monitoredBarrier in 100 ms"
                                           : "rank 1 has not come"));
  });
}

TEST(Group, MonitoredBarrierNamesAllWhoAreMissing) {
  on_ranks({3}, [](::c10d::Backend& b) {
    if (b.getRank() != 0) return;
    EXPECT_THAT(error_of_monitored_barrier(b, true),
                HasSubstr("Ranks 1, 2 failed to pass monitoredBarrier in 100 ms"));
  });
}

TEST(Group, AbortEndsWhatIsPending) {
  on_ranks({2}, [](::c10d::Backend& b) {
    if (b.getRank() == 1) {
      b.abort();
      return;
    }
    Tensors one{torch::ones({2})};
    EXPECT_THAT(error_of_wait(*b.allreduce(one)), HasSubstr("abort() of the group by rank 1"));
  });
}

TEST(Group, ABlockingCallCanBeInterrupted) {
  const Backends backends({2});
  std::promise<void> ended;
  std::thread caller([&] {
    BlockingCall::allow_interrupts();
    ::c10d::BarrierOptions opts;
    opts.asyncOp = false;
    EXPECT_THAT(error_of_wait(*backends[0].barrier(opts)), HasSubstr("enough"));
    ended.set_value();
  });
  std::uint64_t call = 0;
  while ((call = BlockingCall::current()) == 0) std::this_thread::yield();
  BlockingCall::interrupt(call - 1, {Code::kInterrupted, "one that has ended"});
  EXPECT_EQ(BlockingCall::current(), call);
  BlockingCall::interrupt(call, {Code::kInterrupted, "enough"});
  EXPECT_EQ(ended.get_future().wait_for(10s), std::future_status::ready);
  caller.join();
  EXPECT_EQ(BlockingCall::current(), 0u);
}

TEST(Group, ABarrierIsCompleteWhenAllRanksHaveCalledIt) {
  std::latch others(2);
  on_ranks({3}, [&](::c10d::Backend& b) {
    if (b.getRank() == 1) others.wait();
    const auto work = b.barrier();
    if (b.getRank() != 1) {
      EXPECT_FALSE(work->isCompleted());
      others.count_down();
    }
    work->wait();
  });
}

/// Rank 0 does nothing until rank 1 has left, and never sends it anything.
TEST(Group, ShutdownDoesNotWaitForOthers) {
  std::promise<void> left;
  on_ranks({2}, [&](::c10d::Backend& b) {
    Tensors one{torch::ones({2})};
    if (b.getRank() == 1) {
      const auto unanswered = b.recv(one, 0, 0);
      const auto begin = std::chrono::steady_clock::now();
      b.shutdown();
      EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
      left.set_value();
      EXPECT_NE(error_of_wait(*unanswered), "nothing");
    } else {
      EXPECT_EQ(left.get_future().wait_for(60s), std::future_status::ready);
      EXPECT_THAT(error_of_wait(*b.allreduce(one)), HasSubstr("has left"));
    }
  });
}

TEST(Group, PartsHaveNamesAndRanksInOrder) {
  on_ranks({3}, [](::c10d::Backend& b) {
    auto options = c10::make_intrusive<StormoOptions>(10s);
    EXPECT_THROW(b.split({}, {0, 1, 2}, options), c10::ValueError);  // no name
    options->group_name = "odd/ends";
    EXPECT_THROW(b.split({}, {2, 1, 0}, options), c10::ValueError);
    const auto part = b.split({}, {0, 2}, options);
    EXPECT_EQ(part.defined(), b.getRank() != 1);
    if (!part.defined()) return;
    Tensors one{torch::full({2}, 1. * b.getRank())};
    part->allreduce(one)->wait();
    EXPECT_EQ(one[0][0].item<float>(), 2);
  });
}

}  // namespace
}  // namespace stormo::c10d
