#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/train/gradient_bucket.h>
#include <stormo/train/optimizer.h>
#include <stormo/train/overlap_trial.h>
#include <stormo/train/reduction.h>

namespace stormo::train {

/// Averages the gradients of a fixed list of parameters over the ranks, in buckets.
///
/// Inline, one bucket per element type is reduced at the end of backward, on the caller's thread.
/// With overlap the buckets follow the order in which gradients become ready (at first the reverse
/// of the parameters' order, after the first pass rank 0's order of arrival), and each is reduced
/// on the group's thread as soon as it is full, while backward goes on. Paper: S. Li et al.,
/// "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020.
class GradientReducer {
 public:
  /// Both are borrowed or shared for the reducer's life. Throws Error(kInvalidArgument) naming a
  /// parameter that is not dense, not on the CPU or of a type that cannot be reduced. A collective
  /// where the overlap is kMeasured.
  GradientReducer(comm::Communicator& world, std::vector<NamedParameter> parameters,
                  const Reduction& how = {});
  ~GradientReducer();

  /// What this rank's gradients count for in the passes that follow.
  void set_weight(double weight) { weight_ = weight; }
  /// A pass begins that will be reduced. Optional; early, it hides the exchange of weights.
  void begin_pass();

  /// Tells that the gradient of parameter `index` (of the list) is in place, once per pass; may
  /// start reductions. Optional: reduce() takes what was not announced.
  void ready(std::size_t index);
  /// From here to the end of the pass ready() starts nothing: gradients may still change.
  void hold() { held_ = true; }
  /// The end of a pass: replaces each gradient g by sum(weight_r * g_r) / sum(weight_r) over the
  /// ranks r. A rank of weight 0 contributes nothing and need not have run backward. The sum of
  /// weights must be positive.
  Status reduce();
  /// The same in two steps: what is not on its way yet is sent; with overlap this does not wait.
  Status start();
  /// Calls `averaged(first, last)` as soon as the gradients of the parameters [first, last) are,
  /// while others still travel: every parameter once, in the same order on all ranks.
  using Averaged = std::function<Status(std::size_t first, std::size_t last)>;
  Status finish(const Averaged& averaged);
  /// Forgets a pass that ended early. What it started is waited for.
  void abandon();

  /// "inline", "overlap, 4 MiB buckets", with how it was chosen.
  std::string describe() const;

 private:
  void build_buckets();
  bool overlaps() const;
  void start_full_buckets();
  void start_next_bucket();
  Status tell(std::size_t bucket, const Averaged& averaged) const;
  Status follow_arrival();
  Status next_pass();

  comm::Communicator& world_;
  std::vector<NamedParameter> parameters_;
  double weight_ = 1;
  std::string algorithm_;
  std::optional<torch::ScalarType> travels_as_;
  OverlapTrial trial_;

  std::vector<std::size_t> order_;  // of parameters in buckets
  std::vector<std::unique_ptr<GradientBucket>> buckets_;
  std::vector<std::vector<std::size_t>> members_;  // by bucket, ascending
  std::vector<std::size_t> bucket_of_;             // by parameter
  std::vector<std::size_t> missing_;               // by bucket: gradients not ready in this pass
  std::vector<bool> is_ready_;                     // by parameter
  std::size_t started_ = 0;                        // buckets of this pass
  bool held_ = false;
  double total_weight_ = 0;  // of this pass, once known
  comm::Work total_known_;
  bool total_asked_ = false;

  bool arrival_known_ = false;
  std::vector<std::int64_t> arrival_;  // of the first pass
};

}  // namespace stormo::train
