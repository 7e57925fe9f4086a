#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <stormo/comm/mailbox/matching.h>

namespace stormo::comm::test {

/// A message of a program. Its bytes say which one it is.
struct ProgramMessage {
  Rank from = 0, to = 0;
  std::uint32_t tag = 0;
  std::int64_t bytes = 1;
  bool any_source = false;  ///< how it is received; equal for all of a receiver and a tag
};

/// What a rank posts, and then waits for all of it. A barrier is a round of its own.
struct ProgramCall {
  bool sends = false;
  std::size_t message = 0;
  bool is_barrier = false;
};
/// Rounds of calls, by rank.
using Program = std::vector<std::vector<std::vector<ProgramCall>>>;

inline std::vector<std::byte> bytes_of(const std::vector<ProgramMessage>& all, std::size_t i) {
  return std::vector<std::byte>(static_cast<std::size_t>(all[i].bytes),
                                static_cast<std::byte>(i + 1));
}

/// Ranks in virtual time. Each step is one of: a rank posts its next round; a rank takes a record
/// from a channel; a rank brings the bytes of a message; a record that found no room in its channel
/// moves there. As in the real mailbox a rank moves nothing while none of its
/// operations is pending and nothing of it must leave, as in a barrier.
class MailboxWorld {
 public:
  struct Options {
    Matching::Options matching;
    std::size_t capacity = 1;  ///< bytes, with records, of a channel; one record always has room
    bool by_memory = true;     ///< bytes are read at the sender, or else sent: in pieces
    std::size_t piece = 5;
  };
  MailboxWorld(int ranks, std::vector<ProgramMessage> messages, Program program, Options options)
      : options_(options), messages_(std::move(messages)), program_(std::move(program)) {
    for (int r = 0; r < ranks; ++r) ranks_.emplace_back(ranks, options.matching);
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      sent_.push_back(bytes_of(messages_, i));
      received_.emplace_back(sent_.back().size());
      source_.push_back(kAnyRank);
    }
  }

  using Step = std::function<void()>;
  /// All that may happen next.
  std::vector<Step> steps() {
    std::vector<Step> out;
    for (int r = 0; r < size(); ++r) {
      Machine& m = machine(r);
      const auto& rounds = program_[static_cast<std::size_t>(r)];
      if (m.pending == 0 && m.round < rounds.size() && !waits_in_barrier(m)) {
        out.push_back([this, r] { post(r); });
      }
      if (!is_driven(m)) continue;
      for (int to = 0; to < size(); ++to) {
        const auto& queue = m.queued[static_cast<std::size_t>(to)];
        if (!queue.empty() && has_room(r, to, queue.front())) {
          out.push_back([this, r, to] { move(r, to); });
        }
        if (!channel(to, r).empty()) out.push_back([this, r, to] { take(r, to); });
      }
      if (!m.fetches.empty()) out.push_back([this, r] { bring(r); });
    }
    return out;
  }

