#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <stormo/comm/communicator.h>
#include <stormo/comm/mailbox/matching.h>

/// Programs of messages by chance, which all ranks know, and what every receive must get.
namespace stormo::comm::test {

struct PlannedMessage {
  Rank from = 0, to = 0;
  std::uint32_t tag = 0;
  std::size_t bytes = 0;
  bool any_source = false;  ///< how it is received; equal for all of a receiver and a tag
};

/// How the ranks of a phase call, and wait for all of it at its end.
enum class PhaseKind : std::uint8_t {
  kAnyOrder,  ///< asynchronously, each in an order of its own, and waits in another
  kInOrder,   ///< in one order on all ranks, so that calls may block
  kAhead      ///< all short: sends that block, a barrier, then the receives
};
struct Phase {
  PhaseKind kind = PhaseKind::kAnyOrder;
  std::vector<PlannedMessage> messages;
};

/// Bytes of a message: which one it is, and where in it.
inline void fill(std::span<std::uint8_t> bytes, std::uint64_t which) {
  std::uint64_t word = (which + 1) * 0x9e3779b97f4a7c15;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof word, ++word) {
    std::memcpy(bytes.data() + at, &word, std::min(sizeof word, bytes.size() - at));
  }
}
inline bool is_filled(std::span<const std::uint8_t> bytes, std::uint64_t which) {
  std::uint64_t word = (which + 1) * 0x9e3779b97f4a7c15;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof word, ++word) {
    if (std::memcmp(bytes.data() + at, &word, std::min(sizeof word, bytes.size() - at)) != 0) {
      return false;
    }
  }
  return true;
}

/// The phases of program number `seed`. Its tags are its own.
inline std::vector<Phase> program_by_chance(std::uint32_t seed, int ranks) {
  constexpr std::size_t kKiB = 1024;
  constexpr std::array<std::size_t, 6> kShort = {0, 1, 7, 5000, 16 * kKiB - 1, 16 * kKiB};
  constexpr std::array<std::size_t, 7> kLong = {16 * kKiB + 1,  128 * kKiB - 56, 128 * kKiB,
                                                128 * kKiB + 1, 1024 * kKiB - 1, 1024 * kKiB,
                                                1024 * kKiB + 1};
  std::mt19937_64 chance(seed);
  const auto below = [&](std::uint64_t n) { return static_cast<int>(chance() % n); };
  std::vector<Phase> phases(1 + static_cast<std::size_t>(below(3)));
  for (std::size_t p = 0; p < phases.size(); ++p) {
    Phase& phase = phases[p];
    phase.kind = static_cast<PhaseKind>(below(3));
    std::map<std::pair<Rank, std::uint32_t>, std::pair<std::size_t, bool>> forms;
    std::map<std::pair<Rank, Rank>, std::size_t> ahead;
    for (int n = below(13); n > 0; --n) {
      PlannedMessage m{.from = below(static_cast<std::uint64_t>(ranks)),
                       .to = below(static_cast<std::uint64_t>(ranks - 1))};
      m.to += m.to >= m.from ? 1 : 0;
      // a receive of any sender must not take a message of a later phase
      m.tag = 16 * seed + 4 * static_cast<std::uint32_t>(p) + static_cast<std::uint32_t>(below(3));
      const bool is_short = phase.kind == PhaseKind::kAhead || below(3) > 0;
      const std::size_t bytes =
          is_short ? kShort[chance() % kShort.size()] : kLong[chance() % kLong.size()];
      // in order a receive that takes another message than the next one might be waited for
      const bool any_source = phase.kind != PhaseKind::kInOrder && below(3) == 0;
      const auto form = forms.try_emplace({m.to, m.tag}, bytes, any_source).first->second;
      std::tie(m.bytes, m.any_source) = form;
      std::size_t& sum = ahead[{m.from, m.to}];
      sum += m.bytes + sizeof(MessageRecord);
      if (phase.kind == PhaseKind::kAhead && sum > kSureAhead) continue;
      phase.messages.push_back(m);
    }
  }
  return phases;
}

