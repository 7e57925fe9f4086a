#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <stormo/membership/member_links.h>

namespace stormo::membership::test {

/// Ends only a test that is broken.
inline constexpr std::chrono::seconds kPatience{30};

/// A member's links, and what they have told it.
class LinkedMember {
 public:
  explicit LinkedMember(protocol::MemberId me, const transport::Secret& secret,
                        transport::HostPort address = {.host = "127.0.0.1", .port = 0})
      : me_(std::move(me)) {
    auto links =
        MemberLinks::start({.me = me_,
                            .address = std::move(address),
                            .ports = {},
                            .secret = secret,
                            .on_message = [this](const auto& message) { note(messages_, message); },
                            .on_ended = [this](const auto& id) { note(ended_, id); },
                            .on_tick =
                                [this](TimePoint) {
                                  note(ticks_, 0);
                                  return TimePoint::max();
                                },
                            .on_event = [this](const auto& line) { note(events_, line); }});
    EXPECT_TRUE(links.ok()) << links.status().to_string();
    if (links.ok()) links_ = std::move(*links);
  }

  MemberLinks& links() { return *links_; }
  protocol::ElasticEntry entry() const {
    return {.id = me_, .address = transport::to_string(links_->address())};
  }
  protocol::MemberStatus status(std::uint64_t progress) const {
    return {.from = me_, .progress = progress};
  }

  std::vector<protocol::ElasticMessage> messages() const { return copy(messages_); }
  std::vector<protocol::MemberId> ended() const { return copy(ended_); }
  std::vector<std::string> events() const { return copy(events_); }

  bool wait_until(const std::function<bool()>& is_true) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, is_true);
  }
  /// How far `from` has come, as far as it has heard.
  std::uint64_t progress_of(const protocol::MemberId& from) const {
    const std::lock_guard lock(mutex_);
    return told_by(from);
  }
  bool hears(const protocol::MemberId& from, std::uint64_t progress) {
    return wait_until([&] { return told_by(from) >= progress; });
  }
  bool hears_end_of(const protocol::MemberId& id) {
    return wait_until([&] { return protocol::contains(ended_, id); });
  }
  bool notes(const std::string& part) {
    return wait_until([&] {
      for (const std::string& line : events_) {
        if (line.find(part) != std::string::npos) return true;
      }
      return false;
    });
  }
  /// Until its thread has taken so many more turns.
  bool takes_turns(std::size_t count) {
    const std::size_t before = copy(ticks_).size();
    return wait_until([&] { return ticks_.size() >= before + count; });
  }
  /// Until it has seen all that is there now.
  void look() {
    for (int i = 0; i < 2; ++i) {  // the turn in progress may have looked before
      const std::size_t before = copy(ticks_).size();
      links_->wake();
      EXPECT_TRUE(wait_until([&] { return ticks_.size() > before; }));
    }
  }

 private:
  std::uint64_t told_by(const protocol::MemberId& from) const {
    std::uint64_t most = 0;
    for (const auto& message : messages_) {
      const auto* status = std::get_if<protocol::MemberStatus>(&message);
      if (status != nullptr && status->from == from) most = std::max(most, status->progress);
    }
    return most;
  }
  template <class T>
  void note(std::vector<T>& list, T value) {
    const std::lock_guard lock(mutex_);
    list.push_back(std::move(value));
    changed_.notify_all();
  }
  template <class T>
  std::vector<T> copy(const std::vector<T>& list) const {
    const std::lock_guard lock(mutex_);
    return list;
  }

  protocol::MemberId me_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<protocol::ElasticMessage> messages_;
  std::vector<protocol::MemberId> ended_;
  std::vector<std::string> events_;
  std::vector<int> ticks_;
  std::unique_ptr<MemberLinks> links_;  // ends first
};

}  // namespace stormo::membership::test