  bool is_complete() const {
    for (const Machine& m : ranks_) {
      if (m.pending > 0 || is_driven(m) || waits_in_barrier(m)) return false;
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].round < program_[r].size()) return false;
    }
    return true;
  }

  /// What is sent at once leaves its sender, whatever the receiver does.
  void expect_room_for_short() {
    for (int r = 0; r < size(); ++r) {
      for (int to = 0; to < size(); ++to) {
        for (const auto& o : machine(r).queued[static_cast<std::size_t>(to)]) {
          EXPECT_TRUE(o.record.kind != MessageRecord::Kind::kEager || has_room(r, to, o));
        }
      }
    }
  }

  /// Every message is where it belongs: of two with the same receiver and tag, from one sender, the
  /// receive that was posted first has the one that was sent first.
  void expect_delivered() const {
    std::map<std::pair<Rank, std::uint32_t>, std::vector<std::size_t>> receives;
    std::map<std::tuple<Rank, Rank, std::uint32_t>, std::vector<std::size_t>> sends;
    for (std::size_t r = 0; r < program_.size(); ++r) {
      for (const auto& round : program_[r]) {
        for (const ProgramCall& call : round) {
          if (call.is_barrier) continue;
          const ProgramMessage& m = messages_[call.message];
          if (call.sends) {
            sends[{m.from, m.to, m.tag}].push_back(call.message);
          } else {
            receives[{m.to, m.tag}].push_back(call.message);
          }
        }
      }
    }
    for (const auto& [key, posted] : receives) {
      std::map<Rank, std::size_t> next;  // of each sender
      for (const std::size_t receive : posted) {
        const Rank from = source_[receive];
        EXPECT_TRUE(messages_[receive].any_source || from == messages_[receive].from);
        const auto& in_order = sends[{from, key.first, key.second}];
        const std::size_t nth = next[from]++;
        ASSERT_LT(nth, in_order.size());
        EXPECT_EQ(received_[receive], sent_[in_order[nth]]) << "receive " << receive;
      }
    }
  }

  std::string stuck() const {
    std::string out;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      out += "rank " + std::to_string(r) + ": round " + std::to_string(ranks_[r].round) + ", " +
             std::to_string(ranks_[r].pending) + " pending\n";
    }
    return out;
  }
  const Matching& matching(Rank r) const { return ranks_[static_cast<std::size_t>(r)].matching; }

 private:
  struct InChannel {
    MessageRecord record;
    std::vector<std::byte> payload;
  };
  struct Machine {
    Machine(int ranks, Matching::Options options)
        : matching(ranks, options), queued(static_cast<std::size_t>(ranks)) {}
    Matching matching;
    std::vector<std::deque<Matching::Outgoing>> queued;
    std::deque<Matching::Fetch> fetches;
    std::map<Matching::Id, std::size_t> receives;  // the message of each
    std::size_t round = 0, pending = 0, barriers = 0;
    Matching::Id next_id = 1;
  };
  int size() const { return static_cast<int>(ranks_.size()); }
  Machine& machine(int r) { return ranks_[static_cast<std::size_t>(r)]; }
  std::deque<InChannel>& channel(int from, int to) { return channels_[{from, to}]; }
  bool waits_in_barrier(const Machine& m) const {
    return std::ranges::any_of(ranks_,
                               [&](const Machine& other) { return other.barriers < m.barriers; });
  }
  static std::size_t size_of(const MessageRecord& record, std::size_t payload) {
    return sizeof record + payload;
  }
  bool has_room(int from, int to, const Matching::Outgoing& o) {
    std::size_t used = 0;
    for (const InChannel& in : channel(from, to)) used += size_of(in.record, in.payload.size());
    return used == 0 || used + size_of(o.record, o.payload.size()) <= options_.capacity;
  }
  static bool is_driven(const Machine& m) {
    if (m.pending > 0) return true;
    return std::ranges::any_of(m.queued, [](const auto& queue) {
      return std::ranges::any_of(queue, [](const auto& o) { return o.record.must_leave(); });
    });
  }

  void apply(int r, Matching::Effects& effects) {
    Machine& m = machine(r);
    EXPECT_TRUE(effects.mismatch.ok()) << effects.mismatch.to_string();
    for (const auto& o : effects.records) {
      auto& queue = m.queued[static_cast<std::size_t>(o.to)];
      if (o.record.kind == MessageRecord::Kind::kData) {
        Matching::cut(o, options_.piece, queue);
      } else {
        queue.push_back(o);
      }
    }
    for (const auto& f : effects.fetches) m.fetches.push_back(f);
    for (const auto& c : effects.completions) {
      --m.pending;
      if (const auto i = m.receives.find(c.operation); i != m.receives.end()) {
        source_[i->second] = c.peer;
      }
    }
  }

  void post(int r) {
    Machine& m = machine(r);
    for (const ProgramCall& call : program_[static_cast<std::size_t>(r)][m.round]) {
      m.barriers += call.is_barrier ? 1 : 0;
      if (call.is_barrier) continue;
      const ProgramMessage& of = messages_[call.message];
      Matching::Effects effects;
      ++m.pending;
      if (call.sends) {
        if (m.matching.needs_credit(of.to, sent_[call.message].size())) {
          while (!channel(of.to, r).empty()) take(r, of.to);
        }
        m.matching.send(
            m.next_id,
            {.to = of.to, .tag = of.tag, .count = of.bytes, .bytes = sent_[call.message]}, effects);
      } else {
        m.receives.emplace(m.next_id, call.message);
        m.matching.receive(m.next_id,
                           {.from = of.any_source ? kAnyRank : of.from,
                            .tag = of.tag,
                            .count = of.bytes,
                            .bytes = received_[call.message]},
                           effects);
      }
      ++m.next_id;
      apply(r, effects);
      push(r);
    }
    ++m.round;
  }

  /// What has room.
  void push(int r) {
    for (int to = 0; to < size(); ++to) {
      const auto& queue = machine(r).queued[static_cast<std::size_t>(to)];
      while (!queue.empty() && has_room(r, to, queue.front())) move(r, to);
    }
  }

  void move(int r, int to) {
    auto& queue = machine(r).queued[static_cast<std::size_t>(to)];
    const Matching::Outgoing o = queue.front();
    queue.pop_front();
    channel(r, to).push_back({o.record, {o.payload.begin(), o.payload.end()}});
    Matching::Effects effects;
    if (o.send != 0) machine(r).matching.sent(o.to, o.send, effects);
    apply(r, effects);
  }

  void take(int r, int from) {
    const InChannel in = channel(from, r).front();
    channel(from, r).pop_front();
    Matching& matching = machine(r).matching;
    Matching::Effects effects;
    if (in.record.kind == MessageRecord::Kind::kData) {
      const auto landing = matching.landing(from, in.record);
      ASSERT_TRUE(landing.ok()) << landing.status().to_string();
      ASSERT_EQ(landing->to.size(), in.payload.size());
      std::ranges::copy(in.payload, landing->to.begin());
      matching.fetched(*landing, false, effects);
    } else {
      const Status outcome = matching.arrived(from, in.record, in.payload, effects);
      EXPECT_TRUE(outcome.ok()) << outcome.to_string();
    }
    apply(r, effects);
    push(r);
  }

  void bring(int r) {
    Machine& m = machine(r);
    const Matching::Fetch fetch = m.fetches.front();
    m.fetches.pop_front();
    Matching::Effects effects;
    if (options_.by_memory) {
      const auto* const from = reinterpret_cast<const std::byte*>(fetch.offer.address);
      std::copy_n(from, fetch.to.size(), fetch.to.begin());
      m.matching.fetched(fetch, true, effects);
    } else {
      m.matching.clear(fetch, effects);
    }
    apply(r, effects);
    push(r);
  }

  Options options_;
  std::vector<ProgramMessage> messages_;
  Program program_;
  std::vector<Machine> ranks_;
  std::map<std::pair<int, int>, std::deque<InChannel>> channels_;
  std::vector<std::vector<std::byte>> sent_, received_;  // by message
  std::vector<Rank> source_;                             // of what each receive got
};

}  // namespace stormo::comm::test
