#include <stormo/server/process/server_members.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <stormo/base/units.h>

namespace stormo::server {
namespace {

/// For the lease of a shard, when a worker is taken out of it.
constexpr Duration kLeavePatience = std::chrono::seconds(1);

bool is_served(const ServerMembers::Member& member) {
  return std::ranges::any_of(member.remotes, [](const auto& r) { return r && r->is_running(); });
}

}  // namespace

const ServerMembers::Member* ServerMembers::find(int worker) const {
  const auto found = members_.find(worker);
  return found == members_.end() ? nullptr : &found->second;
}

bool ServerMembers::any_here() const {
  return std::ranges::any_of(members_,
                             [](const auto& m) { return m.second.stage == Member::Stage::kHere; });
}

std::optional<int> ServerMembers::first_here() const {
  const auto found = std::ranges::find_if(members_, [](const auto& m) {
    return m.second.stage == Member::Stage::kHere && !m.second.is_refused;
  });
  return found == members_.end() ? std::nullopt : std::optional(found->first);
}

Status ServerMembers::admit(const WorkerHello& hello) {
  const auto known = members_.find(hello.worker);
  if (known != members_.end() && known->second.token == hello.token) return {};
  const bool was_there = known != members_.end();
  if (was_there) STORMO_RETURN_IF_ERROR(make_room(hello.worker));
  stalls_.forget(hello.worker);
  Member& member = members_[hello.worker] = {};
  member.token = hello.token;
  member.timeout = Duration(hello.timeout_ns);
  if (Place::own().is_same_host(hello.place)) {
    member.process.emplace(hello.place.process);
    member.pid = hello.place.process.pid;
  }
  if (was_there) {
    for (Replica* part : options_.parts->all()) part->readmit(hello.worker);
    event(fmt::format("worker {} is back, as a new process", hello.worker));
  }
  return {};
}

/// Takes out the process that had the worker's number before. kExhausted while it is there.
Status ServerMembers::make_room(int worker) {
  Member& before = members_.at(worker);
  if (before.process) before.process->wait(Duration::zero());
  const bool has_ended =
      before.process ? before.process->is_gone() : !options_.is_connected(worker);
  if (!has_ended && before.stage != Member::Stage::kFinished) {
    return Status(Code::kExhausted,
                  fmt::format("worker {} is there already; end its process, or give this one "
                              "another number",
                              worker));
  }
  if (before.stage == Member::Stage::kHere) evict(worker, before, "a new process has its number");
  take_out(worker, before);
  if (before.is_leaving || is_served(before)) {
    return Status(Code::kExhausted, fmt::format("worker {} is still being taken out", worker));
  }
  return {};
}

Result<RemoteWorker*> ServerMembers::remote_of(const Attachment& attachment) {
  const auto member = members_.find(attachment.worker);
  if (member == members_.end() || member->second.token != attachment.token ||
      member->second.stage != Member::Stage::kHere) {
    return io_error("it has to say hello first");
  }
  Replica* const part = options_.parts->part(attachment.part);
  if (part == nullptr) return Status(Code::kCorrupt, "server protocol: a part of another server");
  if (attachment.coordinates && (attachment.worker != 0 || options_.parts->has_backups())) {
    return Status(Code::kCorrupt,
                  "server protocol: only worker 0 of a run without backups has a coordinator");
  }
  std::size_t number = part == options_.parts->all().front() ? 0 : 1;
  if (attachment.coordinates) number = 2;
  std::unique_ptr<RemoteWorker>& remote = member->second.remotes[number];
  if (!remote) {
    const int acts_for = attachment.coordinates ? part->run().coordinator() : attachment.worker;
    remote = std::make_unique<RemoteWorker>(*part, acts_for, member->second.timeout);
  }
  return remote.get();
}

void ServerMembers::hear(int worker, TimePoint now, const protocol::WorkerPace* state) {
  Member& member = members_.at(worker);
  member.heard = now;
  if (member.stage == Member::Stage::kHere && state != nullptr) {
    stalls_.note(worker, *state, awake_);
  }
  if (member.stage != Member::Stage::kLost) return;
  const bool gets_on = state != nullptr && state->progress != member.stuck_at.value_or(0);
  if (member.stuck_at && !gets_on) return;
  take_out(worker, member);
  if (member.is_leaving) return;
  member.stage = Member::Stage::kHere;
  member.stuck_at.reset();
  for (Replica* part : options_.parts->all()) part->readmit(worker);
  event(fmt::format("worker {} is back", worker));
}

void ServerMembers::finish(int worker) {
  members_.at(worker).stage = Member::Stage::kFinished;
  stalls_.finish(worker, awake_);
}

void ServerMembers::end_process(int worker) {
  const auto found = members_.find(worker);
  if (found == members_.end() || !found->second.process) return;
  if (found->second.process->can_be_ended()) found->second.process->end();
}

// Each server decides for itself, as when a worker is silent. One of them warns. A process of this
// host that is stuck is ended at once: it may hold a lease, or copies that it maps, and would not
// notice the end of the run. A chief is ended by who puts another in its place, or by who started
// it, since the run fails because of it.
void ServerMembers::look_for_stalls(int chief) {
  for (const protocol::WorkerStalls::Stall& stall : stalls_.look(awake_)) {
    Member& member = members_.at(stall.worker);
    const std::string who = member.process
                                ? fmt::format("worker {} (pid {})", stall.worker, member.pid)
                                : fmt::format("worker {}", stall.worker);
    if (stall.ends) {
      member.stuck_at = stall.progress;
      if (stall.worker != chief) end_process(stall.worker);
      evict(stall.worker, member, "it " + stall.text);
    } else if (options_.parts->all().front()->part() == 0) {
      event(fmt::format("warning: {} {}", who, stall.text));
    }
  }
}

void ServerMembers::watch(TimePoint now, Duration since, Duration pause) {
  awake_ += since - pause;
  for (auto& [worker, member] : members_) {
    member.heard += pause;
    const bool is_connected = options_.is_connected(worker);
    if (member.process && !is_connected) member.process->wait(Duration::zero());
    if (member.stage == Member::Stage::kHere) {
      if (!is_connected && member.process && member.process->is_gone()) {
        evict(worker, member, "its process has ended");
      } else if (now - member.heard > member.timeout) {
        const double seconds = std::chrono::duration<double>(now - member.heard).count();
        evict(worker, member, fmt::format("nothing was heard of it for {:.1f} s", seconds));
      }
    }
    if (member.stage != Member::Stage::kHere) take_out(worker, member);
  }
}

void ServerMembers::miss_absent(Duration limit) {
  for (int w = 0; w < options_.parts->workers(); ++w) {
    if (members_.contains(w)) continue;
    evict(w, members_[w], fmt::format("it did not come within {}", format_duration(limit)));
  }
}

void ServerMembers::take_over() {
  for (auto& [worker, member] : members_) {
    if (member.stage == Member::Stage::kLost) {
      member.is_leaving = true;
      member.is_buried = false;
    }
    if (member.stage != Member::Stage::kHere) continue;
    for (Replica* part : options_.parts->all()) {
      if (part->run().is_lost(worker)) part->readmit(worker);
    }
  }
}

void ServerMembers::evict(int worker, Member& member, const std::string& why) {
  member.stage = Member::Stage::kLost;
  member.lost_why = why;
  stalls_.forget(worker);
  member.is_leaving = true;
  member.is_buried = false;
  take_out(worker, member);
  if (!member.is_refused) event(fmt::format("worker {} was lost: {}", worker, why));
}

/// What is left to do for a worker that is lost: it leaves the shards, and when its process has
/// ended, its copies are free. With backups it has no copies, and its requests come before its
/// loss.
void ServerMembers::take_out(int worker, Member& member) {
  for (const auto& remote : member.remotes) {
    if (remote) remote->cut();
  }
  const bool maps = !options_.parts->has_backups() && member.process && !member.process->is_gone();
  if (!member.is_buried && !maps && !is_served(member)) {
    for (Replica* part : options_.parts->all()) part->release_copies(worker);
    member.is_buried = true;
  }
  if (!member.is_leaving || (options_.parts->has_backups() && !member.is_buried)) return;
  member.is_leaving = !std::ranges::all_of(options_.parts->all(), [worker](Replica* part) {
    return part->evict(worker, Deadline::after(kLeavePatience)).ok();
  });
}

}  // namespace stormo::server
