#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <stormo/membership/register.h>

#include "tests/conformance/register_records.h"
#include "tests/register_history.h"

namespace stormo::membership::test {

/// A register of this job; clients come and go.
class RegisterUnderTest {
 public:
  virtual ~RegisterUnderTest() = default;
  virtual std::unique_ptr<Register> client() = 0;
};
struct RegisterEngine {
  const char* name;
  std::function<std::unique_ptr<RegisterUnderTest>()> start;
};
inline void PrintTo(const RegisterEngine& engine, std::ostream* out) { *out << engine.name; }

/// A client whose calls are written into a history.
class RecordedClient {
 public:
  RecordedClient(int number, std::unique_ptr<Register> reg, stormo::test::RegisterHistory& history)
      : number_(number), register_(std::move(reg)), history_(&history) {}

  Result<EpochRecord> read(Deadline by) {
    const std::size_t call = history_->read(number_);
    Result<EpochRecord> out = register_->read(by);
    if (out.ok()) end(call, Seen::kRead, *out);
    return out;
  }
  Result<Register::Swap> compare_and_swap(const EpochRecord& next, Deadline by) {
    const std::size_t call = history_->change(number_, next.epoch - 1, encode_record(next));
    Result<Register::Swap> out = register_->compare_and_swap(next, by);
    if (out.ok()) end(call, out->done ? Seen::kChanged : Seen::kMismatch, out->present);
    return out;
  }