/// Runs programs on one rank. Returns what was wrong, or nothing.
class ProgramRunner {
 public:
  explicit ProgramRunner(Communicator& group) : group_(group) {}

  std::string run(std::uint32_t seed) {
    // what differs between the ranks
    chance_.seed((static_cast<std::uint64_t>(seed) << 8) + static_cast<std::uint64_t>(rank()));
    for (const Phase& phase : program_by_chance(seed, group_.size())) {
      phase_ = &phase;
      calls_.clear();
      for (std::size_t i = 0; i < phase.messages.size(); ++i) add_calls(phase.messages[i], i);
      Status outcome = perform(phase);
      if (!outcome.ok()) return where(seed) + outcome.to_string();
      if (std::string wrong = check(); !wrong.empty()) return where(seed) + wrong;
    }
    return {};
  }

 private:
  struct Call {
    PlannedMessage what;
    std::size_t message = 0;
    bool sends = false;
    Rank source = kAnyRank;
    bool in_arena = false;
    std::vector<std::uint8_t> own;
    std::span<std::uint8_t> data;
    std::optional<Work> work;
  };
  using Key = std::tuple<bool, Rank, std::uint32_t>;

  Rank rank() const { return group_.rank(); }
  std::string where(std::uint32_t seed) const {
    return "program " + std::to_string(seed) + ", rank " + std::to_string(rank()) + ": ";
  }
  bool by_chance(std::uint64_t one_of) { return chance_() % one_of == 0; }

  void add_calls(const PlannedMessage& m, std::size_t message) {
    for (const bool sends : {true, false}) {
      if ((sends ? m.from : m.to) != rank()) continue;
      Call& call = calls_.emplace_back();
      call.what = m;
      call.message = message;
      call.sends = sends;
    }
  }
  /// In the arena, or private.
  void get_memory(Call& call) {
    call.in_arena = call.what.bytes > 0 && by_chance(2);
    if (call.in_arena) {
      void* const memory = group_.arena().allocate(call.what.bytes);
      call.data = {static_cast<std::uint8_t*>(memory), call.what.bytes};
    } else {
      call.own.resize(call.what.bytes);
      call.data = call.own;
    }
    if (call.sends) {
      fill(call.data, call.message);
    } else {
      std::ranges::fill(call.data, std::uint8_t{0xee});
    }
  }
  void free_memory(Call& call) {
    if (call.in_arena) group_.arena().deallocate(call.data.data());
  }

  static Key key_of(const Call& c) {
    const Rank peer = c.sends ? c.what.to : c.what.any_source ? kAnyRank : c.what.from;
    return {c.sends, peer, c.what.tag};
  }
  /// By chance, but for messages that may not overtake each other.
  void shuffle() {
    std::vector<Call> in_order(std::make_move_iterator(calls_.begin()),
                               std::make_move_iterator(calls_.end()));
    std::vector<Key> keys;
    for (const Call& c : in_order) keys.push_back(key_of(c));
    std::ranges::shuffle(keys, chance_);
    calls_.clear();
    for (const Key& key : keys) {
      const auto next =
          std::ranges::find_if(in_order, [&](const Call& c) { return key_of(c) == key; });
      calls_.push_back(std::move(*next));
      in_order.erase(next);
    }
  }

  Work start(Call& c) {
    if (c.sends) return group_.send_async(c.data, c.what.to, c.what.tag);
    if (c.what.any_source) return group_.recv_any_async(c.data, c.what.tag, c.source);
    return group_.recv_async(c.data, c.what.from, c.what.tag);
  }
  Status block(Call& c) {
    if (c.sends) return group_.send(c.data, c.what.to, c.what.tag);
    if (c.what.any_source) return group_.recv_any(c.data, c.what.tag, c.source);
    return group_.recv(c.data, c.what.from, c.what.tag);
  }

