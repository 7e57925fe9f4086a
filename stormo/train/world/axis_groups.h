#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/plan/step_plan.h>
#include <stormo/tensor/grid.h>

namespace stormo::train {

/// Which ranks of a mesh are there, where some are lost, or ranks of the job have other numbers
/// than in the mesh: replicas of a pipeline (plan/assigned/assigned_plan.h) in an elastic job.
struct MeshRanks {
  std::vector<Rank> numbers;    ///< in the mesh, by rank of the job
  std::vector<bool> has_state;  ///< by rank of the job; others are getting it
};

/// The communicators of a mesh: for some axes the group of ranks that differ from this rank only in
/// their coordinates on these axes.
class AxisGroups {
 public:
  /// Axes as key_of() has them; and of a pipeline the stages that take part, none: all.
  using Key = std::pair<std::vector<std::string>, std::vector<int>>;
  using Groups = std::map<Key, std::unique_ptr<comm::Communicator>>;

  /// Of some axes those that have more than one rank, in the order of the mesh; kInvalidArgument
  /// for an axis that the mesh lacks.
  static Result<std::vector<std::string>> key_of(const plan::Mesh& mesh,
                                                 const std::vector<std::string>& axes);
  /// Those of some stages that read a parameter of a plan together, where other stages do not.
  static std::vector<Key> of_tied(const plan::StepPlan& plan);
  /// The ranks of the group of which `rank` is, or would be.
  static std::vector<Rank> members(const plan::Mesh& mesh, Rank rank, const Key& key);

  /// A collective; blocks. Makes a subgroup for each set of axes that an action of the plan uses,
  /// for each axis over which the model or samples are cut, and for of_tied(), unless it has all
  /// ranks. `world` is borrowed. Throws Error; kBadPlan when the mesh has another number of ranks.
  AxisGroups(comm::Communicator& world, const plan::StepPlan& plan);
  /// The same for ranks that are some of the mesh. Groups over stages are those of
  /// plan::groups_over_stages().
  AxisGroups(comm::Communicator& world, const plan::StepPlan& plan, MeshRanks ranks);
  /// The same with a subgroup for every axis.
  AxisGroups(comm::Communicator& world, const plan::Mesh& mesh);
  /// Uses existing groups of this rank, by axis.
  AxisGroups(comm::Communicator& world, plan::Mesh mesh, Groups groups);

  comm::Communicator& world() const { return world_; }
  const plan::Mesh& mesh() const { return mesh_; }
  /// The number of this rank in the mesh.
  Rank rank() const;
  /// This rank's group over `axes`: of all ranks, or one that was made. `stages`: only of these, of
  /// which this rank's is one; empty: of all. kBadPlan for others,
  /// kInvalidArgument for an axis that the mesh lacks.
  Result<comm::Communicator*> over(const std::vector<std::string>& axes,
                                   const std::vector<int>& stages = {}) const;
  /// Whether ranks are some of the mesh.
  bool is_partial() const { return some_.has_value(); }

  /// Between stages: the ranks between which tensors move, and the number among them of a rank of
  /// the mesh that is there.
  Result<comm::Communicator*> link() const;
  Rank rank_in_link(Rank number) const;
  /// Of the whole job: the first rank of a stage that has its state.
  Rank first_of_stage(int stage) const;
  /// Whose values others get from a stage, and save; a rank of a group.
  struct Source {
    comm::Communicator* ranks = nullptr;
    Rank root = 0;
  };
  Result<Source> source_of(int stage) const;
  bool is_source() const;
  /// Of a sum over some stages: whether this rank gives what its stage adds. Others give nothing.
  bool gives(const std::vector<int>& stages = {}) const;

  /// This rank's place among those that have parts of the places of its samples; nothing without
  /// plan::kRowsAxis and plan::kColumnsAxis. Borrows the groups. kBadPlan as over().
  Result<std::optional<tensor::Grid>> grid() const;
  /// Receives the Events of `world` and of the groups; null: none. Not owned.
  void set_sink(Sink* sink) const;
  /// Payload bytes that this rank has sent to other hosts, in `world` and in the groups of axes.
  std::uint64_t bytes_sent() const;

 private:
  AxisGroups(comm::Communicator& world, plan::Mesh mesh, std::optional<MeshRanks> some,
             const std::vector<Key>& wanted);
  Result<Key> normalized(const std::vector<std::string>& axes,
                         const std::vector<int>& stages) const;
  std::vector<std::vector<Rank>> groups_of(const Key& key) const;
  std::vector<Rank> members_here(const Key& key) const;
  /// world().size() or more: it is not there.
  Rank rank_in_job(Rank number) const;

  comm::Communicator& world_;
  plan::Mesh mesh_;
  std::optional<MeshRanks> some_;
  Groups groups_;  // that have not all ranks
};

}  // namespace stormo::train
