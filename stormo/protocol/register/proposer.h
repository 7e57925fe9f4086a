#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <stormo/protocol/register/register_message.h>

namespace stormo::protocol {

struct RegisterOutcome {
  enum class Kind {
    kRead,      ///< `value` is the present one
    kChanged,   ///< `value` is what was to be written, and it was present
    kMismatch,  ///< not changed: `value` is the present one, and has another version
    kUnknown,   ///< later changes came, and hide whether this one was among those before
  };
  Kind kind = Kind::kRead;
  RegisterValue value{};
  bool operator==(const RegisterOutcome&) const = default;
};

/// Reads and changes the register, one after the other. It has no clock and sends nothing: its
/// owner sends request() to each acceptor that awaits() names, again where it may have been lost,
/// and brings the replies.
///
/// An operation asks what all acceptors have. If the first majority has accepted under one ballot,
/// that value is the present one: it was written before the operation ended, and nothing later can
/// have been written before the operation began. Else, and for a change, it prepares a ballot of
/// its own, and has the latest value, or the new one, accepted under it.
class Proposer {
 public:
  /// `id`: no other proposer ever has it.
  Proposer(std::uint64_t id, int acceptors);

  /// Begin an operation. One that has no outcome yet is given up: a change among these may have
  /// taken place, or may still do so.
  void read();
  /// Writes `bytes` as version `expected` + 1, if the present version is `expected`.
  void change(std::uint64_t expected, std::string bytes);

  const RegisterRequest& request() const { return request_; }
  /// Whether the acceptor has not answered request() yet.
  bool awaits(int acceptor) const {
    return !outcome_ && !answered_[static_cast<std::size_t>(acceptor)];
  }
  /// True if there is another request now, or the outcome.
  bool receive(int acceptor, const RegisterReply& reply);

  /// Whether an acceptor has refused request() in favour of another proposer. The owner waits for a
  /// random time, and then calls restart(), unless there is another request by then.
  bool is_contested() const { return is_contested_; }
  /// Begins the operation again.
  void restart() { ask(RegisterRequest::Kind::kAsk, {}, {}); }

  /// Of the operation, once it is known.
  const std::optional<RegisterOutcome>& outcome() const { return outcome_; }
  /// Whether the change, if it is given up now, may take place all the same.
  bool has_proposed() const { return origin_ != Ballot{}; }
  int majority() const { return static_cast<int>(answered_.size()) / 2 + 1; }

 private:
  struct Change {
    std::uint64_t expected = 0;
    std::string bytes;
  };
  void begin(std::optional<Change> change);
  void ask(RegisterRequest::Kind kind, Ballot ballot, RegisterValue value);
  void on_asked(const AcceptorState& latest, bool agreed);
  void on_promised(const AcceptorState& latest, bool agreed);
  void conclude(const RegisterValue& present);
  bool wants_to_follow(const RegisterValue& present) const {
    return change_ && present.version == change_->expected;
  }

  std::uint64_t id_;
  Ballot highest_{};  // of all that it has seen or used
  std::optional<Change> change_;
  Ballot origin_{};  // of the change, once it was proposed
  RegisterRequest request_{};
  std::vector<bool> answered_;         // by acceptor
  std::vector<AcceptorState> grants_;  // of those that have granted
  bool is_contested_ = false;
  std::optional<RegisterOutcome> outcome_;
};

}  // namespace stormo::protocol
