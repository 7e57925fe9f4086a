// The example of docs/guides/add-a-strategy.md.
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pass.h>
#include <stormo/parallel/replicas/mirrored.h>

#include <gtest/gtest.h>

namespace stormo::parallel {

/// Cuts every all-reduce of gradients into one per segment, last segment first.
Pass segment_wise() {
  return [](const plan::StepPlan& in) -> Result<plan::StepPlan> {
    plan::StepPlan out = in;
    out.strategy += "+segment_wise";
    out.actions.clear();
    for (const plan::Action& a : in.actions) {
      if (a.kind != plan::ActionKind::kAllReduce) {
        out.actions.push_back(a);
        continue;
      }
      for (int s = all_segments(in.model).last; s >= 0; --s) {
        plan::Action one = a;
        one.range = parameters_of(in.model, {s, s});
        const bool inside = one.range.first >= a.range.first && one.range.last <= a.range.last;
        if (inside && one.range.size() > 0) out.actions.push_back(one);
      }
    }
    return out;
  };
}

}  // namespace stormo::parallel

namespace stormo::parallel {
namespace {

TEST(SegmentWise, ReducesEverySegmentExactlyOnceForEverySize) {
  for (const int segments : {1, 2, 7}) {
    for (const int ranks : {1, 2, 5}) {
      plan::ModelShape shape;
      for (int s = 0; s < segments; ++s) {
        const std::string name = "s" + std::to_string(s);
        shape.segments.push_back({.name = name,
                                  .parameters = {{name + ".weight", 10}, {name + ".bias", 1}},
                                  .flops_per_sample = 0,
                                  .borrowed = {}});
      }
      const auto plan = compose(one_device(shape), mirrored(ranks), segment_wise());
      ASSERT_TRUE(plan.ok()) << plan.status().to_string();
      std::vector<int> reduced(static_cast<std::size_t>(num_parameters(shape)), 0);
      for (const plan::Action& a : plan->actions) {
        if (a.kind != plan::ActionKind::kAllReduce) continue;
        for (int p = a.range.first; p <= a.range.last; ++p) ++reduced[static_cast<std::size_t>(p)];
      }
      EXPECT_EQ(reduced, std::vector<int>(reduced.size(), 1));
    }
  }
}

}  // namespace
}  // namespace stormo::parallel
