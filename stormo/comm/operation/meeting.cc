#include <stormo/comm/operation/meeting.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <sstream>

#include <stormo/transport/net/secret.h>

namespace stormo::comm {
namespace {

// The key of the name has the id of the attempt, its founder and its list. A member that comes sets
// its here_key() to kHere, the founder before it sets the name, unless somebody who ends the
// attempt has set it to kMissed. Whoever sets outcome_key() first decides. Whoever learns that the
// attempt has failed frees the name, if it is still that of this attempt: so a name that has
// another value has an outcome, or nothing is left of it.
constexpr std::string_view kHere = "here";
constexpr std::string_view kMissed = "missed";
/// An outcome for those who came when nothing was left: they try again.
constexpr Code kOver = Code::kCancelled;
constexpr std::size_t kIdDigits = 16;
/// A call that the Store answers at once. Not the caller's deadline: a call that is not waited for
/// is still carried out.
constexpr Duration kCall = std::chrono::seconds(10);
constexpr Duration kFirstLook = std::chrono::milliseconds(100);
constexpr Duration kNextLooks = std::chrono::milliseconds(500);

/// At first a rank that is lost is not to be waited for; then the Store is not to be asked too
/// often.
Duration next_look(TimePoint began) {
  constexpr Duration kSoon = std::chrono::milliseconds(20);
  constexpr Duration kLong = std::chrono::seconds(2);
  return std::chrono::steady_clock::now() - began < kLong ? kSoon : kNextLooks;
}

Deadline soon() { return Deadline::after(kCall); }

std::vector<Rank> ranks_of(const std::string& list) {
  std::istringstream in(list);
  return {std::istream_iterator<Rank>(in), {}};
}

}  // namespace

Result<std::optional<std::string>> value_of(transport::KeyValues& values, const std::string& key,
                                            Deadline by, const std::function<Status()>& job) {
  const TimePoint began = std::chrono::steady_clock::now();
  for (Duration look = kFirstLook;; look = next_look(began)) {
    Result<std::string> value =
        values.get(key, Deadline::at(std::min(by.when(), Deadline::after(look).when())));
    if (value.ok()) return std::optional(*std::move(value));
    if (value.status().code() != Code::kDeadlineExceeded) return value.status();
    STORMO_RETURN_IF_ERROR(job());
    if (by.expired()) return std::optional<std::string>();
  }
}

Meeting::Meeting(Parts parts)
    : parts_(std::move(parts)), list_(fmt::format("{}", fmt::join(parts_.members, " "))) {}

std::string Meeting::here_key(Rank rank) const { return fmt::format("met/{}/{}", id_, rank); }
std::string Meeting::outcome_key() const { return fmt::format("met/{}", id_); }

Result<std::string> Meeting::meet(Deadline by) {
  for (;;) {
    STORMO_ASSIGN_OR_RETURN(const Value id, attempt(by));
    if (id) return *id;
    STORMO_RETURN_IF_ERROR(parts_.job());
    if (by.expired()) {
      return Status(Code::kDeadlineExceeded,
                    fmt::format("{} of ranks {}: they have not met by the deadline of rank {}",
                                parts_.name, shown_members(parts_.members), parts_.me));
    }
  }
}

void Meeting::refuse(const Status& why) {
  if (!open().ok()) return;
  if (value_ == mine_) {  // nobody has come
    erase(parts_.key, mine_);
    return erase(here_key(parts_.me), kHere);
  }
  const auto here = parts_.values.set_if_absent(here_key(parts_.me), kMissed, soon());
  if (!here.ok() || *here == kHere) return;
  static_cast<void>(end(why.code(), fmt::format("rank {}: {}", parts_.me, why.message())));
}

Meeting::Outcome Meeting::attempt(Deadline by) {
  STORMO_RETURN_IF_ERROR(open());
  entered_ = true;
  if (their_list_ != list_) {
    return end(Code::kMismatch,
               fmt::format("{}: rank {} gives the members {}, rank {} gives {}", parts_.name,
                           founder_, shown_members(ranks_of(their_list_)), parts_.me,
                           shown_members(parts_.members)));
  }
  STORMO_ASSIGN_OR_RETURN(const std::string here,
                          parts_.values.set_if_absent(here_key(parts_.me), kHere, soon()));
  return is_founder() && here == kHere ? gather(by) : wait_for_outcome(by);
}

/// Founds an attempt, or finds the one that there is.
Status Meeting::open() {
  mine_ = offer();
  id_ = mine_.substr(0, kIdDigits);
  STORMO_RETURN_IF_ERROR(parts_.values.set_if_absent(here_key(parts_.me), kHere, soon()).status());
  Result<std::string> value = parts_.values.set_if_absent(parts_.key, mine_, soon());
  if (!value.ok()) erase(parts_.key, mine_);  // which may have been set too late
  if (!value.ok() || *value != mine_) erase(here_key(parts_.me), kHere);
  STORMO_ASSIGN_OR_RETURN(value_, std::move(value));
  int begin = 0;
  if (std::sscanf(value_.c_str(), "%*16s %d %n", &founder_, &begin) != 1) {
    return Status(Code::kCorrupt, fmt::format("{}: the Store has '{}'", parts_.name, value_));
  }
  id_ = value_.substr(0, kIdDigits);
  their_list_ = value_.substr(static_cast<std::size_t>(begin));
  return {};
}

std::string Meeting::offer() const {
  const std::string id = transport::Secret::random().to_hex().substr(0, kIdDigits);
  return fmt::format("{} {} {}", id, parts_.me, list_);
}

/// Whether the name is still that of the attempt.
Result<bool> Meeting::is_open() {
  const std::string other = offer();
  STORMO_ASSIGN_OR_RETURN(const std::string now,
                          parts_.values.set_if_absent(parts_.key, other, soon()));
  if (now == other) erase(parts_.key, other);
  return now == value_;
}

/// The founder waits for the others.
Meeting::Outcome Meeting::gather(Deadline by) {
  for (const Rank member : parts_.members) {
    STORMO_ASSIGN_OR_RETURN(const Value here, wait(here_key(member), by));
    if (!here) return give_up(by);
    if (*here != kHere) return wait_for_outcome(by);
  }
  return claim(Code::kOk, {}, "");
}

Meeting::Outcome Meeting::wait_for_outcome(Deadline by) {
  STORMO_ASSIGN_OR_RETURN(const Value said, wait(outcome_key(), by));
  return said ? conclude(*said) : give_up(by);
}

/// None if it is of no use to wait any longer.
Result<Meeting::Value> Meeting::wait(const std::string& key, Deadline by) {
  for (Duration look = kFirstLook;; look = kNextLooks) {
    if (left()) return Value();
    const Deadline next = Deadline::at(std::min(by.when(), Deadline::after(look).when()));
    Result<std::string> value = parts_.values.get(key, next);
    if (value.ok()) return Value(*std::move(value));
    if (value.status().code() != Code::kDeadlineExceeded) return value.status();
    STORMO_RETURN_IF_ERROR(parts_.job());
    if (by.expired()) return Value();
    STORMO_ASSIGN_OR_RETURN(const bool goes_on, is_open());
    if (!goes_on) return Value();  // this rank came when the attempt had ended
  }
}

Meeting::Outcome Meeting::give_up(Deadline by) {
  if (const std::optional<Rank> gone = left()) {
    return end(Code::kPeerLost, fmt::format("{} of ranks {}: rank {} has left in order",
                                            parts_.name, shown_members(parts_.members), *gone));
  }
  return end(by.expired() ? Code::kDeadlineExceeded : kOver, "");
}

/// `text`: why; if it is empty, because not all have come.
Meeting::Outcome Meeting::end(Code code, std::string text) {
  STORMO_ASSIGN_OR_RETURN(const std::vector<Rank> came, close(ranks_of(their_list_)));
  if (code == Code::kDeadlineExceeded && came.size() == ranks_of(their_list_).size()) {
    return claim(Code::kOk, {}, "");
  }
  if (text.empty()) {
    std::vector<Rank> missed;
    std::ranges::set_difference(ranks_of(their_list_), came, std::back_inserter(missed));
    text = fmt::format("{} of ranks {}: rank{} {} {} not come by the deadline of rank {}",
                       parts_.name, shown_members(parts_.members), missed.size() == 1 ? "" : "s",
                       shown_members(missed), missed.size() == 1 ? "has" : "have", parts_.me);
  }
  return claim(code, came, text);
}

/// Which of them have come. The others will not come to this attempt any more, and the founder does
/// not wait for them.
Result<std::vector<Rank>> Meeting::close(std::span<const Rank> list) {
  std::vector<Rank> came;
  for (const Rank member : list) {
    STORMO_ASSIGN_OR_RETURN(const std::string here,
                            parts_.values.set_if_absent(here_key(member), kMissed, soon()));
    if (here == kHere) came.push_back(member);
  }
  return came;
}

/// Makes it the outcome of the attempt if it has none. `came`: those that will read it.
Meeting::Outcome Meeting::claim(Code code, const std::vector<Rank>& came, const std::string& text) {
  const std::string mine =
      fmt::format("{} {} {}: {}", parts_.me, static_cast<int>(code), fmt::join(came, " "), text);
  STORMO_ASSIGN_OR_RETURN(const std::string said,
                          parts_.values.set_if_absent(outcome_key(), mine, soon()));
  if (said != mine) return conclude(said);
  erase(parts_.key, value_);
  // Others may have ended it before, and removed all, while this rank looked who has come.
  STORMO_ASSIGN_OR_RETURN(const std::vector<Rank> are_there, close(came));
  return conclude(said, are_there != came);
}

Meeting::Outcome Meeting::conclude(const std::string& said, bool is_last) {
  int code = 0;
  int begin = 0;
  const std::size_t colon = said.find(':');
  if (std::sscanf(said.c_str(), "%*d %d %n", &code, &begin) != 1 || colon == std::string::npos) {
    return Status(Code::kCorrupt, fmt::format("{}: the Store has '{}'", parts_.name, said));
  }
  entered_ = false;
  outcome_ = said;
  const Status why(static_cast<Code>(code), said.substr(std::min(colon + 2, said.size())));
  const bool all_came = why.code() == Code::kOk;
  if (all_came && their_list_ == list_) return Value(id_);
  erase(parts_.key, value_);
  const auto first = static_cast<std::size_t>(begin);
  const std::vector<Rank> came = ranks_of(said.substr(first, colon - first));
  const bool was_in = std::ranges::find(came, parts_.me) != came.end();
  const bool by_me = std::atoi(said.c_str()) == parts_.me;
  if (is_last || (by_me && came.empty())) {
    sweep();
    erase(outcome_key(), outcome_);
  } else if (was_in) {
    leave(came);
  } else if (!by_me) {
    sweep();
  }
  const bool may_come_again = why.code() == Code::kDeadlineExceeded && !was_in && !by_me;
  if (all_came || why.code() == kOver || may_come_again) return Value();
  return why;
}

/// Two that have read the outcome meet in each node of a tree, and the second goes on: who comes to
/// the root is the last one, and removes what is left.
void Meeting::leave(const std::vector<Rank>& came) {
  const std::string me = fmt::format("{}", parts_.me);
  const auto place = std::ranges::find(came, parts_.me) - came.begin();
  std::size_t node = came.size() - 1 + static_cast<std::size_t>(place);
  while (node > 0) {
    node = (node - 1) / 2;
    const std::string key = fmt::format("met/{}/node {}", id_, node);
    const auto first = parts_.values.set_if_absent(key, me, soon());
    if (!first.ok() || *first == me) return;
    erase(key, *first);
  }
  for (const Rank member : came) erase(here_key(member), kHere);
  sweep();
  erase(outcome_key(), outcome_);  // the last: without it the rest has gone
}

/// Removes what this rank has set in an attempt that has ended. Who comes to it now finds that the
/// name is not its own.
void Meeting::sweep() {
  for (const Rank member : ranks_of(their_list_)) erase(here_key(member), kMissed);
  erase(here_key(parts_.me), kHere);
}

std::optional<Rank> Meeting::left() const {
  if (parts_.has_left == nullptr) return std::nullopt;
  const auto gone = std::ranges::find_if(parts_.members, parts_.has_left);
  return gone == parts_.members.end() ? std::nullopt : std::optional(*gone);
}

void Meeting::erase(const std::string& key, std::string_view value) {
  static_cast<void>(parts_.values.erase_if(key, value, soon()));
}

void Meeting::clear() { leave({parts_.members.begin(), parts_.members.end()}); }

Result<std::unique_ptr<Communicator>> meet_by_name(
    const GroupByName& how, std::span<const Rank> members, const std::string& name, Deadline by,
    const std::function<Result<std::unique_ptr<Communicator>>(const GroupToConnect&)>& connect) {
  Communicator& parent = how.parent;
  STORMO_RETURN_IF_ERROR(check_group_of(members, name, parent.rank(), parent.size()));
  STORMO_RETURN_IF_ERROR(parent.status());
  GroupToConnect group{fmt::format("name {}/{}/{}", how.parent_key.size(), how.parent_key, name),
                       shown_name(name), nullptr};
  auto taken = how.names.take(name);
  if (members.size() == 1) {
    STORMO_ASSIGN_OR_RETURN(group.taken_name, std::move(taken));
    return connect(group);
  }
  STORMO_ASSIGN_OR_RETURN(transport::KeyValues* const values, how.values);
  Meeting meeting({.values = *values,
                   .key = group.key,
                   .name = group.name,
                   .members = members,
                   .me = parent.rank(),
                   .job = [&parent] { return parent.status(); },
                   .has_left = how.has_left});
  if (!taken.ok()) {
    meeting.refuse(taken.status());
    return taken.status();
  }
  group.taken_name = *std::move(taken);
  Result<std::string> id = meeting.meet(by);
  if (!id.ok()) {
    STORMO_RETURN_IF_ERROR(parent.status());  // the first cause: of a Store that is lost, say
    if (meeting.has_broken_off()) parent.fail(id.status());
  }
  STORMO_ASSIGN_OR_RETURN(group.key, std::move(id));
  group.name = fmt::format("{} ({}) of ranks {}", group.name, group.key.substr(0, 6),
                           shown_members(members));
  group.is_founder = meeting.is_founder();
  auto made = connect(group);
  if (made.ok()) meeting.clear();
  return made;
}

}  // namespace stormo::comm
