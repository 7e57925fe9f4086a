#include <stormo/mpi/engine.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include <stormo/comm/codec/encoded_sum.h>
#include <stormo/comm/operation/check_request.h>
#include <stormo/comm/operation/meeting.h>
#include <stormo/comm/operation/operation.h>
#include <stormo/comm/program/program.h>

namespace stormo::mpi {

using comm::Operation;
using comm::OperationKind;
using comm::OwnedRequest;
using comm::Request;

Engine::Engine(std::unique_ptr<Link> link, comm::Membership place, Process process,
               std::shared_ptr<const void> taken_name)
    : link_(std::move(link)),
      place_(std::move(place)),
      process_(std::move(process)),
      taken_name_(std::move(taken_name)),
      mailbox_(size() == 1 ? nullptr : make_mailbox()) {}

Engine::~Engine() {
  if (!finalized_ && link_->is_world()) link_->fail({Code::kCancelled, "the group was destroyed"});
  if (link_->abandoned()) scratch_.release();  // NOLINT: MPI may still write it
}

Status Engine::run(const Request& request, Deadline by) {
  if (is_message(request.kind)) {
    STORMO_RETURN_IF_ERROR(check_message(request));
    return mailbox_->run(request, by);
  }
  if (auto outcome = lane_.run_if_idle([&] { return perform(request, by); })) return *outcome;
  return finish_in_turn(request.kind, submit(request), by);
}

Status Engine::finish_in_turn(OperationKind kind, comm::Work work, Deadline by) {
  return comm::finish_in_turn(
      std::move(work), comm::to_string(kind), by, [this](const Status& cause) {
        fail(cause.within(fmt::format("rank {} (host {})", rank(), host())));
      });
}

comm::Work Engine::submit(const Request& request) {
  if (is_message(request.kind)) {
    Status wrong = check_message(request);
    return wrong.ok() ? mailbox_->submit(request) : comm::Work::completed(std::move(wrong));
  }
  return lane_.submit(
      [this, owned = OwnedRequest(request)] { return perform(owned.get(), Deadline::never()); });
}

Result<std::unique_ptr<comm::Communicator>> Engine::subgroup(std::span<const Rank> members,
                                                             Deadline by) {
  STORMO_RETURN_IF_ERROR(comm::check_members(members, size()));
  STORMO_RETURN_IF_ERROR(
      run({.kind = OperationKind::kSubgroup, .tag = comm::hash_of_members(members)}, by));
  const int number = ++num_subgroups_;
  if (!std::ranges::binary_search(members, rank())) return std::unique_ptr<comm::Communicator>();
  return make_group(members, {.key = fmt::format("subgroup {}/{}", place_.name, number),
                              .name = {},
                              .taken_name = nullptr,
                              .is_founder = members.front() == rank()});
}

Result<std::unique_ptr<comm::Communicator>> Engine::group_of(std::span<const Rank> members,
                                                             const std::string& name, Deadline by) {
  if (finalized_) return invalid_argument("the group was finalized");
  Result<transport::KeyValues*> values = process_.meeting_place->status().within("group_of");
  if (process_.meeting_place->values() != nullptr) values = process_.meeting_place->values();
  return comm::meet_by_name(
      {.parent = *this, .parent_key = place_.name, .names = names_, .values = std::move(values)},
      members, name, by,
      [&](const comm::GroupToConnect& group) { return make_group(members, group); });
}

/// The members know that all of them come. A failure makes the job fail: the others would wait in
/// MPI for ever.
Result<std::unique_ptr<comm::Communicator>> Engine::make_group(std::span<const Rank> members,
                                                               const comm::GroupToConnect& group) {
  auto made = make_link(members, group);
  if (!made.ok()) {
    fail(made.status());
    return status();
  }
  comm::Membership place =
      comm::membership_of(members, rank(), comm::HostMap::of(place_.ranks_per_host));
  place.name = group.key;
  return std::unique_ptr<comm::Communicator>(
      std::make_unique<Engine>(std::move(*made), std::move(place), process_, group.taken_name));
}

/// In its turn, if there is a place where ranks take turns. Without it there are only groups on
/// which all ranks of a group agree.
Result<std::unique_ptr<Link>> Engine::make_link(std::span<const Rank> members,
                                                const comm::GroupToConnect& group) {
  transport::KeyValues* const values = process_.meeting_place->values();
  if (values == nullptr || members.size() == 1) return link_->of_members(members);
  Turn turn(*values, group.key, group.is_founder);
  STORMO_RETURN_IF_ERROR(turn.wait([this] { return status(); }));
  auto made = link_->of_members(members);
  if (made.ok()) turn.end();
  return made;
}

Status Engine::finalize(Deadline by) {
  if (finalized_) return {};
  // meanwhile messages go on: a rank that waits for one of this rank has not called it yet
  STORMO_RETURN_IF_ERROR(run({.kind = OperationKind::kFinalize}, by));
  finalized_ = true;
  if (mailbox_) {
    mailbox_->end();
    STORMO_RETURN_IF_ERROR(peers_->drain(by));
  }
  return link_->close();
}

Status Engine::perform(const Request& request, Deadline by) {
  if (request.encoding != nullptr) {
    return request.encoding->perform(request, [&](const Request& r) { return perform(r, by); });
  }
  STORMO_RETURN_IF_ERROR(comm::check_request(request, rank(), size()));
  if (finalized_) return invalid_argument("the group was finalized");
  if (!request.algorithm.empty()) {
    return invalid_argument(
        fmt::format("algorithm {}: MPI chooses its algorithms itself; use the engine 'stormo'",
                    request.algorithm));
  }
  Execution::Call call{request, comm::describe(request, size()), by};
  if (link_->health().failed()) return status().within(to_text(call.operation));
  call.operation.sequence = ++sequence_;
  return conclude(call.operation, execute(call));
}

Status Engine::execute(const Execution::Call& call) {
  Execution execution(*link_, *scratch_, call, process_.options);
  const TimePoint start = std::chrono::steady_clock::now();
  if (process_.options.compare_calls) STORMO_RETURN_IF_ERROR(execution.compare());
  const TimePoint met = std::chrono::steady_clock::now();
  record(Lane::kWait, call.operation, start, met);
  STORMO_RETURN_IF_ERROR(execution.collective());
  record(Lane::kCommunication, call.operation, met, std::chrono::steady_clock::now());
  return {};
}

Status Engine::conclude(const Operation& operation, Status outcome) {
  if (outcome.ok()) return {};
  const std::string text = to_text(operation);
  if (outcome.code() != Code::kMismatch) {
    const std::lock_guard lock(mutex_);
    outcome = outcome.within(fmt::format("rank {} (host {}), {}{}{}", rank(), host(), section_,
                                         section_.empty() ? "" : ", ", text));
  }
  // unless it has failed already: the first cause stays
  const bool all_know = outcome.code() == Code::kMismatch && process_.options.compare_calls &&
                        !is_message(operation.kind) && link_->is_world();
  all_know ? link_->fail_here(std::move(outcome)) : link_->fail(std::move(outcome));
  return link_->health().status().within(text);
}

Status Engine::check_message(const Request& request) const {
  STORMO_RETURN_IF_ERROR(comm::check_request(request, rank(), size()));
  if (finalized_) return invalid_argument("the group was finalized");
  if (!link_->health().failed()) return {};
  return status().within(to_text(comm::describe(request, size())));
}

std::unique_ptr<comm::Mailbox> Engine::make_mailbox() {
  auto peers = std::make_unique<MpiPeers>(*link_, process_.options.bytes_per_call);
  peers_ = peers.get();
  comm::Mailbox::Parts parts;
  parts.size = size();
  parts.network = std::move(peers);
  parts.in_host.assign(static_cast<std::size_t>(size()), false);
  parts.health = {std::shared_ptr<void>(), &link_->health()};  // of the link, which lives longer
  parts.activity = std::make_shared<comm::Activity>();
  parts.give_up = [this](const Operation& operation, Status outcome) {
    static_cast<void>(conclude(operation, std::move(outcome)));
  };
  parts.done = [this](const Operation& operation, TimePoint begin) {
    record(Lane::kCommunication, operation, begin, std::chrono::steady_clock::now());
  };
  return std::make_unique<comm::Mailbox>(std::move(parts));
}

void Engine::set_sink(Sink* sink) {
  sink_ = sink;
  if (mailbox_) mailbox_->await_done_calls();  // the one before is not used any more
}

Status Engine::status() const {
  link_->listen();
  return link_->health().status();
}

void Engine::set_section(std::string_view text) {
  const std::lock_guard lock(mutex_);
  section_ = text;
}

void Engine::record(Lane lane, const Operation& operation, TimePoint start, TimePoint end) {
  Sink* const sink = sink_;
  if (sink != nullptr) sink->record(comm::event_of(operation, lane, rank(), start, end));
}

}  // namespace stormo::mpi
