#include <stormo/comm/group/group.h>

#include <fmt/format.h>

#include <stormo/transport/store/store_keeper.h>

namespace stormo::comm {
namespace {

/// How long a rank that leaves waits for what is pending.
constexpr Duration kPatience = std::chrono::seconds(2);

Status ended_by_leaving() {
  return {Code::kCancelled, "the group was left before the operation was complete"};
}

}  // namespace

Group::Group(Parts parts)
    : parts_(std::move(parts)),
      hosts_(HostMap::of(parts_.ranks_per_host)),
      host_layout_(host_layout_of(parts_.ranks_per_host, parts_.connections.host_group->crowded())),
      inline_(*parts_.connections.host_group),
      memory_(*parts_.connections.host_group) {
  if (parts_.activities == nullptr) parts_.activities = std::make_shared<Activities>();
  activity_ = parts_.activities->add(parts_.name, parts_.rank, size());
  message_activity_ = parts_.activities->add(messages_name(), parts_.rank, size());
  transport::HostGroup& host = *parts_.connections.host_group;
  executor_ = {parts_.connections.network.get(), [&host](Deadline by) { return host.sync(by); },
               &workspace_};
  if (size() > 1) mailbox_ = make_mailbox();
}

Group::~Group() {
  if (!process_.is_here()) {
    // the parent's connections, and threads that are not here: kept for good, and reachable for
    // leak checkers
    static auto* const kept = new std::vector<std::pair<Parts, std::unique_ptr<Mailbox>>>;
    kept->emplace_back(std::move(parts_), std::move(mailbox_));
    return;
  }
  if (finalized_) return;
  if (!parts_.name.empty()) {  // the job goes on
    static_cast<void>(leave());
    return;
  }
  parts_.health->fail({Code::kCancelled, "the group was destroyed"});
  finalized_ = true;  // functions that are called at the end of messages may submit nothing
  if (mailbox_) mailbox_->end();
}

Status Group::refuse_child() const {
  return invalid_argument(
      fmt::format("rank {}'s group belongs to the process that joined it, and this is a child that "
                  "was forked from it: fork before you join, or start another program in the child",
                  rank()));
}

void Group::set_section(std::string_view text) {
  if (process_.is_here()) parts_.activities->set_section(text);
}

std::uint64_t Group::bytes_sent() const {
  const transport::Transport* const network = parts_.connections.network.get();
  return (network == nullptr ? 0 : network->counters().payload_bytes_sent) +
         (mailbox_ == nullptr ? 0 : mailbox_->bytes_sent());
}

std::string Group::algorithm(plan::GoalKind goal, std::uint64_t bytes) const {
  if (in_one_pass({.kind = kind_of(goal)})) return {};
  return std::string(selection().choose(goal, host_layout_, size(), bytes).builder->name);
}

void Group::fail(Status cause) {
  if (!process_.is_here()) return;
  if (parts_.job_watch) cause = parts_.job_watch->report(cause);
  parts_.health->fail(std::move(cause));
}

Status Group::finalize(Deadline by) {
  STORMO_RETURN_IF_ERROR(check_process());
  if (finalized_) return {};
  // meanwhile messages go on: a rank that waits for one of this rank has not called it yet
  STORMO_RETURN_IF_ERROR(run({.kind = OperationKind::kFinalize}, by));
  finalized_ = true;
  if (mailbox_) mailbox_->end();
  parts_.connections.host_group->leave();
  remove_activities();
  if (!parts_.job_watch) return {};
  if (parts_.name.empty()) {
    parts_.job_watch->end();
  } else if (rank() == 0) {
    const std::string names[] = {parts_.name, messages_name()};
    parts_.job_watch->forget(names);
  }
  return {};
}

Status Group::leave() {
  STORMO_RETURN_IF_ERROR(check_process());
  if (finalized_) return {};
  const Deadline by = Deadline::after(kPatience);
  Status sent;
  if (mailbox_ && status().ok()) sent = mailbox_->flush(by);
  if (status().ok()) lane_.await_idle(by);
  const Status before = status();
  lane_.cancel_pending();
  finalized_ = true;  // what runs now is cancelled
  const Status told = tell_that_it_leaves();
  parts_.taken_name.reset();
  parts_.connections.host_group->leave();
  if (parts_.connections.network) parts_.connections.network->fail(ended_by_leaving());
  if (mailbox_) mailbox_->end();
  lane_.await_idle(Deadline::never());  // its buffers are used again
  remove_activities();
  if (!before.ok()) return before;
  // the others need the Store of this process until they have left
  if (parts_.server) transport::StoreKeeper::of_process().keep(std::move(parts_.server));
  return sent.ok() ? told : sent;
}

/// Of an operation that this rank has left: who calls it later must not use its memory.
Status Group::cancel() {
  parts_.connections.host_group->fence().close();
  activity_->end();
  return ended_by_leaving();
}

Status Group::tell_that_it_leaves() {
  if (!parts_.job_watch) return {};
  if (parts_.name.empty()) return parts_.job_watch->leave();
  if (parts_.health->failed()) return {};
  STORMO_RETURN_IF_ERROR(parts_.job_watch->leave({parts_.name, parts_.rank, size(), activity_}));
  return parts_.job_watch->leave({messages_name(), parts_.rank, size(), message_activity_});
}

}  // namespace stormo::comm
