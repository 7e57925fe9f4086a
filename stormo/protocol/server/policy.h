#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/protocol/server/shard_state.h>

namespace stormo::protocol {

/// To a gradient g is added lambda g*g*(w - v), elementwise: w are the parameters now, v those that
/// g was computed from.
struct DelayCompensation {
  double lambda = 0;  ///< 0: nothing is added
  /// lambda is divided by sqrt(m + kEpsilon), with m <- decay m + (1 - decay) g*g for each element,
  /// 0 at first. The shard keeps m.
  bool is_adaptive = false;
  double decay = 0;
  static constexpr double kEpsilon = 1e-7;
};

/// How the staleness of gradients is compensated for.
enum class Compensation : std::uint8_t {
  kNone,
  /// The learning rate of a gradient is divided by its staleness, if that is more than 1. Zhang,
  /// Gupta, Lian, Liu, "Staleness-aware async-SGD for distributed deep learning", IJCAI 2016.
  kInverseStaleness,
  /// The learning rate is divided by the number of gradients that are computed at once for one
  /// update of all workers: n in n_softsync, the number of workers if every push is an update.
  /// Gupta, Zhang, Wang, "Model accuracy and runtime tradeoff in distributed deep learning", ICDM
  /// 2016.
  kLearningRateOverN,
  /// DelayCompensation with a constant lambda. Only if every push is an update. Zheng et al.,
  /// "Asynchronous stochastic gradient descent with delay compensation" (DC-ASGD-c), ICML 2017.
  kDelay,
  /// The same with a lambda that adapts (DC-ASGD-a).
  kAdaptiveDelay,
};

/// Decides when workers may read and push, and how gradients become updates. A policy has no state
/// of its own: every function is pure. Each shard decides for itself. New policies: see
/// docs/guides/add-a-policy.md.
class Policy {
 public:
  virtual ~Policy() = default;

  /// As in recipes.
  virtual std::string_view name() const = 0;
  /// kInvalidArgument if the policy's parameters do not fit this number of workers.
  virtual Status check(int /*workers*/) const { return {}; }

  virtual bool may_read(const ShardState& /*state*/, int /*worker*/) const { return true; }
  virtual bool may_push(const ShardState& /*state*/, int /*worker*/) const { return true; }
  /// Whether the gradient of this push is used; else it is dropped.
  virtual bool accepts(const ShardState& /*state*/, const Push& /*push*/) const { return true; }
  /// Whether gradients are averaged before an update. Else every gradient is an update.
  virtual bool averages() const { return false; }
  /// If averages(): whether workers push values of the parameters. Then the average of these takes
  /// the place of the shard's own, and there is no rule of an optimizer.
  virtual bool replaces() const { return false; }
  /// If averages(): whether the pending gradients make up an update.
  virtual bool complete(const ShardState& /*state*/) const { return false; }
  virtual Compensation compensation() const { return Compensation::kNone; }
  /// For kLearningRateOverN: gradients that are computed at once for one update of all workers.
  virtual std::size_t at_once(const ShardState& /*state*/) const { return 1; }
  virtual DelayCompensation delay_compensation() const { return {}; }
  /// What the policy promises, checked after every transition: kCorrupt if it is broken.
  virtual Status invariant(const ShardState& /*state*/) const { return {}; }
};

/// The policies by name, with their parameters.
struct PolicyOptions {
  enum class Kind : std::uint8_t {
    /// An update is the average over one gradient of every worker; all wait for it.
    kSync,
    /// Every push is an update at once; nobody waits. Dean et al., "Large scale distributed deep
    /// networks", NIPS 2012 (Downpour SGD).
    kAsync,
    /// As kAsync, but no worker is more than `bound` steps ahead of the slowest one. Ho et al.,
    /// "More effective distributed ML via a stale synchronous parallel parameter server", NIPS
    /// 2013.
    kSsp,
    /// An update is the average of floor(workers / n) gradients, of any workers; nobody waits.
    /// Gupta et al., as above.
    kNSoftsync,
    /// An update is the average of the first workers - backups gradients of its version; those
    /// that come later are dropped. Chen et al., "Revisiting distributed synchronous SGD", 2016.
    kBackupWorkers,
    /// A batch is divided into portions, which workers take one after the other (portions.h). An
    /// update is the average of one gradient of every portion: a coordinator makes it when all are
    /// there. Of several gradients of a portion the first one counts. Dean et al. (Sandblaster), as
    /// above.
    kPortions,
    /// What workers push are parameters that each has trained by itself; their average, with the
    /// weights of the pushes, takes the place of the shard's, and all wait for it. Terms are added
    /// in the order of the workers' numbers, so the sum has the bits of an all-reduce in ascending
    /// order. McDonald, Hall, Mann, "Distributed training strategies for the structured
    /// perceptron", NAACL 2010 (iterative parameter mixing by MapReduce).
    kAverage,
  } kind = Kind::kAsync;
  int bound = 3;     ///< kSsp: s, steps
  int n = 1;         ///< kNSoftsync
  int backups = 1;   ///< kBackupWorkers: b
  int portions = 8;  ///< kPortions: of a batch, at most kMaxPortions
  /// kAsync: pushes of worker 0 before others may read, unless it has left. Dean et al. (Downpour
  /// SGD) call it warmstarting.
  int warm_start = 0;
  Compensation compensation = Compensation::kNone;
  double lambda = 0.04;        ///< kDelay, kAdaptiveDelay
  double lambda_decay = 0.95;  ///< kAdaptiveDelay: DelayCompensation::decay
};

/// kDelay or kAdaptiveDelay.
bool compensates_delay(Compensation compensation);

/// Whether updates are made by a coordinator, which only runs with server processes have.
bool has_coordinator(PolicyOptions::Kind kind);

/// Whether workers push values of the parameters, see Policy::replaces().
bool averages_values(PolicyOptions::Kind kind);

/// Names in the order of PolicyOptions::Kind and of Compensation.
const std::vector<std::string_view>& policy_names();
const std::vector<std::string_view>& compensation_names();

/// kInvalidArgument for parameters that are out of range or do not fit the number of workers.
Result<std::shared_ptr<const Policy>> make_policy(const PolicyOptions& options, int workers);

}  // namespace stormo::protocol
