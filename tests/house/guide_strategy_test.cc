// The example of docs/guides/add-a-strategy.md.
#include <stormo/parallel/mirrored.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pass.h>

#include <gtest/gtest.h>

namespace stormo::parallel {

/// Cuts every all-reduce of a range of segments into one per segment, last segment first.
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
      for (int s = a.last; s >= a.first; --s) {
        out.actions.push_back({plan::ActionKind::kAllReduce, s, s, a.axis});
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
      for (int s = 0; s < segments; ++s) shape.segments.push_back({"s" + std::to_string(s), 10, 0});
      const auto plan = compose(one_device(shape), mirrored(ranks), segment_wise());
      ASSERT_TRUE(plan.ok()) << plan.status().to_string();
      std::vector<int> reduced(static_cast<std::size_t>(segments), 0);
      for (const plan::Action& a : plan->actions) {
        if (a.kind != plan::ActionKind::kAllReduce) continue;
        for (int s = a.first; s <= a.last; ++s) ++reduced[static_cast<std::size_t>(s)];
      }
      EXPECT_EQ(reduced, std::vector<int>(static_cast<std::size_t>(segments), 1));
    }
  }
}

}  // namespace
}  // namespace stormo::parallel
