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
  /// The same with a subgroup for every axis.
  AxisGroups(comm::Communicator& world, const plan::Mesh& mesh);
  /// Uses existing groups of this rank, by axis.
  AxisGroups(comm::Communicator& world, plan::Mesh mesh, Groups groups);

  comm::Communicator& world() const { return world_; }
  const plan::Mesh& mesh() const { return mesh_; }
  /// This rank's group over `axes`: of all ranks, or one that was made. `stages`: only of these, of
  /// which this rank's is one; empty: of all. kBadPlan for others,
  /// kInvalidArgument for an axis that the mesh lacks.
  Result<comm::Communicator*> over(const std::vector<std::string>& axes,
                                   const std::vector<int>& stages = {}) const;
  /// This rank's place among those that have parts of the places of its samples; nothing without
  /// plan::kRowsAxis and plan::kColumnsAxis. Borrows the groups. kBadPlan as over().
  Result<std::optional<tensor::Grid>> grid() const;
  /// Receives the Events of `world` and of the groups; null: none. Not owned.
  void set_sink(Sink* sink) const;
  /// Payload bytes that this rank has sent to other hosts, in `world` and in the groups of axes.
  std::uint64_t bytes_sent() const;

 private:
  comm::Communicator& world_;
  plan::Mesh mesh_;
  Groups groups_;  // that have not all ranks
};

}  // namespace stormo::train
