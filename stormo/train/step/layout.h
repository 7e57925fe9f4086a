#pragma once

#include <cstdint>

#include <torch/types.h>

#include <stormo/base/status.h>
#include <stormo/plan/step_plan.h>
#include <stormo/train/parameters/parameter_store.h>

namespace stormo::train {

/// How the ranks that have the same part of a model hold its parameters and optimizer state. Each
/// layout has a store.
enum class Layout : std::uint8_t {
  kReplicated,      ///< ReplicatedStore
  kHostShared,      ///< HostSharedStore; HostCopyStore, where the plan commits
  kSharded,         ///< ShardedStore
  kAveraged,        ///< AveragedStore
  kPopulation,      ///< PopulationStore
  kElastic,         ///< ElasticStore
  kServed,          ///< ServedStore
  kServerAveraged,  ///< ServerAveragedStore
};
/// The layout that a plan asks for.
Layout layout_of(const plan::StepPlan& plan);

/// kBadPlan for one rank's part of a verified plan that this rank's store cannot execute: a plan
/// for other ranks or another layout, or with an action that the layout has no place for. The
/// message names the action or the cause. Not a collective.
Status check_layout(const plan::StepPlan& plan, const ParameterStore& store);

/// kInvalidArgument for a plan whose ranks cannot have the parameters on this device: they hold or
/// exchange them in host memory. docs/devices.md says which can.
Status check_device(const plan::StepPlan& plan, torch::Device device);

}  // namespace stormo::train
