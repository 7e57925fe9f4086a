#include <stormo/comm/watch/job_watch.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include <stormo/base/printable.h>
#include <stormo/protocol/supervisor.h>

namespace stormo::comm {
namespace {

using protocol::kFailureKey;

constexpr std::string_view kAlarmKey = "alarm";  // set: everybody says what it is doing
constexpr Duration kExplanation = std::chrono::milliseconds(300);
constexpr Duration kCollect = std::chrono::milliseconds(500);
constexpr Duration kCollectOne = std::chrono::milliseconds(10);  // at least, for each rank
constexpr Duration kJobStoreCall = std::chrono::seconds(2);

/// The latest operation that some rank of the group is stuck in.
std::string stuck_key(const std::string& group) { return "stuck/" + group; }

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
  std::unique_ptr<OperationLane> ending;
  {
    const std::lock_guard lock(answer_mutex_);
    ending = std::move(lane_);
  }
  ending.reset();  // its last call still uses the store
  if (stall_watch_ != nullptr) stall_watch_->stop();
  store_.reset();
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
                                      .activities = c->options_.activities,
                                      .health = c->health_,
                                      .fail = [job_watch = c.get()](const Status& cause) {
                                        job_watch->health_->fail(job_watch->report(cause));
                                      }});
  STORMO_RETURN_IF_ERROR(c->stall_watch_->start(by));
  c->store_->set_note_source([job_watch = c.get()] {
    job_watch->look_for_stuck_calls();
    job_watch->stall_watch_->tick();
    return job_watch->options_.activities->text();
  });
  c->store_->on_lost([health_of_group = c->health_](Status cause) {
    health_of_group->fail(cause.within("lost the job's store"));
  });
  STORMO_RETURN_IF_ERROR(
      c->store_->watch(kFailureKey, [health_of_group = c->health_](std::string_view value) {
        health_of_group->fail(decode_failure(value));
      }));
  STORMO_RETURN_IF_ERROR(c->store_->watch(
      kAlarmKey, [job_watch = c.get()](std::string_view) { job_watch->answer_alarm(); }));
  const Status died(Code::kPeerLost,
                    fmt::format("{} {}", c->options_.identity, protocol::kEndedInGroup));
  STORMO_RETURN_IF_ERROR(
      c->store_->set_will(kFailureKey, encode_failure(died), c->options_.heartbeat_timeout, by));
  return c;
}

/// On the store's thread, with every beat: a call that was there at the last one is compared with
/// those of other ranks.
void JobWatch::look_for_stuck_calls() {
  std::vector<Activities::Call> now = options_.activities->running();
  for (const Activities::Call& call : now) {
    const bool is_message = call.operation.sequence == 0;
    if (is_message || std::ranges::find(running_, call) == running_.end()) continue;
    const std::lock_guard lock(answer_mutex_);
    if (lane_ != nullptr) answer_ = lane_->submit([this, call] { return compare(call); });
  }
  running_ = std::move(now);
}

/// Ranks of a group that call the same operations have the same one in the same place.
Status JobWatch::compare(const Activities::Call& call) {
  const Operation& mine = call.operation;
  const std::string text = fmt::format("{} {:x}", mine.sequence, fingerprint(mine));
  const Deadline by = Deadline::after(kJobStoreCall);
  STORMO_ASSIGN_OR_RETURN(const std::string latest,
                          store_->set_if_absent(stuck_key(call.group), text, by));
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

Status JobWatch::report(const Status& local) {
  if (local.code() == Code::kPeerLost || local.code() == Code::kCancelled) {
    // the lost peer's own last will says more than "connection closed"
    const auto will = store_->get(kFailureKey, Deadline::after(kExplanation));
    if (will.ok()) return decode_failure(*will);
  }
  Status cause = local;
  const bool is_riddle = local.code() == Code::kMismatch || local.code() == Code::kDeadlineExceeded;
  if (is_riddle && !health_->failed() && local.message().find("\n  rank ") == std::string::npos) {
    cause = {local.code(), local.message() + collect_activities()};
  }
  const auto winner =
      store_->set_if_absent(kFailureKey, encode_failure(cause), Deadline::after(kJobStoreCall));
  return winner.ok() ? decode_failure(*winner) : cause;
}

Status JobWatch::goodbye(Deadline by) { return store_->goodbye(by); }

}  // namespace stormo::comm
