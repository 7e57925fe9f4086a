#pragma once

#include <gmock/gmock.h>

#include "tests/conformance/communicator_conformance.h"
#include "tests/conformance/every_operation.h"

/// For groups whose failures reach every rank by themselves, and which know what all ranks called.
namespace stormo::comm {

class CommunicatorFailure : public CommunicatorConformance {
 protected:
  static void on_each_until_it_fails(const Body& body) { GetParam().run(body, false); }
};

/// What the ranks call: rank 0 differs from the others.
struct DifferentCalls {
  const char* name;
  std::function<Status(Communicator&)> first;
  std::function<Status(Communicator&)> others;
};

inline std::vector<DifferentCalls> different_calls() {
  const auto reduce = [](std::size_t n, ReduceOp op) {
    return [=](Communicator& c) {
      std::vector<float> x(n, 1.0f);
      return c.all_reduce(x, op);
    };
  };
  const auto broadcast = [](Rank root) {
    return [=](Communicator& c) {
      float x = 1;
      return c.broadcast(std::span(&x, 1), root);
    };
  };
  const auto reduce_integers = [](Communicator& c) {
    std::int32_t x[10] = {};
    return c.all_reduce(x, ReduceOp::kSum);
  };
  const auto gather = [](std::size_t n) {
    return [=](Communicator& c) {
      std::vector<float> in(n), out(n * static_cast<std::size_t>(c.size()));
      return c.all_gather(in, out);
    };
  };
  const auto in_order = [=](auto first, auto second) {
    return [=](Communicator& c) {
      const Status s = first(c);
      return s.ok() ? second(c) : s;
    };
  };
  const auto barrier = [](Communicator& c) { return c.barrier(); };
  const auto finalize = [](Communicator& c) { return c.finalize(Deadline::never()); };
  return {
      {"count", reduce(10, ReduceOp::kSum), reduce(11, ReduceOp::kSum)},
      {"large count", reduce(10000, ReduceOp::kSum), reduce(10001, ReduceOp::kSum)},
      {"small or large", reduce(10, ReduceOp::kSum), reduce(100000, ReduceOp::kSum)},
      {"reduction", reduce(10, ReduceOp::kSum), reduce(10, ReduceOp::kMax)},
      {"dtype", reduce(10, ReduceOp::kSum), reduce_integers},
      {"kind", reduce(10, ReduceOp::kSum), barrier},
      {"root", broadcast(0), broadcast(1)},
      {"order", in_order(reduce(5000, ReduceOp::kSum), gather(5000)),
       in_order(gather(5000), reduce(5000, ReduceOp::kSum))},
      {"finalize", finalize, reduce(10, ReduceOp::kSum)},
  };
}

TEST_P(CommunicatorFailure, DifferentCallsRaiseOnEveryRankWithATable) {
  for (const DifferentCalls& calls : different_calls()) {
    on_each_until_it_fails([&](Communicator& c) {
      EXPECT_OK(c.barrier());
      const TimePoint start = std::chrono::steady_clock::now();
      Status s = c.rank() == 0 ? calls.first(c) : calls.others(c);
      // who needs nothing of the others learns it with its next call
      if (s.ok()) s = c.barrier();
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1)) << calls.name;
      EXPECT_EQ(s.code(), Code::kMismatch) << calls.name << ": " << s.to_string();
      for (int r = 0; r < c.size(); ++r) {
        EXPECT_NE(s.message().find("rank " + std::to_string(r) + ": "), std::string::npos)
            << s.to_string();
      }
      EXPECT_EQ(c.barrier().code(), Code::kMismatch) << "the group stays failed";
      EXPECT_EQ(c.status().code(), Code::kMismatch);
    });
  }
}

TEST_P(CommunicatorFailure, AFailureEndsEveryWait) {
  on_each_until_it_fails([](Communicator& c) {
    if (c.rank() == 1) return c.fail({Code::kIo, "rank 1: disk full"});
    for (const Status& s : {c.barrier(), c.submit(Request{}).wait(), c.status()}) {
      EXPECT_EQ(s.code(), Code::kIo) << s.to_string();
      EXPECT_NE(s.message().find("disk full"), std::string::npos) << s.to_string();
    }
  });
}

