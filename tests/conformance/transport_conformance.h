#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stormo/base/status.h>
#include <stormo/transport/transport.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "tests/sanitized.h"

/// What every Transport must do. A transport joins with a few lines:
///
///   INSTANTIATE_TEST_SUITE_P(Tcp, TransportConformance,
///                            ::testing::Values(FabricFactory{"tcp", make_fabric}), fabric_name);
///
/// where make_fabric(n) returns the endpoints of ranks 0 .. n-1, connected. Ranks are threads.
namespace stormo::transport {

using Fabric = std::vector<std::unique_ptr<Transport>>;

struct FabricFactory {
  std::string name;
  std::function<Fabric(int)> make;
};

inline std::string fabric_name(const ::testing::TestParamInfo<FabricFactory>& param) {
  return param.param.name;
}

class TransportConformance : public ::testing::TestWithParam<FabricFactory> {
 protected:
  using Bytes = std::vector<std::byte>;

  static Deadline soon() { return Deadline::after(std::chrono::seconds(30)); }

  Fabric make(int n) { return GetParam().make(n); }

  /// Runs `body` once per rank, each in a thread of its own.
  static void run(const Fabric& fabric, const std::function<void(Transport&)>& body) {
    std::vector<std::thread> threads;
    for (const auto& endpoint : fabric) threads.emplace_back([&] { body(*endpoint); });
    for (std::thread& t : threads) t.join();
  }

  /// Bytes that depend on who sends what to whom.
  static Bytes pattern(std::size_t size, std::uint64_t salt) {
    Bytes out(size);
    std::uint64_t x = salt * 0x9E3779B97F4A7C15ull + 1;
    for (std::size_t i = 0; i < size; i += sizeof(x)) {
      x ^= x << 13;
      x ^= x >> 7;
      x ^= x << 17;
      std::memcpy(out.data() + i, &x, std::min(sizeof(x), size - i));
    }
    return out;
  }
};

TEST_P(TransportConformance, KnowsRankAndSize) {
  const Fabric fabric = make(3);
  ASSERT_EQ(fabric.size(), 3u);
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(fabric[static_cast<std::size_t>(r)]->rank(), r);
    EXPECT_EQ(fabric[static_cast<std::size_t>(r)]->size(), 3);
  }
}

TEST_P(TransportConformance, AWorldOfOneExchangesNothing) {
  const Fabric fabric = make(1);
  EXPECT_TRUE(fabric[0]->exchange({}, {}, soon()).ok());
  EXPECT_EQ(fabric[0]->counters().messages_sent, 0u);
}

TEST_P(TransportConformance, CarriesMessagesOfEverySize) {
  const std::vector<std::size_t> sizes = {0,    1,    7,     64,     127,      4093,
                                          4096, 8191, 65537, 300007, 1u << 20, 0};
  run(make(2), [&](Transport& t) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const Bytes expected = pattern(sizes[i], i);
      if (t.rank() == 0) {
        ASSERT_TRUE(t.send(1, i, expected, soon()).ok());
      } else {
        Bytes got(sizes[i], std::byte{0xEE});
        const Status done = t.recv(0, i, got, soon());
        ASSERT_TRUE(done.ok()) << done.to_string();
        ASSERT_EQ(got, expected) << sizes[i] << " bytes";
      }
    }
  });
}

TEST_P(TransportConformance, KeepsTheOrderBetweenTwoRanks) {
  constexpr std::uint32_t kMessages = 500;
  run(make(2), [&](Transport& t) {
    for (std::uint32_t i = 0; i < kMessages; ++i) {
      if (t.rank() == 0) {
        ASSERT_TRUE(t.send(1, 5, std::as_bytes(std::span(&i, 1)), soon()).ok());
      } else {
        std::uint32_t got = 0;
        ASSERT_TRUE(t.recv(0, 5, std::as_writable_bytes(std::span(&got, 1)), soon()).ok());
        ASSERT_EQ(got, i);
      }
    }
  });
}

