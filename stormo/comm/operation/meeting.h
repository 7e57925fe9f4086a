#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/comm/operation/members.h>
#include <stormo/transport/store/key_values.h>

namespace stormo::comm {

/// The value of a key; none if `by` passes first. `job`: the first cause of a failure of the job,
/// which ends the wait.
Result<std::optional<std::string>> value_of(transport::KeyValues& values, const std::string& key,
                                            Deadline by, const std::function<Status()>& job);

/// How the members of a group find each other by a name, while other ranks do something else. The
/// first to come founds an attempt, with an id and its list of members, and the others enter it.
/// An attempt has one outcome: all have come, or why not: somebody's deadline has passed, a member
/// has left or refuses, or somebody has given another list. Every member that is in it returns this
/// outcome. Then the name is free again, and when all of them have read it nothing is left.
class Meeting {
 public:
  struct Parts {
    transport::KeyValues& values;
    std::string key;   ///< of the name, unique among the names of the job
    std::string name;  ///< for messages
    std::span<const Rank> members;
    Rank me = 0;
    std::function<Status()> job;         ///< the first cause of a failure, which ends every wait
    std::function<bool(Rank)> has_left;  ///< a member, in order: it will not come; null: nobody
  };
  explicit Meeting(Parts parts);

  /// Blocks until all members have called it, at most until `by`. The id of the attempt, which no
  /// other one of the job has.
  Result<std::string> meet(Deadline by);
  /// Instead of meet(): those that have come are told `why` this rank will not. Unless another
  /// thread of this rank is among them.
  void refuse(const Status& why);
  /// Removes what an attempt has left that all members have come to. For after the members have
  /// connected: then nobody reads it any more.
  void clear();
  /// Whether this rank was the first of those that have met.
  bool is_founder() const { return founder_ == parts_.me; }
  /// Whether meet() has returned an error that the others know nothing of: they may wait for this
  /// rank.
  bool has_broken_off() const { return entered_; }

 private:
  using Value = std::optional<std::string>;
  /// The id of the attempt. Without a value: it had ended before this rank came.
  using Outcome = Result<Value>;
  Outcome attempt(Deadline by);
  Status open();
  std::string offer() const;
  Result<bool> is_open();
  Outcome gather(Deadline by);
  Outcome wait_for_outcome(Deadline by);
  Outcome give_up(Deadline by);
  Outcome end(Code code, std::string text);
  Outcome claim(Code code, const std::vector<Rank>& came, const std::string& text);
  Outcome conclude(const std::string& said, bool is_last = false);
  Result<std::vector<Rank>> close(std::span<const Rank> list);
  void leave(const std::vector<Rank>& came);
  void sweep();
  Result<Value> wait(const std::string& key, Deadline by);
  std::optional<Rank> left() const;
  void erase(const std::string& key, std::string_view value);
  std::string here_key(Rank rank) const;
  std::string outcome_key() const;

  const Parts parts_;
  const std::string list_;
  // of the attempt that this rank is in
  std::string mine_;   // what it has offered to begin one
  std::string value_;  // of the key of the name
  std::string id_;
  Rank founder_ = 0;
  std::string their_list_;
  std::string outcome_;
  bool entered_ = false;
};

/// group_of() of an engine.
struct GroupByName {
  Communicator& parent;
  std::string parent_key;  ///< no other group of the job has it
  GroupNames& names;
  /// Where members meet, or why they cannot.
  Result<transport::KeyValues*> values;
  std::function<bool(Rank)> has_left{};  ///< as for a Meeting
};
/// A group whose members know that all of them have come.
struct GroupToConnect {
  std::string key;   ///< no other group of the job has it
  std::string name;  ///< for messages
  std::shared_ptr<const void> taken_name;
  bool is_founder = true;  ///< one of the members is
};
/// Members meet, and `connect` makes the group. It makes the job fail if it cannot.
Result<std::unique_ptr<Communicator>> meet_by_name(
    const GroupByName& how, std::span<const Rank> members, const std::string& name, Deadline by,
    const std::function<Result<std::unique_ptr<Communicator>>(const GroupToConnect&)>& connect);

}  // namespace stormo::comm
