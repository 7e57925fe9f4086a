#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/server/message/run_terms.h>
#include <stormo/server/shard/host_shard.h>
#include <stormo/server/shard/shared_shard.h>
#include <stormo/train/optimizer/optimizer.h>
#include <stormo/train/options.h>

namespace stormo::train {

/// The trainable parameters of a module, and where their elements lie on server shards.
class ServedParameters {
 public:
  /// kInvalidArgument for parameters that servers cannot hold (they hold contiguous float32 and
  /// float64 in host memory), and options that do not fit the parameters, the rule or the number of
  /// workers.
  static Result<ServedParameters> create(std::vector<NamedParameter> parameters,
                                         const TrainerOptions& options, int workers);

  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  std::size_t shards() const { return placed_.size(); }
  const std::vector<server::ShardPiece>& pieces(std::size_t shard) const { return placed_[shard]; }
  /// With the warm start in pushes.
  const protocol::Policy& policy() const { return *shard_options_.policy; }
  /// What workers and server processes must agree on, but for facts.
  server::RunTerms terms() const;
  /// A shard of these pieces, for one worker.
  std::unique_ptr<server::HostShard> make_shard(std::size_t shard, int worker,
                                                server::ShardWait wait) const;
  /// Gives a shard that was created the values that the module has.
  Status copy_values_to(server::Shard& shard, std::size_t number) const;

  /// Where a part of a parameter lies.
  struct Slice {
    std::size_t shard = 0;
    std::size_t piece = 0;  ///< of the shard
  };
  /// Of a parameter, in the order of its elements.
  const std::vector<Slice>& slices(std::size_t parameter) const { return slices_[parameter]; }

  /// The module's parameters become the values of `views`, one of each shard: without a copy for
  /// those that lie on one shard, unless there are copies(). The views must stay valid as long as
  /// the values are used, but for copies.
  void show(std::span<const server::Shard::View> views);
  /// The same for one parameter. `values`: the first elements of its slices.
  void show(std::size_t parameter, std::span<const std::byte* const> values);
  /// Copies the values of `views` to `values`, by parameter; not to those that are undefined.
  void copy(std::span<const server::Shard::View> views,
            const std::vector<torch::Tensor>& values) const;
  /// The module gets copies of all its values, and show() changes these from now on.
  void copy_all();
  /// By parameter: its copy; undefined where the module shows a shard's memory.
  const std::vector<torch::Tensor>& copies() const { return copies_; }
  /// The module's parameters get memory of their own.
  void keep_values();

  /// Whether the module has copies of its own, which may change: a pull or push is not for every
  /// step (Strategy::exchange).
  bool has_copies() const { return has_copies_; }

  /// Whether pushes change the values that the module has, see server::InPlaceShard.
  bool in_place() const { return updates_ == server::ShardUpdates::kInPlace; }

  /// The gradients that the module has now; contiguous, undefined where there are none. Those of
  /// tables are coalesced rows; all others are dense.
  std::vector<torch::Tensor> gradients() const;
  /// The part of a dense gradient of its parameter that belongs to a slice.
  const void* gradient_of(const Slice& slice, const torch::Tensor& gradient) const;
  /// First elements of the pieces of a shard in `values`, by parameter.
  std::vector<void*> pieces_of(std::size_t shard, const std::vector<torch::Tensor>& values) const;
  /// The part of gradients() that belongs to a shard. Borrowed.
  std::vector<server::PushedPiece> gradient_pieces(
      std::size_t shard, const std::vector<torch::Tensor>& gradients) const;

 private:
  ServedParameters() = default;
  /// First elements of the slices of a parameter.
  std::vector<const std::byte*> values_of(std::size_t parameter,
                                          std::span<const server::Shard::View> views) const;
  void copy(std::size_t parameter, std::span<const std::byte* const> values,
            const torch::Tensor& to) const;
  const server::ShardPiece& piece(const Slice& slice) const {
    return placed_[slice.shard][slice.piece];
  }

  std::vector<NamedParameter> parameters_;
  std::vector<std::vector<server::ShardPiece>> placed_;  // by shard
  std::vector<std::vector<Slice>> slices_;               // by parameter
  std::vector<torch::Tensor> copies_;                    // of parameters on several shards, or all
  bool has_copies_ = false;
  server::ShardUpdates updates_ = server::ShardUpdates::kVersions;
  server::ShardOptions shard_options_;
  protocol::PolicyOptions policy_;
};

}  // namespace stormo::train
