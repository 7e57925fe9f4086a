#include <stormo/parallel/replicas/bucket.h>

#include <algorithm>
#include <string>
#include <vector>

namespace stormo::parallel {
namespace {

using plan::Action;
using plan::Range;

bool counts(const Action& a) { return makes(a, plan::Value::kWeights); }
bool averages(const Action& a) {
  return places(a, plan::Value::kGradients, plan::Placement::kReplicate);
}

/// Neighbours of one type, the last ones first; frozen ones in between belong to any.
std::vector<Range> buckets_of(const plan::ModelShape& model, Range parameters, std::int64_t bytes) {
  const auto shapes = flatten(model);
  std::vector<Range> out;
  std::int64_t filled = 0;
  DType type = {};
  for (int p = parameters.last; p >= parameters.first; --p) {
    const plan::ParameterShape& shape = *shapes[static_cast<std::size_t>(p)];
    if (!shape.trainable) continue;
    if (out.empty() || filled >= bytes || shape.dtype != type) {
      out.push_back({p, p});
      filled = 0;
    }
    out.back().first = p;
    filled += shape.elements * static_cast<std::int64_t>(size_of(shape.dtype));
    type = shape.dtype;
  }
  return out;
}

Result<plan::StepPlan> cut(const plan::StepPlan& in, std::int64_t bytes) {
  if (bytes < 1) {
    return invalid_argument("bucket: " + std::to_string(bytes) + " bytes; give at least 1");
  }
  if (std::ranges::any_of(in.actions, counts) || std::ranges::none_of(in.actions, averages)) {
    return in;
  }
  plan::StepPlan out = in;
  out.strategy += "+bucket";
  out.actions.clear();
  for (const Action& a : in.actions) {
    const bool last_batch = a.micro_batch + 1 == in.micro_batches;
    if (row_of(a.kind).passes_gradient() && last_batch &&
        std::ranges::none_of(out.actions, counts)) {
      out.actions.push_back({.kind = plan::ActionKind::kSumWeights, .asynchronous = true});
    }
    if (!averages(a)) {
      out.actions.push_back(a);
      continue;
    }
    for (const Range bucket : buckets_of(in.model, a.range, bytes)) {
      out.actions.push_back(a);
      out.actions.back().range = bucket;
      out.actions.back().asynchronous = true;
    }
  }
  return out;
}

}  // namespace

Pass bucket(std::int64_t bytes) {
  return [bytes](const plan::StepPlan& in) { return cut(in, bytes); };
}

}  // namespace stormo::parallel