/// Every rank sends more than any buffer holds before it could receive: only an exchange that
/// progresses all parts at once gets through.
TEST_P(TransportConformance, RingsOfAnySizeCannotDeadlock) {
  constexpr std::size_t kBytes = (std::size_t{kThreadSanitizer ? 1 : 12} << 20) + 13;
  for (const int n : {2, 3, 5}) {
    run(make(n), [&](Transport& t) {
      const int right = (t.rank() + 1) % n;
      const int left = (t.rank() + n - 1) % n;
      const Bytes mine = pattern(kBytes, static_cast<std::uint64_t>(t.rank()));
      Bytes got(kBytes);
      const Outgoing out{right, 9, mine};
      const Incoming in{left, 9, got};
      const Status done = t.exchange({&out, 1}, {&in, 1}, soon());
      ASSERT_TRUE(done.ok()) << done.to_string();
      EXPECT_TRUE(got == pattern(kBytes, static_cast<std::uint64_t>(left)));
    });
  }
}

TEST_P(TransportConformance, EveryoneExchangesWithEveryoneAtOnce) {
  for (const int n : {2, 3, 4, 7}) {
    run(make(n), [&](Transport& t) {
      const auto size = [n](Rank from, Rank to) {
        return static_cast<std::size_t>(from * n + to) * 997;
      };
      const auto salt = [n](Rank from, Rank to) {
        return static_cast<std::uint64_t>(from * n + to);
      };
      std::vector<Bytes> out(static_cast<std::size_t>(n));
      std::vector<Bytes> in(static_cast<std::size_t>(n));
      std::vector<Outgoing> sends;
      std::vector<Incoming> receives;
      for (Rank p = 0; p < n; ++p) {
        if (p == t.rank()) continue;
        const auto i = static_cast<std::size_t>(p);
        out[i] = pattern(size(t.rank(), p), salt(t.rank(), p));
        in[i].resize(size(p, t.rank()));
        sends.push_back({p, 77, out[i]});
        receives.push_back({p, 77, in[i]});
      }
      for (int repeat = 0; repeat < 3; ++repeat) {
        const Status done = t.exchange(sends, receives, soon());
        ASSERT_TRUE(done.ok()) << done.to_string();
      }
      for (Rank p = 0; p < n; ++p) {
        if (p == t.rank()) continue;
        EXPECT_EQ(in[static_cast<std::size_t>(p)], pattern(size(p, t.rank()), salt(p, t.rank())));
      }
    });
  }
}

TEST_P(TransportConformance, SeveralPartsWithOnePeerKeepTheirOrder) {
  constexpr std::size_t kParts = 37;
  run(make(2), [&](Transport& t) {
    const Rank peer = 1 - t.rank();
    std::vector<Bytes> out, in;
    std::vector<Outgoing> sends;
    std::vector<Incoming> receives;
    for (std::size_t i = 0; i < kParts; ++i) {
      const std::size_t size = i % 5 == 0 ? 0 : i * i * 131;
      out.push_back(pattern(size, i + 100 * static_cast<std::size_t>(t.rank())));
      in.emplace_back(size);
    }
    for (std::size_t i = 0; i < kParts; ++i) {
      sends.push_back({peer, i, out[i]});
      receives.push_back({peer, i, in[i]});
    }
    const Status done = t.exchange(sends, receives, soon());
    ASSERT_TRUE(done.ok()) << done.to_string();
    for (std::size_t i = 0; i < kParts; ++i) {
      EXPECT_EQ(in[i], pattern(in[i].size(), i + 100 * static_cast<std::size_t>(peer)));
    }
  });
}

TEST_P(TransportConformance, ReceivesMayBePostedInOtherPortionsThanSends) {
  run(make(2), [&](Transport& t) {
    if (t.rank() == 0) {
      const Bytes a = pattern(10, 1), b = pattern(70001, 2), c = pattern(3, 3);
      const std::vector<Outgoing> sends = {{1, 1, a}, {1, 2, b}, {1, 3, c}};
      ASSERT_TRUE(t.exchange(sends, {}, soon()).ok());
    } else {
      Bytes a(10), b(70001), c(3);
      ASSERT_TRUE(t.recv(0, 1, a, soon()).ok());
      const std::vector<Incoming> rest = {{0, 2, b}, {0, 3, c}};
      ASSERT_TRUE(t.exchange({}, rest, soon()).ok());
      EXPECT_EQ(a, pattern(10, 1));
      EXPECT_EQ(b, pattern(70001, 2));
      EXPECT_EQ(c, pattern(3, 3));
    }
  });
}

