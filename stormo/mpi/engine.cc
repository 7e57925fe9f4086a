#include <stormo/mpi/engine.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include <stormo/comm/codec/encoded_sum.h>
#include <stormo/comm/operation/check_request.h>
#include <stormo/comm/operation/members.h>
#include <stormo/comm/operation/operation.h>
#include <stormo/comm/program/program.h>

namespace stormo::mpi {

using comm::Operation;
using comm::OperationKind;
using comm::OwnedRequest;
using comm::Request;

Engine::Engine(std::unique_ptr<Link> link, comm::Membership place, Process process)
    : link_(std::move(link)), place_(std::move(place)), process_(std::move(process)) {}

Engine::~Engine() {
  if (!finalized_ && link_->is_world()) link_->fail({Code::kCancelled, "the group was destroyed"});
  if (link_->abandoned()) scratch_.release();  // NOLINT: MPI may still write it
}

Status Engine::run(const Request& request, Deadline by) {
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
  return lane_.submit(
      [this, owned = OwnedRequest(request)] { return perform(owned.get(), Deadline::never()); });
}

Result<std::unique_ptr<comm::Communicator>> Engine::subgroup(std::span<const Rank> members,
                                                             Deadline by) {
  STORMO_RETURN_IF_ERROR(comm::check_members(members, size()));
  const bool member = std::ranges::binary_search(members, rank());
  const Request agreement{.kind = OperationKind::kSubgroup, .tag = comm::hash_of_members(members)};
  std::unique_ptr<Link> made;
  const auto body = [this, &agreement, member, by, &made] {
    STORMO_RETURN_IF_ERROR(perform(agreement, by));
    auto split = link_->split(member);
    if (split.ok()) made = std::move(*split);
    return split.status();
  };
  auto outcome = lane_.run_if_idle(body);
  if (!outcome) outcome = finish_in_turn(OperationKind::kSubgroup, lane_.submit(body), by);
  STORMO_RETURN_IF_ERROR(*outcome);
  if (!member) return std::unique_ptr<comm::Communicator>();
  const auto hosts = comm::HostMap::of(place_.ranks_per_host);
  return std::unique_ptr<comm::Communicator>(std::make_unique<Engine>(
      std::move(made), comm::membership_of(members, rank(), hosts), process_));
}

Status Engine::finalize(Deadline by) {
  if (finalized_) return {};
  STORMO_RETURN_IF_ERROR(run({.kind = OperationKind::kFinalize}, by));
  finalized_ = true;
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
  if (!is_message(request.kind)) call.operation.sequence = ++sequence_;
  return conclude(call.operation, execute(call));
}

Status Engine::execute(const Execution::Call& call) {
  Execution execution(*link_, *scratch_, call, process_.options);
  const TimePoint start = std::chrono::steady_clock::now();
  TimePoint met = start;
  const bool message = is_message(call.request.kind);
  if (!message) {
    if (process_.options.compare_calls) STORMO_RETURN_IF_ERROR(execution.compare());
    met = std::chrono::steady_clock::now();
    record(Lane::kWait, call.operation, start, met);
  }
  STORMO_RETURN_IF_ERROR(message ? execution.message() : execution.collective());
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

Status Engine::status() const {
  link_->listen();
  return link_->health().status();
}

void Engine::set_section(std::string_view text) {
  const std::lock_guard lock(mutex_);
  section_ = text;
}

void Engine::record(Lane lane, const Operation& operation, TimePoint start, TimePoint end) {
  if (sink_ != nullptr) sink_->record(comm::event_of(operation, lane, rank(), start, end));
}

}  // namespace stormo::mpi
