#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <stormo/comm/mailbox/mailbox.h>
#include <stormo/comm/mailbox/slice.h>

/// Two mailboxes whose peers are queues of this process, with hooks in what takes time.
namespace stormo::comm::test {

/// What both ends of a wire share.
struct Wire {
  struct Letter {
    MessageRecord record;
    std::vector<std::byte> payload;
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::array<std::deque<Letter>, 2> to = {};           // by receiver; guarded by mutex
  std::array<std::uint32_t, 2> rung = {};              // by receiver; guarded by mutex
  std::function<Status(std::size_t offset)> on_bring;  ///< before each piece of a long message
  std::array<std::atomic<bool>, 2> sends_ended = {};   ///< by sender
  std::atomic<int> num_brought = 0;                    ///< pieces
  Status broken;                                       ///< what pull() says; guarded by mutex
};

class WirePeers final : public Peers {
 public:
  WirePeers(std::shared_ptr<Wire> wire, Rank own) : wire_(std::move(wire)), own_(own) {}

  void put(const Matching::Outgoing& o) override { queued_.push_back(o); }
  Result<bool> push(Matching& matching, Matching::Effects& out) override {
    if (queued_.empty()) return false;
    {
      const std::lock_guard lock(wire_->mutex);
      for (const Matching::Outgoing& o : queued_) {
        at(wire_->to, other()).push_back({o.record, {o.payload.begin(), o.payload.end()}});
      }
      ++at(wire_->rung, other());
    }
    wire_->changed.notify_all();
    for (const Matching::Outgoing& o : queued_) {
      if (o.send != 0) matching.sent(o.to, o.send, out);
    }
    queued_.clear();
    return true;
  }
  Result<bool> pull(Matching& matching, Matching::Effects& out) override {
    std::deque<Wire::Letter> letters;
    {
      const std::lock_guard lock(wire_->mutex);
      if (!wire_->broken.ok()) return wire_->broken;
      letters.swap(at(wire_->to, own_));
    }
    for (const Wire::Letter& l : letters) {
      STORMO_RETURN_IF_ERROR(matching.arrived(other(), l.record, l.payload, out));
    }
    return !letters.empty();
  }
  bool is_busy() const override { return !queued_.empty(); }
  bool can_read(const Matching::Fetch&) override { return true; }
  Status bring(const Matching::Fetch& fetch, std::size_t offset, std::span<std::byte> to) override {
    if (wire_->on_bring) STORMO_RETURN_IF_ERROR(wire_->on_bring(offset));
    std::memcpy(to.data(), reinterpret_cast<const std::byte*>(fetch.offer.address) + offset,
                to.size());
    ++wire_->num_brought;
    if (!at(wire_->sends_ended, other())) return {};
    return {Code::kCancelled, "the sender has ended its sends"};
  }
  void abandon(bool offers) override {
    queued_.clear();
    if (offers) at(wire_->sends_ended, own_) = true;
  }
  Watch watch(Rank peer) override {
    const std::lock_guard lock(wire_->mutex);
    return {.peer = peer, .number = at(wire_->rung, own_)};
  }
  void sleep(Watch& watch, bool, Deadline by) override {
    std::unique_lock lock(wire_->mutex);
    wire_->changed.wait_until(lock, by.when(),
                              [&] { return at(wire_->rung, own_) != watch.number; });
  }
  void wake() override {
    const std::lock_guard lock(wire_->mutex);
    ++at(wire_->rung, own_);
    wire_->changed.notify_all();
  }

 private:
  template <class T>
  static T& at(std::array<T, 2>& both, Rank rank) {
    return both[static_cast<std::size_t>(rank)];
  }
  Rank other() const { return 1 - own_; }

  const std::shared_ptr<Wire> wire_;
  const Rank own_;
  std::deque<Matching::Outgoing> queued_;
};

/// Of rank 0 and rank 1.
struct WiredMailboxes {
  WiredMailboxes() {
    for (Rank r = 0; r < 2; ++r) {
      Mailbox::Parts parts;
      parts.size = 2;
      parts.host = std::make_unique<WirePeers>(wire, r);
      parts.in_host = {true, true};
      parts.health = health[static_cast<std::size_t>(r)];
      parts.activity = activities.add("messages", r);
      parts.give_up = [this, r](const Operation&, Status outcome) {
        if (on_give_up) on_give_up();
        for (const std::size_t told : {0U, 1U}) {
          if (are_told || std::cmp_equal(told, r)) health[told]->fail(outcome);
        }
      };
      parts.done = [](const Operation&, TimePoint) {};
      of[static_cast<std::size_t>(r)] = std::make_unique<Mailbox>(std::move(parts));
    }
  }
  const std::shared_ptr<Wire> wire = std::make_shared<Wire>();
  const std::array<std::shared_ptr<transport::Health>, 2> health = {
      std::make_shared<transport::Health>(), std::make_shared<transport::Health>()};
  bool are_told = true;  ///< both, when one fails
  Activities activities;
  std::function<void()> on_give_up;
  std::array<std::unique_ptr<Mailbox>, 2> of;
};

}  // namespace stormo::comm::test
