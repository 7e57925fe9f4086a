#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <torch/types.h>

#include <stormo/comm/communicator.h>
#include <stormo/train/sharding/flat_parameter.h>

namespace stormo::train {

/// Throws Error, naming FullyShardedDataParallel, unless `status` is OK.
void throw_if_failed(const Status& status);

/// Types other than the parameters' own, which are what the optimizer updates (float32 masters).
struct ShardPrecision {
  /// Of the parameters that forward and backward see, and of what is gathered: kBFloat16, kHalf.
  std::optional<torch::ScalarType> compute;
  /// Of gradients on their way and until the update; default: the parameters' own.
  std::optional<torch::ScalarType> reduce;
};

struct ShardingOptions {
  int stage = 3;  ///< 1, 2: gradients and optimizer state are sharded; 3: parameters too
  bool reshard_after_forward = true;  ///< stage 3; else units stay whole until their backward
  /// So many units are gathered ahead and reduced behind, while others compute. 0: each transfer
  /// blocks the caller, which is faster where no core is idle and no wire between the ranks.
  int prefetch = 1;
  /// Cut over the ranks of each host only, and average gradients over hosts (HSDP). Hosts have
  /// equal numbers of ranks.
  bool hybrid = false;
  /// Gradients are added in one order: bits depend on the ranks and hosts, not on the sizes of
  /// units or what is fastest for them.
  bool deterministic = false;
  ShardPrecision precision;
};

/// Who shares one copy, and who holds the same part of another copy. All borrowed.
struct ShardingGroups {
  comm::Communicator* world = nullptr;
  comm::Communicator* shards = nullptr;    ///< parameters are cut over these ranks
  comm::Communicator* replicas = nullptr;  ///< null: nobody holds the same part
};

/// The units of a sharded model, and what can be done with each: gathered, released, reduced. Knows
/// nothing of modules and hooks. There are two ways to use it, one for each object:
///  - action by action, as a plan says;
///  - told which unit computes next (before_forward() to end_pass()), every rank the same.
///
/// In the second way a backward pass runs the recorded forwards in reverse. Autograd takes ready
/// nodes in the reverse order of their creation, so when the backward of a forward begins, all that
/// was computed after that forward is done: units which no earlier forward uses are complete, with
/// or without a gradient for each parameter, on all ranks at the same place among the transfers.
/// Errors of the group are thrown.
class ShardedUnits {
 public:
  ShardedUnits(const ShardingGroups& groups, const ShardingOptions& options);

  /// `borrowed`: parameters that the unit reads as well; those that no unit has are left alone.
  /// Returns its index. Without parameters of its own it may borrow all the same.
  int add(std::vector<NamedParameter> parameters, const std::vector<torch::Tensor>& borrowed,
          const ShardPrecision& precision);
  bool has(const torch::Tensor& parameter) const;
  bool trainable(int unit) const;
  bool owns_trainable(int unit) const;
  /// Whether all that the unit reads is whole and up to date.
  bool readable(int unit) const;
  int size() const { return static_cast<int>(units_.size()); }

  // --- action by action ---------------------------------------------------------------------
  /// Makes the unit's parameters whole; asynchronous: end_gather() waits. Not where they are.
  void start_gather(int unit, bool asynchronous);
  void end_gather(int unit);
  /// The same of all that the unit reads.
  void end_gathers_of(int unit);
  /// Drops the whole, in stage 3; this rank's part stays.
  void release(int unit);
  /// Adds up what the ranks' gradients count for; start_reduce() needs it. Drops what a pass that
  /// ended early has left.
  void count(double weight);
  /// Reduces the unit's gradients to parts; asynchronous: end_reduce() waits.
  void start_reduce(int unit, bool asynchronous);
  /// Drops what was reduced, and keeps the part.
  void end_reduce(int unit);
  /// Drops what the unit has of gradients.
  void drop_gradients(int unit);
  /// Averages the reduced part with the replicas'; asynchronous: find_unused() waits. After
  /// end_reduce().
  void start_average(int unit, bool asynchronous);
  /// Waits for all that was started, finds which parameters have a gradient on any rank, and gives
  /// the pieces of these their gradients.
  void find_unused();

  // --- told which unit computes next --------------------------------------------------------
  /// Returns when the unit can be read.
  void before_forward(int unit);
  /// `recorded`: it has a backward, and record() follows or came before.
  void after_forward(int unit, bool recorded);
  /// A forward that may have a backward, as long as somebody holds the token.
  using Token = std::shared_ptr<const std::int64_t>;
  Token record(int unit);

  /// `weight`: what this rank's gradients count for; unless `synchronise`, they stay where they
  /// are.
  void begin_pass(double weight, bool synchronise);
  void before_backward(int unit, std::int64_t call);
  void end_pass();

  void gather_all();
  void release_all();
  /// Units that are gathered stay whole.
  void keep_all();
  /// The ranks' parts may have changed; those of frozen parameters too?
  void make_stale(bool frozen);

  std::vector<FlatParameter*> flats() const;  ///< in the order of units
  const ShardingGroups& groups() const { return groups_; }
  const ShardingOptions& options() const { return options_; }

 private:
  /// A gradient on its way.
  struct Reduction {
    FlatParameter* flat;
    torch::Tensor whole, part;
    comm::Work work;
  };
  struct Unit {
    std::vector<std::unique_ptr<FlatParameter>> flats;
    std::vector<int> uses;  ///< itself, and the units whose parameters it borrows
    int last_user = 0;      ///< the last unit that uses it
    std::vector<comm::Work> gathering;
    std::vector<Reduction> reducing;
    bool done = false;  ///< in this pass
  };
  struct Call {
    int unit;
    std::weak_ptr<const std::int64_t> token;
  };
  Unit& at(int unit) { return *units_[static_cast<std::size_t>(unit)]; }
  const Unit& at(int unit) const { return *units_[static_cast<std::size_t>(unit)]; }
  bool asynchronous() const { return options_.prefetch > 0; }
  void complete_after(std::int64_t call);
  void complete(int unit);
  void settle();
  std::string_view algorithm(std::string_view canonical) const;
  std::span<std::uint8_t> flags_of(const FlatParameter& flat);
  Reduction start_reduce(FlatParameter& flat, bool asynchronous);

  ShardingGroups groups_;
  ShardingOptions options_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::map<const c10::TensorImpl*, int> owner_;
  std::map<const FlatParameter*, std::size_t> first_flag_;

  std::int64_t next_call_ = 0;
  std::map<std::int64_t, Call> calls_;

  bool synchronise_ = true;
  double scale_ = 1;
  std::vector<std::int64_t> consumed_;
  std::vector<std::uint8_t> present_;  ///< a flag per trainable parameter
  std::deque<int> scattering_;         ///< units whose reduction was started and not ended
};

}  // namespace stormo::train
