#pragma once

// A transport that injects faults into another one.

#include <stormo/base/clock.h>
#include <stormo/base/rng.h>
#include <stormo/transport/health.h>
#include <stormo/transport/transport.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace stormo::transport {

/// The faults to inject at one endpoint. Messages are counted from 0, in the order in which this
/// endpoint sends them.
struct FaultPlan {
  std::uint64_t seed = 0;
  /// Each exchange starts late with this probability, by up to `max_delay`.
  double delay_probability = 0;
  Duration max_delay{0};
  /// This message and all later ones to the same peer are never sent, because a stream has no gaps.
  /// The receiver misses its deadline.
  std::optional<std::uint64_t> drop_message;
  /// One bit of this message's payload is flipped before the inner transport gets it, so the
  /// checksum is valid and the receiver gets wrong data. Empty payloads are unchanged.
  std::optional<std::uint64_t> corrupt_message;
  /// Before this message is sent, the endpoint is destroyed, as if its process had died.
  std::optional<std::uint64_t> cut_before_message;
};

/// The faults that were injected, for assertions of tests.
struct FaultCounts {
  std::uint64_t delays = 0;
  std::uint64_t dropped_messages = 0;
  std::uint64_t corrupted_messages = 0;
  std::uint64_t cuts = 0;
};

/// Passes messages on to another transport, with the faults of a plan.
class FaultyTransport final : public Transport {
 public:
  FaultyTransport(std::unique_ptr<Transport> inner, FaultPlan plan)
      : plan_(plan),
        rank_(inner->rank()),
        size_(inner->size()),
        rng_(plan.seed, "transport faults", static_cast<std::uint64_t>(inner->rank())),
        inner_(std::move(inner)) {}

  Rank rank() const override { return rank_; }
  int size() const override { return size_; }

  void fail(Status cause) override {
    const std::lock_guard lock(mutex_);
    failure_.fail(cause);
    if (inner_) inner_->fail(std::move(cause));
    failed_.notify_all();
  }
  Counters counters() const override {
    const std::lock_guard lock(mutex_);
    return inner_ ? inner_->counters() : last_counters_;
  }
  FaultCounts faults() const {
    const std::lock_guard lock(mutex_);
    return counts_;
  }

  Status exchange(std::span<const Outgoing> sends, std::span<const Incoming> receives,
                  Deadline by) override {
    delay(by);
    if (failure_.failed()) return failure_.status();
    std::vector<Outgoing> kept;
    std::vector<std::vector<std::byte>> copies;
    for (const Outgoing& message : sends) {
      const std::uint64_t index = next_message_++;
      if (plan_.cut_before_message == index) return cut();
      if (plan_.drop_message == index) silent_.insert(message.to);
      if (silent_.contains(message.to)) {
        count(&FaultCounts::dropped_messages);
        continue;
      }
      kept.push_back(message);
      if (plan_.corrupt_message == index) corrupt(kept.back(), copies);
    }
    return inner_->exchange(kept, receives, by);
  }

 private:
  void count(std::uint64_t FaultCounts::*which) {
    const std::lock_guard lock(mutex_);
    ++(counts_.*which);
  }

  void delay(Deadline by) {
    if (plan_.delay_probability <= 0 || rng_.uniform() >= plan_.delay_probability) return;
    const double share = rng_.uniform();
    const auto late =
        static_cast<Duration::rep>(share * static_cast<double>(plan_.max_delay.count()));
    std::unique_lock lock(mutex_);
    ++counts_.delays;
    failed_.wait_for(lock, std::min(Duration(late), by.remaining()),
                     [this] { return failure_.failed(); });
  }

  void corrupt(Outgoing& message, std::vector<std::vector<std::byte>>& copies) {
    if (message.bytes.empty()) return;
    std::vector<std::byte>& copy = copies.emplace_back(message.bytes.begin(), message.bytes.end());
    const std::uint64_t bit = rng_.below(8 * copy.size());
    copy[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    message.bytes = copy;
    count(&FaultCounts::corrupted_messages);
  }

  Status cut() {
    const std::lock_guard lock(mutex_);
    ++counts_.cuts;
    failure_.fail({Code::kPeerLost, "cut by the fault plan"});
    last_counters_ = inner_->counters();
    inner_.reset();
    return failure_.status();
  }

  const FaultPlan plan_;
  const Rank rank_;
  const int size_;
  Rng rng_;  // exchanging thread only, as the next two
  std::uint64_t next_message_ = 0;
  std::set<Rank> silent_;
  Health failure_;
  mutable std::mutex mutex_;  // guards what follows; only exchange() resets inner_
  std::condition_variable failed_;
  std::unique_ptr<Transport> inner_;
  Counters last_counters_;
  FaultCounts counts_;
};

inline std::unique_ptr<FaultyTransport> make_faulty(std::unique_ptr<Transport> inner,
                                                    FaultPlan plan) {
  return std::make_unique<FaultyTransport>(std::move(inner), plan);
}

}  // namespace stormo::transport
