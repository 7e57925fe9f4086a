#include <stormo/server/coordinator/step_coordinator.h>

#include <chrono>
#include <utility>

#include <stormo/server/intervals.h>

namespace stormo::server {

StepCoordinator::StepCoordinator(Options options) : options_(std::move(options)) {
  if (!optim::updates_ranges(options_.optimizer.kind)) lbfgs_.emplace(options_.optimizer);
  if (!options_.numbers.empty()) {
    outcome_ = lbfgs_->resume(options_.numbers, *options_.servers);
    has_converged_ = lbfgs_->has_converged();
    has_ended_ = !outcome_.ok();
    if (has_ended_) return;
  }
  thread_ = std::thread([this] {
    outcome_ = run();
    has_ended_.store(true, std::memory_order_release);
  });
}

StepCoordinator::~StepCoordinator() {
  is_stopping_ = true;
  if (thread_.joinable()) thread_.join();
}

Status StepCoordinator::status() const {
  return has_ended_.load(std::memory_order_acquire) ? outcome_ : Status();
}

Status StepCoordinator::finish() {
  if (thread_.joinable()) thread_.join();
  return outcome_;
}

Status StepCoordinator::run() {
  Ledger& ledger = options_.servers->ledger();
  std::uint64_t step = options_.terms.first_step;
  while (step < options_.terms.steps && !has_converged_ && !is_stopping_) {
    STORMO_ASSIGN_OR_RETURN(const Ledger::Turn turn, ledger.look());
    if (turn.stop_signal != 0) break;
    if (!turn.is_computed) {
      STORMO_RETURN_IF_ERROR(ledger.wait(Deadline::after(kLookEvery)));
      continue;
    }
    const std::lock_guard lock(updating_);
    STORMO_RETURN_IF_ERROR(update(step));
    if (++step == options_.terms.steps) STORMO_RETURN_IF_ERROR(finish_optimizer());
    STORMO_RETURN_IF_ERROR(ledger.advance(step));
  }
  const std::lock_guard lock(updating_);
  return finish_optimizer();
}

std::vector<double> StepCoordinator::numbers() const {
  return lbfgs_ ? lbfgs_->numbers() : std::vector<double>();
}

Status StepCoordinator::update(std::uint64_t step) {
  const double lr = options_.learning_rate(step);
  if (!lbfgs_) {
    return options_.servers->run({{.kind = optim::VectorStep::Kind::kUpdate, .lr = lr}}).status();
  }
  STORMO_ASSIGN_OR_RETURN(const optim::Lbfgs::Outcome outcome, lbfgs_->next(lr, *options_.servers));
  has_converged_ = outcome == optim::Lbfgs::Outcome::kConverged;
  return {};
}

Status StepCoordinator::finish_optimizer() {
  return lbfgs_ ? lbfgs_->finish(*options_.servers) : Status();
}

}  // namespace stormo::server