 private:
  using Seen = stormo::test::RegisterCall::Result;
  void end(std::size_t call, Seen result, const EpochRecord& present) {
    history_->end(call, result, present.epoch,
                  present.epoch == 0 ? std::string() : encode_record(present));
  }
  int number_;
  std::unique_ptr<Register> register_;
  stormo::test::RegisterHistory* history_;
};

/// Raises the epoch until it has done so `times` times, or `is_over`; the times that it did. Calls
/// that fail are only counted.
struct Raised {
  int times = 0, failures = 0;
};
inline Raised raise(
    RecordedClient& client, int number, int times, Duration each,
    const std::function<bool()>& is_over = [] { return false; }) {
  Raised raised;
  std::uint64_t tries = 0;
  Epoch epoch = 0;
  while (raised.times < times && !is_over()) {
    const std::uint64_t hash = static_cast<std::uint64_t>(number + 1) << 32 | ++tries;
    const auto swap = client.compare_and_swap(record(epoch + 1, hash), Deadline::after(each));
    raised.times += swap.ok() && swap->done ? 1 : 0;
    raised.failures += swap.ok() ? 0 : 1;
    if (swap.ok()) {
      epoch = swap->present.epoch;
    } else if (const auto present = client.read(Deadline::after(each)); present.ok()) {
      epoch = present->epoch;
    }
  }
  return raised;
}

/// One of the three members of a register is away at a time, for `turns` times, and misses a change
/// each time; meanwhile three clients change the register, at least `changes` times.
struct MembersInTurns {
  std::function<std::unique_ptr<Register>()> client;
  std::function<void(int)> take_away;
  std::function<void(int)> bring_back;
  int turns = 0;
  Duration each_call{0};
  int changes = 0;
};
inline void expect_order(const MembersInTurns& m) {
  stormo::test::RegisterHistory history;
  std::atomic<bool> is_over{false};
  std::atomic<int> raised{0};
  std::vector<std::thread> threads;
  for (int c = 0; c < 3; ++c) {
    threads.emplace_back([&, c] {
      RecordedClient client(c, m.client(), history);
      raised += raise(client, c, 1'000'000, m.each_call, [&] { return is_over.load(); }).times;
      EXPECT_TRUE(client.read(soon()).ok());
    });
  }
  const auto watcher = m.client();
  for (int i = 0; i < m.turns; ++i) {
    m.take_away(i % 3);
    const auto before = watcher->read(soon());
    EXPECT_TRUE(before.ok()) << before.status().to_string();
    for (auto now = before; now.ok() && now->epoch < before->epoch + 2;)
      now = watcher->read(soon());
    m.bring_back(i % 3);
  }
  is_over = true;
  for (std::thread& t : threads) t.join();
  EXPECT_GE(raised.load(), m.changes);
  EXPECT_EQ(history.check(), "");
}

class RegisterConformance : public ::testing::TestWithParam<RegisterEngine> {
 protected:
  std::unique_ptr<RegisterUnderTest> under_test_ = GetParam().start();
};

TEST_P(RegisterConformance, IsEmptyAtFirst) {
  const auto present = under_test_->client()->read(soon());
  ASSERT_TRUE(present.ok()) << present.status().to_string();
  EXPECT_EQ(*present, EpochRecord{});
}

TEST_P(RegisterConformance, WhatIsWrittenIsReadByOthers) {
  const auto one = under_test_->client(), two = under_test_->client();
  for (Epoch epoch = 1; epoch < 4; ++epoch) {
    const auto swap = one->compare_and_swap(record(epoch, epoch), soon());
    ASSERT_TRUE(swap.ok()) << swap.status().to_string();
    EXPECT_TRUE(swap->done);
    EXPECT_EQ(swap->present, record(epoch, epoch));
    const auto present = two->read(soon());
    ASSERT_TRUE(present.ok()) << present.status().to_string();
    EXPECT_EQ(*present, record(epoch, epoch));
  }
}

TEST_P(RegisterConformance, AnEpochIsWrittenOnce) {
  const auto one = under_test_->client(), two = under_test_->client();
  ASSERT_TRUE(one->compare_and_swap(record(1, 11), soon())->done);
  for (const Epoch epoch : {1U, 3U}) {  // too late, and too early
    const auto swap = two->compare_and_swap(record(epoch, 22), soon());
    ASSERT_TRUE(swap.ok()) << swap.status().to_string();
    EXPECT_FALSE(swap->done);
    EXPECT_EQ(swap->present, record(1, 11));
  }
  EXPECT_EQ(*one->read(soon()), record(1, 11));
}

TEST_P(RegisterConformance, RefusesWhatIsNoRecord) {
  const auto reg = under_test_->client();
  EpochRecord wrong = record(1, 1);
  wrong.donors = {"c/0"};
  const auto swap = reg->compare_and_swap(wrong, soon());
  EXPECT_EQ(swap.status().code(), Code::kInvalidArgument) << swap.status().to_string();
  EXPECT_EQ(reg->read(soon())->epoch, 0U);
}

TEST_P(RegisterConformance, HoldsARecordOfAThousandMembers) {
  EpochRecord large = record(1, 1);
  for (int i = 0; i < 1000; ++i) {
    large.members.push_back({.identity = "host-" + std::to_string(i) + "/0",
                             .incarnation = 1,
                             .address = "10.0.0.1:" + std::to_string(i)});
  }
  ASSERT_TRUE(under_test_->client()->compare_and_swap(large, soon())->done);
  EXPECT_EQ(*under_test_->client()->read(soon()), large);
}

TEST_P(RegisterConformance, AMissedDeadlineIsAnErrorAndNoHarm) {
  const auto reg = under_test_->client();
  const auto swap = reg->compare_and_swap(record(1, 5), Deadline::after(Duration::zero()));
  EXPECT_EQ(swap.status().code(), Code::kDeadlineExceeded) << swap.status().to_string();
  const auto present = reg->read(soon());
  ASSERT_TRUE(present.ok()) << present.status().to_string();
  EXPECT_LE(present->epoch, 1U);
  EXPECT_TRUE(reg->compare_and_swap(record(present->epoch + 1, 6), soon())->done);
}

TEST_P(RegisterConformance, CallsOfAllClientsHaveAnOrder) {
  stormo::test::RegisterHistory history;
  std::vector<std::thread> threads;
  std::atomic<Epoch> failures{0};
  for (int c = 0; c < 3; ++c) {
    threads.emplace_back([&, c] {
      RecordedClient client(c, under_test_->client(), history);
      const Raised raised = raise(client, c, 10, std::chrono::seconds(30));
      EXPECT_EQ(raised.times, 10);
      failures += static_cast<Epoch>(raised.failures);
      EXPECT_TRUE(client.read(soon()).ok());
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(history.check(), "");
  // a change whose outcome is not known may have taken place
  const Epoch present = under_test_->client()->read(soon())->epoch;
  EXPECT_GE(present, 30U);
  EXPECT_LE(present, 30U + failures);
}

}  // namespace stormo::membership::test
