// Primary and backup of a part of a run.
//
// Idea: the shards and the ledger are deterministic, given the order of requests. The primary
// executes requests under a lock and sends them to the backup under the same lock, over one
// connection, so the backup executes them in the same order. A worker gets its answer after that;
// so what a worker has seen or has been told is at both. Requests that only look are sent as well:
// they pin versions, and their results are compared. Before a request takes its place in the order,
// it waits outside of it until the policy permits it. Cost: one more trip of each gradient.
// Paper: N. Budhiraja, K. Marzullo, F. Schneider, S. Toueg, "The primary-backup approach", 1993.
#include <stormo/server/replica/replica.h>

#include <fmt/format.h>

#include <utility>

#include <stormo/server/intervals.h>

namespace stormo::server {
namespace {

Deadline deadline_of(const DataRequest& request) {
  return request.patience_ns < 0 ? Deadline::never()
                                 : Deadline::after(Duration(request.patience_ns));
}

}  // namespace

Result<std::unique_ptr<Replica>> Replica::create(int workers, int part, int servers, Role role) {
  std::unique_ptr<Replica> replica(new Replica(role));
  STORMO_ASSIGN_OR_RETURN(replica->run_, HostedRun::create(workers, part, servers));
  replica->executors_.resize(static_cast<std::size_t>(replica->run_->coordinator()) + 1);
  return replica;
}

Replica::~Replica() { close(); }

Replica::Role Replica::role() const {
  const std::lock_guard lock(mutex_);
  return role_;
}

Status Replica::connect_backup(ServerLink::Options backup) {
  STORMO_ASSIGN_OR_RETURN(link_, ServerLink::begin(std::move(backup)));
  backup_ = std::make_unique<DataLink>(std::vector{link_}, part());
  return {};
}

Status Replica::backup_status() const {
  return role() == Role::kPrimary && link_ ? link_->status() : Status();
}

void Replica::go_on_alone() {
  {
    const std::lock_guard lock(mutex_);
    role_ = Role::kAlone;
  }
  if (link_) link_->give_up("the run goes on without it");
  changed_.notify_all();
}

void Replica::close() {
  {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
  }
  if (link_) link_->give_up("this server ends");
  changed_.notify_all();
}

Status Replica::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

bool Replica::is_closed() const {
  const std::lock_guard lock(mutex_);
  return is_closed_;
}

RequestExecutor& Replica::executor_of(int worker) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<RequestExecutor>& executor = executors_[static_cast<std::size_t>(worker)];
  if (!executor) executor = std::make_unique<RequestExecutor>(*run_, worker);
  return *executor;
}

std::shared_ptr<DataCall> Replica::forward(DataRequest request, const Payload& payload) {
  if (role() != Role::kPrimary || !backup_) return nullptr;
  return backup_->start(std::move(request), payload.bytes);
}

// Others may go on at once: their answers wait for the backup, and it executes this first.
Status Replica::evict(int worker, Deadline by) {
  const std::lock_guard lock(order_);
  if (role() == Role::kBackup) return {};
  STORMO_RETURN_IF_ERROR(run_->evict(worker, by));
  forward({.op = DataOp::kLose, .given = {}, .worker = worker}, {});
  return {};
}

void Replica::release_copies(int worker) {
  const std::lock_guard lock(order_);
  if (role() == Role::kBackup) return;
  if (run_->terms()) executor_of(worker).forget();
  run_->release_copies(worker);
}

void Replica::readmit(int worker) {
  const std::lock_guard lock(order_);
  if (role() == Role::kBackup) return;
  run_->readmit(worker);
  forward({.op = DataOp::kComeBack, .given = {}, .worker = worker}, {});
}

void Replica::begin_election(const protocol::ChiefTerm& next) {
  const std::lock_guard lock(order_);
  election_ =
      forward({.op = DataOp::kElect, .term = next.number, .given = {}, .worker = next.worker}, {});
}

std::optional<Status> Replica::election_outcome() {
  return election_ ? backup_->outcome(*election_) : Status();
}

protocol::ChiefTerm Replica::told_chief() const {
  const std::lock_guard lock(mutex_);
  return told_chief_;
}

Status Replica::wait_to_serve(Deadline by, const std::function<Status()>& status) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (is_closed_) return Status(Code::kCancelled, "the server ends");
    if (role_ != Role::kBackup) return {};
    STORMO_RETURN_IF_ERROR(status());
    if (by.expired()) {
      return Status(Code::kPeerLost,
                    fmt::format("server {} cannot be reached by this worker, but the run goes on "
                                "with it; look at the network between them",
                                part()));
    }
    changed_.wait_until(lock, std::min(by.when(), Deadline::after(kLookEvery).when()));
  }
}

