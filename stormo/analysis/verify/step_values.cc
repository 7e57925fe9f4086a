#include <stormo/analysis/verify/step_values.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#include <stormo/plan/bad_plan.h>

namespace stormo::analysis {
namespace {

using plan::bad;
using plan::Value;

struct OneOfStep {
  Value value;
  const char* missing;
  const char* again;
  const char* unwanted = nullptr;  // of a factor
};
// in the order in which they are made
constexpr std::array<OneOfStep, 7> kAll = {{
    {Value::kBatch, "comes before the batch is loaded", "loads the batch a second time"},
    {Value::kChosen, "comes before the parts that the step trains are chosen",
     "chooses a second time", "chooses, but the step says nothing of it"},
    {Value::kWeights, "comes before the weights are counted", "counts a second time"},
    {Value::kUnused, "comes before find_unused", "looks for unused gradients a second time"},
    {Value::kNorm, "comes before the norm", "computes the norm a second time",
     "computes a norm that nothing needs"},
    {Value::kUnscaled, "comes before the scale of the loss is undone",
     "undoes the scale of the loss a second time", "finds no scale of the loss"},
    {Value::kClipped, "comes before the gradients are clipped", "clips a second time",
     "clips, but the step says nothing of it"},
}};

}  // namespace

bool StepValues::wanted(Value value) const {
  switch (value) {
    case Value::kNorm: return plan_.scaled_loss || plan_.clipped;
    case Value::kUnscaled: return plan_.scaled_loss;
    case Value::kClipped: return plan_.clipped;
    case Value::kChosen: return plan_.chosen;
    default: return true;
  }
}

Status StepValues::next(const plan::Action& a) {
  const plan::ActionRow& row = row_of(a.kind);
  for (const OneOfStep& v : kAll) {
    if (v.unwanted == nullptr || !row.makes.has(v.value)) continue;
    if (updated_) {
      return bad(std::string("comes after ") + (is_remote(plan_) ? "a push" : "an update"));
    }
    if (!wanted(v.value)) return bad(v.unwanted);
  }
  for (const OneOfStep& v : kAll) {
    if (row.needs.has(v.value) && wanted(v.value) && !have(v.value)) return bad(v.missing);
  }
  if (row.makes.has(Value::kUnscaled) && have(Value::kClipped)) {
    return bad("comes after the norm was clipped");
  }
  for (const OneOfStep& v : kAll) {
    if (!row.makes.has(v.value)) continue;
    if (have(v.value)) return bad(v.again);
    made_.add(v.value);
  }
  if (row.needs.has(Value::kWeights)) weights_used_ = true;
  if (row.needs.has(Value::kUnscaled) && row.needs.has(Value::kClipped)) updated_ = true;
  return {};
}

Status StepValues::use_weights() {
  weights_used_ = true;
  return have(Value::kWeights) ? Status() : bad("comes before the weights are counted");
}

Status StepValues::complete() const {
  if (!have(Value::kWeights) || weights_used_) return {};
  return bad("the weights are counted, but nothing needs them");
}

Status StepValues::check_owners(const plan::Action& a, bool all) const {
  for (std::size_t axis = 0; axis < plan_.mesh.axes.size(); ++axis) {
    const plan::Axis& of = plan_.mesh.axes[axis];
    const plan::Placement placed = plan_.optimizer_state[axis];
    // a stage has whole parameters, but not all of them
    const bool part = placed == plan::Placement::kShard || placed == plan::Placement::kSplit;
    const bool cut = part || (all && placed == plan::Placement::kStaged);
    const bool named = std::ranges::count(a.axes, of.name) > 0;
    if (named && !cut) return bad("adds up what all ranks of " + of.name + " have");
    const bool adds_up = all || !a.axes.empty();  // an update may need no sums
    if (adds_up && cut && !named && of.size > 1) {
      return bad("leaves out the parts of other ranks of " + of.name);
    }
  }
  return {};
}

}  // namespace stormo::analysis