TEST_P(CommunicatorFailure, EveryUseAfterAFailureReturnsItsCause) {
  on_each_until_it_fails([](Communicator& c) {
    if (c.rank() == 0) c.fail({Code::kIo, "rank 0: disk full"});
    while (c.status().ok()) std::this_thread::yield();
    for (const NamedOperation& operation : every_operation()) {
      if (c.size() == 1 && operation.name == "send_and_recv") continue;
      const Status s = operation.run(c, 1000, Deadline::never());
      EXPECT_EQ(s.code(), Code::kIo) << operation.name << ": " << s.to_string();
      EXPECT_NE(s.message().find("rank 0: disk full"), std::string::npos) << s.to_string();
    }
    EXPECT_EQ(c.finalize(Deadline::never()).code(), Code::kIo);
    Work work = c.submit(Request{});
    EXPECT_EQ(work.wait().code(), Code::kIo);
    EXPECT_EQ(work.wait().code(), Code::kIo) << "a second wait returns the same";
    work.then([](const Status& s) { EXPECT_EQ(s.code(), Code::kIo) << s.to_string(); });
  });
}

TEST_P(CommunicatorFailure, ADeadlineEndsTheWaitAndTheGroup) {
  on_each_until_it_fails([](Communicator& c) {
    if (c.rank() != 0) {
      while (c.status().ok()) std::this_thread::yield();
      return;
    }
    const Status s = c.barrier(Deadline::after(std::chrono::milliseconds(60)));
    EXPECT_EQ(s.code(), Code::kDeadlineExceeded) << s.to_string();
  });
}

TEST_P(CommunicatorFailure, ADeadlineOfOneRankEndsTheWaitsOfAll) {
  on_each_until_it_fails([](Communicator& c) {
    if (c.rank() == c.size() - 1) {
      while (c.status().ok()) std::this_thread::yield();
      return;
    }
    const Status s = c.barrier(c.rank() == 0 ? Deadline::after(std::chrono::milliseconds(60))
                                             : Deadline::never());
    EXPECT_EQ(s.code(), Code::kDeadlineExceeded) << s.to_string();
  });
}

TEST_P(CommunicatorFailure, ADeadlineEndsTheGroupAlsoWhileACallWaitsItsTurn) {
  on_each_until_it_fails([](Communicator& c) {
    if (c.rank() != 0) {
      while (c.status().ok()) std::this_thread::yield();
      return;
    }
    std::vector<float> x(5000), y(5000);
    const Buffer first = x;
    Work before = c.all_reduce_async({&first, 1}, ReduceOp::kSum);
    const Status s =
        c.all_reduce(y, ReduceOp::kSum, Deadline::after(std::chrono::milliseconds(60)));
    EXPECT_EQ(s.code(), Code::kDeadlineExceeded) << s.to_string();
    EXPECT_NE(s.message().find("the deadline of all_reduce passed"), std::string::npos)
        << s.to_string();
    EXPECT_TRUE(before.test()) << "nobody uses the buffers any more";
    EXPECT_EQ(before.wait().code(), Code::kDeadlineExceeded);
    EXPECT_EQ(c.status().code(), Code::kDeadlineExceeded);
  });
}

TEST_P(CommunicatorFailure, AMessageOfAnotherFormIsRefused) {
  on_each_until_it_fails([](Communicator& c) {
    std::array<float, 4> x{};
    std::array<double, 2> y{};  // of as many bytes
    if (c.rank() == 0) {
      const Status sent = c.send(x, 1, 7);
      EXPECT_TRUE(sent.ok() || sent.code() == Code::kMismatch) << sent.to_string();
    }
    if (c.rank() == 1) {
      const Status received = c.recv(y, 0, 7);
      EXPECT_EQ(received.code(), Code::kMismatch) << received.to_string();
      EXPECT_THAT(received.message(), testing::HasSubstr("4 float32 with tag 7, where 2 float64"));
    }
    while (c.status().ok()) std::this_thread::yield();
    EXPECT_EQ(c.barrier().code(), Code::kMismatch);
  });
}

TEST_P(CommunicatorFailure, ADeadlineEndsTheWaitForAMessage) {
  on_each_until_it_fails([](Communicator& c) {
    std::array<float, 4> x{};
    Rank source = kAnyRank;
    if (c.rank() == 1) {
      Work other = c.recv_any_async(x, 2, source);
      const Status late = c.recv(x, 0, 1, Deadline::after(std::chrono::milliseconds(50)));
      EXPECT_EQ(late.code(), Code::kDeadlineExceeded) << late.to_string();
      EXPECT_EQ(other.wait().code(), Code::kDeadlineExceeded);
    }
    while (c.status().ok()) std::this_thread::yield();
    EXPECT_EQ(c.send(x, c.rank() == 0 ? 1 : 0, 1).code(), Code::kDeadlineExceeded);
  });
}

}  // namespace stormo::comm