Result<RequestExecutor::Answer*> Replica::answer(RequestExecutor& in_name,
                                                 const DataRequest& request, const Payload& payload,
                                                 Duration patience, std::function<Status()> status,
                                                 RequestExecutor::Answer& answer) {
  const Status may = wait_to_serve(Deadline::after(patience), status);
  if (may.code() == Code::kCancelled) return may;
  if (!may.ok()) {
    answer.conclude(may);
    return &answer;
  }
  in_name.watch(std::move(status));
  RequestExecutor::Answer& last = in_name.last_answer(request);
  if (request.id != 0 && last.id == request.id) return &last;
  // who waits for others changes nothing
  const bool has_order = role() != Role::kOnly && request.op != DataOp::kWait;
  const Result<std::string> result =
      has_order ? execute(in_name, request, payload, answer)
                : in_name.execute(request, payload, answer, deadline_of(request));
  if (result.status().code() == Code::kCancelled) return result.status();
  answer.conclude(result);
  if (is_harmless(request.op)) return &answer;
  return &(last = std::move(answer));
}

Result<std::string> Replica::execute(RequestExecutor& in_name, const DataRequest& request,
                                     const Payload& payload, RequestExecutor::Answer& answer) {
  const Deadline by = deadline_of(request);
  for (;;) {
    STORMO_RETURN_IF_ERROR(in_name.wait_to(request, by));
    std::shared_ptr<DataCall> copied;
    Result<std::string> result = execute_in_order(in_name, request, payload, answer, copied);
    if (result.status().code() == Code::kDeadlineExceeded && !by.expired()) continue;
    if (copied) STORMO_RETURN_IF_ERROR(wait_for_copy(copied));
    return result;
  }
}

/// Does not wait for other workers. What has failed has changed nothing.
Result<std::string> Replica::execute_in_order(RequestExecutor& in_name, const DataRequest& request,
                                              const Payload& payload,
                                              RequestExecutor::Answer& answer,
                                              std::shared_ptr<DataCall>& copied) {
  const std::lock_guard lock(order_);
  if (is_closed()) return Status(Code::kCancelled, "the server ends");
  STORMO_ASSIGN_OR_RETURN(std::string result, in_name.execute(request, payload, answer,
                                                              Deadline::after(Duration::zero())));
  DataRequest copy = request;
  copy.worker = in_name.worker();
  copy.origin = request.id;
  copy.result = result;
  copied = forward(std::move(copy), payload);
  return result;
}

// Without the backup's word nobody knows which of the two goes on, until it is decided.
Status Replica::wait_for_copy(const std::shared_ptr<DataCall>& copied) {
  if (backup_->wait(*copied).ok()) return {};
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return is_closed_ || role_ != Role::kPrimary; });
  return is_closed_ ? Status(Code::kCancelled, "the server ends") : Status();
}

// Requests come in the order of their numbers; the first ones may be repeated.
Status Replica::follow(const DataRequest& request, const Payload& payload) {
  const std::lock_guard lock(order_);
  if (request.id <= followed_) return {};
  followed_ = request.id;
  const Status status = follow_in_order(request, payload);
  const std::lock_guard guard(mutex_);
  if (failure_.ok()) failure_ = status;
  return status;
}

Status Replica::follow_in_order(const DataRequest& request, const Payload& payload) {
  if (request.op == DataOp::kElect) {
    const std::lock_guard lock(mutex_);
    told_chief_ = {.number = request.term, .worker = request.worker};
    return {};
  }
  RequestExecutor& in_name = executor_of(request.worker);
  if (request.op == DataOp::kLose || request.op == DataOp::kComeBack) {
    in_name.forget();
    run_->release_copies(request.worker);
    if (request.op == DataOp::kLose) return run_->evict(request.worker, Deadline::never());
    run_->readmit(request.worker);
    return {};
  }
  RequestExecutor::Answer answer{.id = request.origin};
  const Result<std::string> result =
      in_name.execute(request, payload, answer, Deadline::after(Duration::zero()));
  if (!result.ok() || *result != request.result) {
    return Status(Code::kCorrupt,
                  fmt::format("the copy of server {}'s part differs from the original: request {} "
                              "of worker {} gave another result ({})",
                              part(), static_cast<int>(request.op), request.worker,
                              result.ok() ? "ok" : result.status().to_string()));
  }
  answer.conclude(result);
  if (!is_harmless(request.op)) in_name.last_answer(request) = std::move(answer);
  return {};
}

}  // namespace stormo::server
