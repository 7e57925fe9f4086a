#include <stormo/protocol/server/policy.h>

#include <algorithm>

namespace stormo::protocol {
namespace {

/// Policies under which every push is an update.
class Async : public Policy {
 public:
  explicit Async(const PolicyOptions& options)
      : compensation_(options.compensation),
        delay_{.lambda = compensates_delay(compensation_) ? options.lambda : 0,
               .is_adaptive = compensation_ == Compensation::kAdaptiveDelay,
               .decay = options.lambda_decay},
        warm_start_(static_cast<std::uint64_t>(options.warm_start)) {}
  std::string_view name() const override { return "async"; }
  bool may_read(const ShardState& state, int worker) const override {
    const WorkerState& first = state.worker(0);
    return worker == 0 || !first.active || first.pushes >= warm_start_;
  }
  Compensation compensation() const override { return compensation_; }
  std::size_t at_once(const ShardState& state) const override { return state.workers.size(); }
  DelayCompensation delay_compensation() const override { return delay_; }

 private:
  Compensation compensation_;
  DelayCompensation delay_;
  std::uint64_t warm_start_;
};

// A worker's clock is its number of pushes. Two bounds hold: no worker begins clock c before all
// have finished clock c-s-1, and no update of clock c is made before all have read for clock c-s.
// The second one makes s = 0 synchronous: nobody reads a part of the updates of its own clock.
class Ssp final : public Async {
 public:
  explicit Ssp(const PolicyOptions& options)
      : Async(options), bound_(static_cast<std::uint64_t>(options.bound)) {}
  std::string_view name() const override { return "ssp"; }
  bool may_read(const ShardState& state, int worker) const override {
    return state.worker(worker).pushes <= state.slowest_clock().value_or(0) + bound_;
  }
  bool may_push(const ShardState& state, int worker) const override {
    const std::uint64_t clock = state.worker(worker).pushes;
    return std::ranges::all_of(
        state.workers, [&](const WorkerState& w) { return !w.active || w.reads + bound_ > clock; });
  }
  Status invariant(const ShardState& state) const override {
    const std::uint64_t slowest = state.slowest_clock().value_or(0);
    for (const WorkerState& w : state.workers) {
      if (w.active && w.pushes > slowest + bound_ + 1) {
        return Status(Code::kCorrupt, "ssp: a worker has finished " + std::to_string(w.pushes) +
                                          " clocks, the slowest one " + std::to_string(slowest) +
                                          "; the bound is " + std::to_string(bound_));
      }
    }
    return {};
  }

 private:
  std::uint64_t bound_;
};

/// Whether no gradient of the worker is among the pending ones: then it has to read and to push.
bool has_no_term(const ShardState& state, int worker) {
  const WorkerState& w = state.worker(worker);
  return w.pushes == w.dropped || state.version > w.version_used;
}

/// Policies under which an update is an average.
class Averaging : public Policy {
 public:
  Averaging(Compensation compensation, int at_once)
      : compensation_(compensation), at_once_(static_cast<std::size_t>(at_once)) {}
  bool averages() const override { return true; }
  Compensation compensation() const override { return compensation_; }
  std::size_t at_once(const ShardState& /*state*/) const override { return at_once_; }

 private:
  Compensation compensation_;
  std::size_t at_once_;
};

class Sync : public Averaging {
 public:
  explicit Sync(Compensation compensation) : Averaging(compensation, 1) {}
  std::string_view name() const override { return "sync"; }
  bool may_read(const ShardState& state, int worker) const override {
    return has_no_term(state, worker);
  }
  bool may_push(const ShardState& state, int worker) const override {
    return has_no_term(state, worker);
  }
  bool complete(const ShardState& state) const override {
    for (int w = 0; w < std::ssize(state.workers); ++w) {
      if (state.worker(w).active && has_no_term(state, w)) return false;
    }
    return true;
  }
};

// A worker waits for those before it, which wait for nobody in their pushes.
class Average final : public Sync {
 public:
  Average() : Sync(Compensation::kNone) {}
  std::string_view name() const override { return "average"; }
  bool replaces() const override { return true; }
  bool may_push(const ShardState& state, int worker) const override {
    for (int before = 0; before < worker; ++before) {
      if (state.worker(before).active && has_no_term(state, before)) return false;
    }
    return has_no_term(state, worker);
  }
};

class NSoftsync final : public Averaging {
 public:
  NSoftsync(int n, Compensation compensation) : Averaging(compensation, n), n_(n) {}
  std::string_view name() const override { return "n_softsync"; }
  Status check(int workers) const override {
    if (n_ >= 1 && n_ <= workers) return {};
    return invalid_argument("n_softsync: n = " + std::to_string(n_) + ", but must be from 1 to " +
                            std::to_string(workers) + ", the number of workers");
  }
  bool complete(const ShardState& state) const override {
    // the last worker that leaves applies the rest
    return state.pending >= std::max<std::int64_t>(1, std::ssize(state.workers) / n_) ||
           state.active_workers() == 0;
  }

