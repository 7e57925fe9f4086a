#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

namespace stormo::test {

/// A call of a register with compare-and-swap, as its caller has seen it.
struct RegisterCall {
  enum class Result {
    kOpen,      ///< it has not ended, or how is not known
    kRead,      ///< it has read `version` and `value`
    kChanged,   ///< it has written `written` as version `expected` + 1
    kMismatch,  ///< it has changed nothing, as `version` and `value` were there
  };
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  int client = 0;
  bool is_change = false;
  std::uint64_t expected = 0;
  std::string written{};
  std::int64_t began = 0, ended = kNever;
  Result result = Result::kOpen;
  std::uint64_t version = 0;
  std::string value{};
};

/// What all callers of one register have seen, and whether one register can have done it: whether
/// the calls have an order in which each result follows from those before, and in which a call that
/// ended before another one began is before it (linearizable; Wing and Gong, 1993, with Lowe's
/// memory of states, 2017). A change without a result may be anywhere after it began, or nowhere.
/// Thread-safe.
class RegisterHistory {
 public:
  /// The number of the call, for its end.
  std::size_t read(int client) { return begin({.client = client}); }
  std::size_t change(int client, std::uint64_t expected, std::string written) {
    return begin(
        {.client = client, .is_change = true, .expected = expected, .written = std::move(written)});
  }
  void end(std::size_t call, RegisterCall::Result result, std::uint64_t version,
           std::string value) {
    const std::lock_guard lock(mutex_);
    RegisterCall& c = calls_[call];
    c.ended = ++time_;
    c.result = result;
    c.version = version;
    c.value = std::move(value);
  }

  std::size_t size() const { return calls_.size(); }
  std::size_t count(RegisterCall::Result result) const {
    return static_cast<std::size_t>(std::ranges::count(calls_, result, &RegisterCall::result));
  }

  /// Empty if there is such an order; else the calls around the place where every order ends.
  std::string check() const {
    Search search(calls_);
    return search.find() ? std::string() : search.describe();
  }

 private:
  std::size_t begin(RegisterCall call) {
    const std::lock_guard lock(mutex_);
    call.began = ++time_;
    calls_.push_back(std::move(call));
    return calls_.size() - 1;
  }

  class Search {
   public:
    explicit Search(const std::vector<RegisterCall>& calls) {
      for (const RegisterCall& c : calls) {
        if (c.is_change || c.result != RegisterCall::Result::kOpen) calls_.push_back(&c);
      }
      placed_.assign(calls_.size(), '0');
    }

    bool find() { return place_rest(0, nullptr); }

    std::string describe() const {
      std::string out = "no order of the calls explains them; at best " + std::to_string(best_) +
                        " of " + std::to_string(calls_.size()) + " are explained, up to these:\n";
      std::size_t shown = 0;
      for (std::size_t i = 0; i < calls_.size() && shown < 8; ++i) {
        if (best_placed_[i] == '1') continue;
        out += text_of(*calls_[i]) + "\n";
        ++shown;
      }
      return out;
    }

   private:
    /// The state of the register: the last change, or null.
    using State = const RegisterCall*;
    static std::uint64_t version_of(State s) { return s == nullptr ? 0 : s->expected + 1; }
    static std::string_view value_of(State s) {
      return s == nullptr ? std::string_view() : std::string_view(s->written);
    }

    static bool fits(const RegisterCall& c, State s) {
      using Result = RegisterCall::Result;
      const bool is_seen = c.version == version_of(s) && c.value == value_of(s);
      switch (c.result) {
        case Result::kOpen:
        case Result::kChanged: return c.expected == version_of(s);
        case Result::kRead: return is_seen;
        case Result::kMismatch: return is_seen && c.expected != c.version;
      }
      return false;
    }

    /// Whether the calls that are not placed yet can follow in this state.
    bool place_rest(std::size_t placed, State state) {
      if (placed >= best_ || best_placed_.empty()) {
        best_ = placed;
        best_placed_ = placed_;
      }
      std::int64_t first_end = RegisterCall::kNever;
      for (std::size_t i = 0; i < calls_.size(); ++i) {
        if (placed_[i] == '0') first_end = std::min(first_end, calls_[i]->ended);
      }
      if (first_end == RegisterCall::kNever) return true;  // what is left may be nowhere
      if (!seen_.insert(placed_ + std::to_string(reinterpret_cast<std::uintptr_t>(state))).second) {
        return false;
      }
      for (std::size_t i = 0; i < calls_.size(); ++i) {
        const RegisterCall& c = *calls_[i];
        if (c.began > first_end) break;  // they are in the order in which they began
        if (placed_[i] == '1' || !fits(c, state)) continue;
        placed_[i] = '1';
        if (place_rest(placed + 1, c.is_change && changes(c) ? &c : state)) return true;
        placed_[i] = '0';
      }
      return false;
    }
    static bool changes(const RegisterCall& c) {
      return c.result == RegisterCall::Result::kChanged || c.result == RegisterCall::Result::kOpen;
    }

    static std::string text_of(const RegisterCall& c) {
      using Result = RegisterCall::Result;
      std::string out = "client " + std::to_string(c.client) + ", from " + std::to_string(c.began) +
                        (c.ended == RegisterCall::kNever ? "" : " to " + std::to_string(c.ended)) +
                        ": ";
      out += c.is_change ? "change of version " + std::to_string(c.expected) + " to " + c.written
                         : "read";
      const std::string seen = std::to_string(c.version) + " = " + c.value;
      switch (c.result) {
        case Result::kOpen: return out + ", without a result";
        case Result::kRead: return out + ": " + seen;
        case Result::kChanged: return out + ": done";
        case Result::kMismatch: return out + ": not done, as there was " + seen;
      }
      return out;
    }

    std::vector<const RegisterCall*> calls_;
    std::string placed_;  // '1' for each call that is
    std::unordered_set<std::string> seen_;
    std::size_t best_ = 0;
    std::string best_placed_;
  };

  mutable std::mutex mutex_;
  std::int64_t time_ = 0;
  std::vector<RegisterCall> calls_;
};

}  // namespace stormo::test
