#include <stormo/comm/watch/job_watch.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include <stormo/base/printable.h>
#include <stormo/protocol/supervisor.h>
#include <stormo/transport/tcp/tcp_transport.h>

namespace stormo::comm {
namespace {

using protocol::kFailureKey;

constexpr std::string_view kAlarmKey = "alarm";  // set: everybody says what it is doing
constexpr Duration kExplanation = std::chrono::milliseconds(300);
constexpr Duration kCollect = std::chrono::milliseconds(500);
constexpr Duration kCollectOne = std::chrono::milliseconds(10);  // at least, for each rank
constexpr Duration kJobStoreCall = std::chrono::seconds(2);
constexpr Duration kTelling = std::chrono::seconds(10);  // all ranks may leave at once
constexpr Duration kLeftIsOld = std::chrono::milliseconds(500);
constexpr Duration kGoodbye = std::chrono::seconds(2);

/// The latest operation that some rank of the group is stuck in.
std::string stuck_key(const std::string& group) { return key_of_group("stuck", group); }
/// The list of ranks that have left the group.
std::string left_key(const std::string& group) { return key_of_group("left", group); }

std::string activity_key(Rank rank) { return fmt::format("activity/{}", rank); }

}  // namespace

std::string encode_failure(const Status& status) { return message_text(status.to_string()); }

Status decode_failure(std::string_view text) {
  for (int c = 1; c <= static_cast<int>(Code::kException); ++c) {
    const Code code = static_cast<Code>(c);
    const std::string prefix = std::string(to_string(code)) + ": ";
    if (text.starts_with(prefix)) return {code, std::string(text.substr(prefix.size()))};
  }
  return {Code::kPeerLost, std::string(text)};
}

JobWatch::JobWatch(std::unique_ptr<transport::StoreClient> store,
                   std::shared_ptr<transport::Health> health, Options options)
    : health_(std::move(health)),
      options_(std::move(options)),
      store_(std::move(store)),
      lane_(std::make_unique<OperationLane>()) {}

JobWatch::~JobWatch() {
  end_threads();
  store_.reset();
}

void JobWatch::end_threads() {
  std::unique_ptr<OperationLane> ending;
  {
    const std::lock_guard lock(answer_mutex_);
    ending = std::move(lane_);
  }
  ending.reset();  // its last call still uses the store
  if (stall_watch_ != nullptr) stall_watch_->stop();
}

void JobWatch::answer_alarm() {
  const std::lock_guard lock(answer_mutex_);
  if (lane_ == nullptr) return;
  answer_ = lane_->submit([this, text = options_.activities->text()] {
    return store_->set(activity_key(options_.rank), text, Deadline::after(kJobStoreCall));
  });
}

Result<std::unique_ptr<JobWatch>> JobWatch::start(std::unique_ptr<transport::StoreClient> store,
                                                  std::shared_ptr<transport::Health> health,
                                                  Options options, Deadline by) {
  std::unique_ptr<JobWatch> c(
      new JobWatch(std::move(store), std::move(health), std::move(options)));
  c->stall_watch_ = std::make_unique<StallWatch>(
      *c->store_, StallWatch::Options{.rank = c->options_.rank,
                                      .size = c->options_.size,
                                      .identity = c->options_.identity,
                                      .limits = c->options_.stall_limits,
                                      .flight_file = c->options_.flight_file,
                                      .on_stopped = c->options_.on_stopped,
                                      .activities = c->options_.activities,
                                      .health = c->health_,
                                      .left =
                                          [job_watch = c.get()] {
                                            const auto left = job_watch->left_in({});
                                            return left.ok() ? *left : std::vector<LeftRank>();
                                          },
                                      .find_process = c->options_.find_process,
                                      .fail =
                                          [job_watch = c.get()](const Status& cause) {
                                            job_watch->health_->fail(job_watch->report(cause));
                                          }});
  STORMO_RETURN_IF_ERROR(c->stall_watch_->start());
  c->store_->set_note_source([job_watch = c.get()] {
    job_watch->look_for_stuck_calls();
    job_watch->stall_watch_->tick();
    return job_watch->options_.activities->text();
  });
  c->store_->on_lost(
      [health_of_group = c->health_](const Status& cause) { health_of_group->fail(cause); });
  STORMO_RETURN_IF_ERROR(
      c->store_->watch(kFailureKey, [health = c->health_, told = c->told_](std::string_view value) {
        told->fail(decode_failure(value));
        health->fail(told->status());
      }));
  STORMO_RETURN_IF_ERROR(c->store_->watch(
      kAlarmKey, [job_watch = c.get()](std::string_view) { job_watch->answer_alarm(); }));
  const Status died(Code::kPeerLost,
                    fmt::format("{} {}", c->options_.identity, protocol::kEndedInGroup));
  const bool waits = c->options_.on_stopped == transport::OnStopped::kWait;
  STORMO_RETURN_IF_ERROR(
      c->store_->set_will(kFailureKey, encode_failure(died),
                          waits ? Duration::zero() : c->options_.heartbeat_timeout, by));
  return c;
}

/// On the store's thread, with every beat: of a call that does not end it is asked whether it waits
/// for a rank that has left, and it is compared with those of other ranks.
void JobWatch::look_for_stuck_calls() {
  std::vector<Activities::Call> stuck =
      running_.at_beat(options_.activities->running(), transport::tcp_progress());
  const std::lock_guard lock(answer_mutex_);
  if (stuck.empty() || lane_ == nullptr || is_looking_) return;
  is_looking_ = true;
  answer_ = lane_->submit([this, stuck = std::move(stuck)] {
    Status looked;
    for (const Activities::Call& call : stuck) {
      if (looked.ok()) looked = look_at(call);
    }
    const std::lock_guard locked(answer_mutex_);
    is_looking_ = false;
    return looked;
  });
}

Status JobWatch::look_at(const Activities::Call& call) {
  STORMO_ASSIGN_OR_RETURN(const std::vector<Rank> left, left_and_needed(call));
  if (left.empty()) return is_message(call.operation.kind) ? Status() : compare(call);
  return still_runs(call) ? fail_for_left(call, left) : Status();
}

bool JobWatch::still_runs(const Activities::Call& call) const {
  const std::vector<Activities::Call> running = options_.activities->running();
  return std::ranges::find(running, call) != running.end();
}

Result<std::vector<LeftRank>> JobWatch::left_in(const std::string& group) {
  STORMO_ASSIGN_OR_RETURN(const std::string lines,
                          store_->append(left_key(group), "", Deadline::after(kJobStoreCall)));
  return parse_left_ranks(lines);
}

bool JobWatch::has_left(Rank rank) {
  const std::lock_guard lock(left_mutex_);
  if (left_is_old_.expired()) {
    if (auto left = left_in({}); left.ok()) left_ = *std::move(left);
    left_is_old_ = Deadline::after(kLeftIsOld);
  }
  return std::ranges::find(left_, rank, &LeftRank::rank) != left_.end();
}

Result<std::vector<Rank>> JobWatch::left_and_needed(const Activities::Call& call) {
  STORMO_ASSIGN_OR_RETURN(const std::vector<LeftRank> left, left_in(call.group));
  return needed_of(left, call);
}

Status JobWatch::fail_for_left(const Activities::Call& call, const std::vector<Rank>& left) {
  if (health_->failed()) return {};
  const Status cause =
      report({Code::kPeerLost,
              fmt::format("{}, {}{}{}: {}", options_.identity, to_text(call.operation),
                          call.group.empty() ? "" : " in ", call.group, have_left(left))});
  health_->fail(cause);
  return cause;
}

/// Ranks of a group that call the same operations have the same one in the same place.
Status JobWatch::compare(const Activities::Call& call) {
  const Operation& mine = call.operation;
  const std::string text = fmt::format("{} {:x}", mine.sequence, fingerprint(mine));
  const Deadline by = Deadline::after(kJobStoreCall);
  STORMO_ASSIGN_OR_RETURN(const std::string latest,
                          store_->set_if_absent(stuck_key(call.group), text, by));
  // the group may have ended meanwhile, and its keys be erased
  if (latest == text && !still_runs(call)) return store_->erase_if(stuck_key(call.group), text, by);
  unsigned long long sequence = 0;
  unsigned long long print = 0;
  if (std::sscanf(latest.c_str(), "%llu %llx", &sequence, &print) != 2) return {};
  if (sequence < mine.sequence) return store_->set(stuck_key(call.group), text, by);
  if (sequence > mine.sequence || print == fingerprint(mine) || health_->failed()) return {};
  const Status cause =
      report({Code::kMismatch, "ranks wait for each other in different operations"});
  health_->fail(cause);
  return cause;
}

std::string JobWatch::collect_activities() {
  const Deadline by = Deadline::after(kCollect);
  static_cast<void>(  // the lane that answers the alarm may be the one that asks
      store_->set(activity_key(options_.rank), options_.activities->text(), by));
  const auto raised = store_->set_if_absent(kAlarmKey, options_.identity, by);
  std::string table;
  for (Rank r = 0; raised.ok() && r < options_.size; ++r) {
    const auto activity = store_->get(
        activity_key(r), Deadline::at(std::max(by.when(), Deadline::after(kCollectOne).when())));
    table +=
        fmt::format("\n  rank {}: {}", r, activity.ok() ? printable_line(*activity) : "no answer");
  }
  return table;
}

Status JobWatch::report(const Status& local, const Activities::Call& call) {
  if (told_->failed()) return told_->status();
  Status cause = local;
  const bool is_lost = local.code() == Code::kPeerLost;
  const auto left = is_lost ? left_and_needed(call) : Result(std::vector<Rank>());
  if (left.ok() && !left->empty()) {
    cause = {local.code(), fmt::format("{}; {}", local.message(), have_left(*left))};
  } else if (is_lost || local.code() == Code::kCancelled) {
    // the lost peer's own last will says more than "connection closed"
    const auto will = store_->get(kFailureKey, Deadline::after(kExplanation));
    if (will.ok()) return decode_failure(*will);
    if (told_->failed()) return told_->status();
    if (!is_lost && health_->failed()) return health_->status();
  }
  const bool is_riddle = local.code() == Code::kMismatch || local.code() == Code::kDeadlineExceeded;
  if (is_riddle && !health_->failed() && local.message().find("\n  rank ") == std::string::npos) {
    cause = {local.code(), local.message() + collect_activities()};
  }
  const auto winner =
      store_->set_if_absent(kFailureKey, encode_failure(cause), Deadline::after(kJobStoreCall));
  if (winner.ok()) return decode_failure(*winner);
  // the Store is gone with a rank that knew the cause; it may have told this one before
  if (told_->failed()) return told_->status();
  return options_.rank_0_serves && health_->failed() ? health_->status() : cause;
}

void JobWatch::end() {
  // the process that hosts the Store may be gone already
  static_cast<void>(store_->goodbye(Deadline::after(kGoodbye)));
  end_threads();
}

Status JobWatch::leave() {
  const Deadline by = Deadline::after(kTelling);
  Status told;
  for (const Activities::Group& group : options_.activities->groups()) {
    if (told.ok() && !health_->failed()) told = tell_leaving(group, by);
  }
  end();
  return told;
}

Status JobWatch::leave(const Activities::Group& group) {
  return tell_leaving(group, Deadline::after(kJobStoreCall));
}

void JobWatch::forget(std::span<const std::string> groups) {
  const Deadline by = Deadline::after(kJobStoreCall);
  for (const std::string& group : groups) {
    static_cast<void>(store_->erase(left_key(group), by));
    static_cast<void>(store_->erase(stuck_key(group), by));
  }
}

/// A collective that still runs is about to be cancelled: its part in it is not done.
Status JobWatch::tell_leaving(const Activities::Group& group, Deadline by) {
  const Activity::Record last = group.activity->last();
  const bool is_cancelled = last.running() && last.operation.sequence > 0;
  const LeftRank me{options_.rank, group.rank, last.place - (is_cancelled ? 1 : 0)};
  STORMO_ASSIGN_OR_RETURN(const std::string lines,
                          store_->append(left_key(group.name), to_line(me), by));
  const std::size_t left = parse_left_ranks(lines).size();
  if (group.size == 0 || std::cmp_less(left, group.size)) return {};
  // nobody is left who would ask
  STORMO_RETURN_IF_ERROR(store_->erase(left_key(group.name), by));
  return store_->erase(stuck_key(group.name), by);
}

}  // namespace stormo::comm
