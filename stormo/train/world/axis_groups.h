#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/plan/step_plan.h>

namespace stormo::train {

/// The communicators of a mesh: for each axis the group of ranks that differ from this rank only in
/// their coordinate on this axis.
class AxisGroups {
 public:
  using Groups = std::map<std::string, std::unique_ptr<comm::Communicator>>;

  /// A collective; blocks. Makes a subgroup for each axis that an action of the plan uses by
  /// itself, and for the stages of a pipeline, unless the axis has all ranks. `world` is borrowed.
  /// Throws Error; kBadPlan when the mesh has another number of ranks.
  AxisGroups(comm::Communicator& world, const plan::StepPlan& plan);
  /// The same with a subgroup for every axis.
  AxisGroups(comm::Communicator& world, const plan::Mesh& mesh);
  /// Uses existing groups of this rank, by axis.
  AxisGroups(comm::Communicator& world, plan::Mesh mesh, Groups groups);

  comm::Communicator& world() const { return world_; }
  const plan::Mesh& mesh() const { return mesh_; }
  /// This rank's group over `axes`: one axis, or all axes that have more than one rank. kBadPlan
  /// for other combinations, kInvalidArgument for an axis that the mesh lacks.
  Result<comm::Communicator*> over(const std::vector<std::string>& axes) const;
  /// Payload bytes that this rank has sent to other hosts, in `world` and in the groups of axes.
  std::uint64_t bytes_sent() const;

 private:
  comm::Communicator& world_;
  plan::Mesh mesh_;
  Groups groups_;  // of axes that have not all ranks
};

}  // namespace stormo::train