 private:
  int n_;
};

class BackupWorkers final : public Averaging {
 public:
  BackupWorkers(int backups, Compensation compensation)
      : Averaging(compensation, 1), backups_(backups) {}
  std::string_view name() const override { return "backup_workers"; }
  Status check(int workers) const override {
    if (backups_ >= 0 && backups_ < workers) return {};
    return invalid_argument("backup_workers: " + std::to_string(backups_) +
                            " backups, but must be from 0 to " + std::to_string(workers - 1) +
                            ", one less than the workers");
  }
  bool may_read(const ShardState& state, int worker) const override {
    return has_no_term(state, worker);
  }
  bool may_push(const ShardState& state, int worker) const override {
    return has_no_term(state, worker);
  }
  bool accepts(const ShardState& state, const Push& push) const override {
    return state.worker(push.worker).version_read == state.version;
  }
  bool complete(const ShardState& state) const override {
    const auto all = std::ssize(state.workers);
    return state.pending >= std::min<std::int64_t>(all - backups_, state.active_workers());
  }

 private:
  int backups_;
};

class Portions final : public Averaging {
 public:
  Portions(int portions, Compensation compensation)
      : Averaging(compensation, 1), portions_(portions) {}
  std::string_view name() const override { return "portions"; }
  Status check(int /*workers*/) const override {
    if (portions_ >= 1 && portions_ <= kMaxPortions) return {};
    return invalid_argument("portions: " + std::to_string(portions_) +
                            " portions of a batch, but must be from 1 to " +
                            std::to_string(kMaxPortions));
  }
  bool accepts(const ShardState& state, const Push& push) const override {
    return push.portion >= 0 && push.portion < portions_ && push.batch == state.version &&
           !state.has_counted(push.portion);
  }
  Status invariant(const ShardState& state) const override {
    if (state.pending <= portions_) return {};
    return Status(Code::kCorrupt, "portions: " + std::to_string(state.pending) +
                                      " gradients of a batch of " + std::to_string(portions_) +
                                      " portions");
  }

 private:
  int portions_;
};

}  // namespace

bool compensates_delay(Compensation compensation) {
  return compensation == Compensation::kDelay || compensation == Compensation::kAdaptiveDelay;
}

bool has_coordinator(PolicyOptions::Kind kind) { return kind == PolicyOptions::Kind::kPortions; }

bool averages_values(PolicyOptions::Kind kind) { return kind == PolicyOptions::Kind::kAverage; }

const std::vector<std::string_view>& policy_names() {
  static const std::vector<std::string_view> names = {
      "sync", "async", "ssp", "n_softsync", "backup_workers", "portions", "average"};
  return names;
}

const std::vector<std::string_view>& compensation_names() {
  static const std::vector<std::string_view> names = {"none", "inverse_staleness",
                                                      "learning_rate_over_n", "delay_compensated",
                                                      "adaptive_delay_compensated"};
  return names;
}

Result<std::shared_ptr<const Policy>> make_policy(const PolicyOptions& options, int workers) {
  using enum PolicyOptions::Kind;
  std::shared_ptr<const Policy> policy;
  switch (options.kind) {
    case kSync: policy = std::make_shared<Sync>(options.compensation); break;
    case kAsync: policy = std::make_shared<Async>(options); break;
    case kSsp: policy = std::make_shared<Ssp>(options); break;
    case kNSoftsync: policy = std::make_shared<NSoftsync>(options.n, options.compensation); break;
    case kBackupWorkers:
      policy = std::make_shared<BackupWorkers>(options.backups, options.compensation);
      break;
    case kPortions:
      policy = std::make_shared<Portions>(options.portions, options.compensation);
      break;
    case kAverage: policy = std::make_shared<Average>(); break;
  }
  if (options.bound < 0) {
    return invalid_argument("ssp: the bound is " + std::to_string(options.bound) +
                            ", but must be 0 or more");
  }
  if (options.warm_start < 0 || (options.warm_start > 0 && options.kind != kAsync)) {
    return invalid_argument("a warm start of " + std::to_string(options.warm_start) +
                            " steps; give 0 or more, and more than 0 with async only: others wait "
                            "for all workers");
  }
  if (compensates_delay(options.compensation) && policy->averages()) {
    return invalid_argument(
        "delay compensation needs a policy under which every push is an update, "
        "async or ssp; " +
        std::string(policy->name()) + " averages gradients first");
  }
  if (policy->replaces() && options.compensation != Compensation::kNone) {
    return invalid_argument(
        "average: workers push parameters, not gradients, so there is no staleness to compensate "
        "for; leave out the compensation");
  }
  STORMO_RETURN_IF_ERROR(policy->check(workers));
  return policy;
}

}  // namespace stormo::protocol
