#include <stormo/comm/group/group.h>

#include <fmt/format.h>

namespace stormo::comm {
namespace {

constexpr Duration kGoodbye = std::chrono::seconds(2);

}  // namespace

Group::Group(Parts parts)
    : parts_(std::move(parts)),
      hosts_(HostMap::of(parts_.ranks_per_host)),
      host_layout_(host_layout_of(parts_.ranks_per_host, parts_.connections.host_group->crowded())),
      inline_(*parts_.connections.host_group),
      memory_(*parts_.connections.host_group) {
  if (parts_.activities == nullptr) parts_.activities = std::make_shared<Activities>();
  activity_ = parts_.activities->add(parts_.name, parts_.rank);
  transport::HostGroup& host = *parts_.connections.host_group;
  executor_ = {parts_.connections.network.get(), [&host](Deadline by) { return host.sync(by); },
               &workspace_};
}

Group::~Group() {
  if (!process_.is_here()) {
    // the parent's connections, and threads that are not here: kept for good, and reachable for
    // leak checkers
    static auto* const kept = new std::vector<Parts>;
    kept->push_back(std::move(parts_));
    return;
  }
  if (finalized_) return;
  if (parts_.name.empty()) {
    parts_.health->fail({Code::kCancelled, "the group was destroyed"});
  } else {
    parts_.connections.host_group->leave();  // the job goes on
  }
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
  return parts_.connections.network ? parts_.connections.network->counters().payload_bytes_sent : 0;
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
  STORMO_RETURN_IF_ERROR(run({.kind = OperationKind::kFinalize}, by));
  finalized_ = true;
  parts_.connections.host_group->leave();
  if (parts_.job_watch && parts_.name.empty()) {
    // the process that hosts the store may already be gone: everybody has finished well
    const Status said = parts_.job_watch->goodbye(Deadline::after(kGoodbye));
    static_cast<void>(said);
  }
  return {};
}

}  // namespace stormo::comm
