#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/plan/mesh.h>

namespace stormo::plan {

/// The smallest unit of forward and backward: a layer or a block of layers.
struct SegmentShape {
  std::string name;                   ///< "block0"
  std::int64_t num_parameters = 0;    ///< elements
  std::int64_t flops_per_sample = 0;  ///< forward; 0 when unknown
  bool operator==(const SegmentShape&) const = default;
};

/// What a strategy must know of a model. A plain torch::nn::Module is one segment.
struct ModelShape {
  std::vector<SegmentShape> segments;
  bool operator==(const ModelShape&) const = default;
};

/// One computation or collective of a training step.
enum class ActionKind : std::uint8_t {
  kLoad,     ///< take this rank's part of the global batch
  kForward,  ///< segments [first, last]
  kLoss,
  kBackward,   ///< segments [first, last], in reverse
  kAllReduce,  ///< weighted average of the gradients of segments [first, last] over `axis`
  kUpdate,     ///< optimizer step of segments [first, last], or of this rank's part of them
  // the ranks of `axis` own a part each of the parameters of segments [first, last]
  kAllGather,      ///< makes the parameters whole
  kReduceScatter,  ///< as kAllReduce, but each rank gets the gradients of its part only
};

struct Action {
  ActionKind kind = ActionKind::kLoad;
  int first = 0;     ///< first segment, where the kind has a range
  int last = 0;      ///< last segment, inclusive
  std::string axis;  ///< mesh axis of a collective; empty for computations
  bool operator==(const Action&) const = default;
};

/// What every rank does in one training step, in order. Strategies are passes over it:
/// `StepPlan -> Result<StepPlan>`.
struct StepPlan {
  std::string strategy = "one_device";  ///< names of the passes applied, joined by '+'
  Mesh mesh;
  ModelShape model;
  std::vector<Action> actions;
  bool operator==(const StepPlan&) const = default;
};

std::string_view to_string(ActionKind kind);

/// Versioned text form, one line per segment and action; round-trips through parse_step_plan.
std::string to_text(const StepPlan& p);
Result<StepPlan> parse_step_plan(std::string_view text);
std::uint64_t hash(const StepPlan& p);

/// Structural rules every plan must meet, whatever strategy made it: ranges within the model,
/// forward before loss before backward before update of the same segment, every segment computed
/// exactly once and updated exactly once, collectives on axes of the mesh, reductions after the
/// backward and before the update, and what is updated in parts is gathered before its forward or
/// after its update.
Status validate(const StepPlan& p);

}  // namespace stormo::plan
