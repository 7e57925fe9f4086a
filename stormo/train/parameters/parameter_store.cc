#include <stormo/train/parameters/parameter_store.h>

#include <string>

namespace stormo::train {
namespace {

/// "mesh dp=2 shard=4"
std::string text_of(const plan::Mesh& mesh) {
  std::string out = "mesh";
  for (const plan::Axis& axis : mesh.axes) out += " " + axis.name + "=" + std::to_string(axis.size);
  return mesh.axes.empty() ? "a single one" : out;
}

}  // namespace

bool ParameterStore::moves(plan::ActionKind kind) {
  using enum plan::ActionKind;
  const bool of_parameters = row_of(kind).range == plan::RangeOf::kParameters && kind != kUpdate;
  return of_parameters || kind == kCount || kind == kFindUnused;
}

Status ParameterStore::check_mesh(const plan::StepPlan& plan, const plan::Mesh& mesh) {
  if (plan.mesh == mesh) return {};
  return Status(Code::kBadPlan, "the plan is for other ranks: " + text_of(plan.mesh) + ", not " +
                                    text_of(mesh) + "; compose it for these (parallel::plan_for)");
}

}  // namespace stormo::train