TEST_P(TransportConformance, RefusesItselfAndRanksOutsideOfTheGroup) {
  const Fabric fabric = make(2);
  const Bytes data = pattern(4, 0);
  for (const Rank to : {0, -1, 2}) {
    EXPECT_EQ(fabric[0]->send(to, 1, data, soon()).code(), Code::kInvalidArgument) << to;
  }
}

TEST_P(TransportConformance, ATagMismatchIsFoundByTheReceiver) {
  run(make(2), [&](Transport& t) {
    Bytes data(100, std::byte{1});
    if (t.rank() == 0) {
      (void)t.send(1, 0x51, data, soon());
      return;
    }
    const Status got = t.recv(0, 0x52, data, soon());
    EXPECT_EQ(got.code(), Code::kMismatch) << got.to_string();
    EXPECT_EQ(data, Bytes(100, std::byte{1})) << "the payload must not be delivered";
    EXPECT_EQ(t.recv(0, 0x51, data, soon()), got) << "a failed endpoint stays failed";
  });
}

TEST_P(TransportConformance, ALengthMismatchIsFoundByTheReceiver) {
  for (const std::size_t size : {std::size_t{99}, std::size_t{101}, std::size_t{0}}) {
    run(make(2), [&](Transport& t) {
      if (t.rank() == 0) {
        const Bytes data = pattern(100, 4);
        (void)t.send(1, 3, data, soon());
        return;
      }
      Bytes data(size, std::byte{2});
      const Status got = t.recv(0, 3, data, soon());
      EXPECT_EQ(got.code(), Code::kMismatch) << got.to_string();
      EXPECT_THAT(got.message(), ::testing::HasSubstr("100"));
      EXPECT_EQ(data, Bytes(size, std::byte{2})) << "the payload must not be delivered";
    });
  }
}

TEST_P(TransportConformance, AReceiveThatNobodyServesEndsAtItsDeadline) {
  const Fabric fabric = make(2);
  Bytes data(8);
  const Status got = fabric[0]->recv(1, 1, data, Deadline::after(std::chrono::milliseconds(30)));
  EXPECT_EQ(got.code(), Code::kDeadlineExceeded);
  EXPECT_THAT(got.message(), ::testing::HasSubstr("1")) << "names the peer";
  EXPECT_EQ(fabric[0]->recv(1, 1, data, soon()), got) << "a failed endpoint stays failed";
}

TEST_P(TransportConformance, FailFromAnotherThreadEndsTheWaitWithTheFirstCause) {
  const Fabric fabric = make(2);
  const Status cause(Code::kPeerLost, "rank 7 on host b died");
  std::thread judge([&] {
    fabric[0]->fail(cause);
    fabric[0]->fail(Status(Code::kIo, "a later cause"));
  });
  Bytes data(8);
  const Status got = fabric[0]->recv(1, 1, data, soon());
  judge.join();
  EXPECT_EQ(got, cause);
  EXPECT_EQ(fabric[0]->exchange({}, {}, soon()), cause);
}

TEST_P(TransportConformance, CountsMessagesAndPayloadExactly) {
  const Fabric fabric = make(3);
  run(fabric, [&](Transport& t) {
    const int right = (t.rank() + 1) % 3;
    const int left = (t.rank() + 2) % 3;
    const Bytes a = pattern(1000, 1), b;
    Bytes c(1000), d;
    for (int i = 0; i < 5; ++i) {
      const std::vector<Outgoing> sends = {{right, 1, a}, {right, 2, b}};
      const std::vector<Incoming> receives = {{left, 1, c}, {left, 2, d}};
      ASSERT_TRUE(t.exchange(sends, receives, soon()).ok());
    }
  });
  for (const auto& t : fabric) {
    const Counters c = t->counters();
    EXPECT_EQ(c.messages_sent, 10u);
    EXPECT_EQ(c.messages_received, 10u);
    EXPECT_EQ(c.payload_bytes_sent, 5000u);
    EXPECT_EQ(c.payload_bytes_received, 5000u);
  }
}

}  // namespace stormo::transport