  Status perform(const Phase& phase) {
    if (phase.kind == PhaseKind::kAnyOrder) shuffle();
    for (Call& c : calls_) get_memory(c);
    const bool ahead = phase.kind == PhaseKind::kAhead;
    for (const bool sends : {true, false}) {
      // the first one: what was sent in earlier phases has been received then
      if (ahead) STORMO_RETURN_IF_ERROR(group_.barrier());
      for (Call& c : calls_) {
        if (ahead ? c.sends != sends : !sends) continue;
        const bool blocks = ahead || (phase.kind == PhaseKind::kInOrder && by_chance(2));
        if (blocks) {
          STORMO_RETURN_IF_ERROR(block(c));
        } else {
          c.work = start(c);
        }
      }
    }
    std::vector<Call*> waits;
    for (Call& c : calls_) {
      if (c.work) waits.push_back(&c);
    }
    std::ranges::shuffle(waits, chance_);
    for (Call* c : waits) {
      while (by_chance(8) && !c->work->test()) std::this_thread::yield();
      STORMO_RETURN_IF_ERROR(c->work->wait());
    }
    return {};
  }

  /// Of two receives of one key, the first has what was sent first.
  std::string check() {
    std::string wrong;
    std::map<std::tuple<Rank, Rank, std::uint32_t>, std::size_t> received;
    for (Call& c : calls_) {
      if (!c.sends) {
        const Rank from = c.what.any_source ? c.source : c.what.from;
        const std::size_t nth = received[{from, c.what.to, c.what.tag}]++;
        const std::optional<std::size_t> sent = nth_sent(from, c.what.to, c.what.tag, nth);
        if (!sent || !is_filled(c.data, *sent)) {
          wrong += "receive " + std::to_string(nth) + " of tag " + std::to_string(c.what.tag) +
                   " from " + std::to_string(from) + " has another message; ";
        }
      }
      free_memory(c);
    }
    return wrong;
  }
  std::optional<std::size_t> nth_sent(Rank from, Rank to, std::uint32_t tag,
                                      std::size_t nth) const {
    for (std::size_t i = 0; i < phase_->messages.size(); ++i) {
      const PlannedMessage& m = phase_->messages[i];
      if (m.from == from && m.to == to && m.tag == tag && nth-- == 0) return i;
    }
    return std::nullopt;
  }

  Communicator& group_;
  std::mt19937_64 chance_;
  const Phase* phase_ = nullptr;
  std::list<Call> calls_;
};

/// Runs the programs of these numbers. Returns what was wrong, or nothing.
inline std::string run_programs(Communicator& group, std::uint32_t begin, std::uint32_t end) {
  ProgramRunner runner(group);
  for (std::uint32_t seed = begin; seed < end; ++seed) {
    if (std::string wrong = runner.run(seed); !wrong.empty()) return wrong;
  }
  return {};
}

/// From each to each, all at once.
inline std::string run_all_to_all(Communicator& group, std::size_t bytes) {
  std::vector<std::vector<std::uint8_t>> in;
  std::vector<Work> works;
  std::vector<std::uint8_t> out(bytes);
  fill(out, static_cast<std::uint64_t>(group.rank()));
  for (Rank r = 0; r < group.size(); ++r) in.emplace_back(r == group.rank() ? 0 : bytes);
  for (Rank r = 0; r < group.size(); ++r) {
    if (r == group.rank()) continue;
    works.push_back(group.send_async(out, r, 0));
    works.push_back(group.recv_async(in[static_cast<std::size_t>(r)], r, 0));
  }
  for (Work& w : works) {
    if (const Status outcome = w.wait(); !outcome.ok()) return outcome.to_string();
  }
  for (Rank r = 0; r < group.size(); ++r) {
    if (r != group.rank() && !is_filled(in[static_cast<std::size_t>(r)], r)) {
      return "wrong bytes from rank " + std::to_string(r);
    }
  }
  return {};
}

}  // namespace stormo::comm::test
