// The orders of the stages of a pipeline fit together, for all sizes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include <stormo/analysis/verify/step_verify.h>

#include "pipeline_cases.h"
#include "tests/long.h"
#include "tests/sanitized.h"

namespace stormo::parallel {
namespace {

using test::cases;
using test::name_of;
using test::plan_of;
using Case = test::PipelineCase;

std::size_t at(int index) { return static_cast<std::size_t>(index); }

/// Plays the orders of all stages without times: each stage goes on when what it needs is there.
/// Where steps overlap, it plays as many as are under way at once, and one more.
class Play {
 public:
  explicit Play(const Case& c) : shape_(c.shape), chunk_order_(c.schedule.chunk_order) {
    for (int stage = 0; stage < shape_.stages; ++stage) {
      orders_.push_back(c.schedule.order(shape_, stage));
      for (const StageStep& s : orders_.back()) {
        if (s.delay > 0) steps_ = std::max(steps_, s.delay + 2);
      }
    }
    forward_.resize(at(shape_.stages * shape_.chunks * steps_ * shape_.micro_batches));
    backward_ = forward_;
  }

  /// Whether no stage waits forever.
  bool ends() {
    std::vector<std::size_t> next(at(shape_.stages));
    for (bool moved = true; moved;) {
      moved = false;
      for (int stage = 0; stage < shape_.stages; ++stage) {
        while (compute(stage, next[at(stage)])) {
          ++next[at(stage)];
          moved = true;
        }
      }
    }
    for (int stage = 0; stage < shape_.stages; ++stage) {
      if (next[at(stage)] != orders_[at(stage)].size() * at(steps_)) return false;
    }
    return true;
  }

 private:
  /// Computes what is number `next` on a stage, if it can.
  bool compute(int stage, std::size_t next) {
    const std::vector<StageStep>& order = orders_[at(stage)];
    const int step = static_cast<int>(next / order.size());
    if (step == steps_) return false;
    const StageStep& s = order[next % order.size()];
    if (s.delay > step) return true;  // its batch is of before the first step
    const int part = part_of(chunk_order_, shape_, stage, s.chunk);
    const int to_next = steps_ * shape_.micro_batches;
    const int i = part * to_next + (step - s.delay) * shape_.micro_batches + s.micro_batch;
    switch (s.kind) {
      case StageStep::Kind::kForward:
        if (part > 0 && forward_[at(i - to_next)] == 0) return false;
        forward_[at(i)] = 1;
        return true;
      case StageStep::Kind::kBackwardWeight: return backward_[at(i)] == 1;
      default: break;
    }
    const bool is_last = part + 1 == shape_.stages * shape_.chunks;
    if (forward_[at(i)] == 0 || (!is_last && backward_[at(i + to_next)] == 0)) return false;
    backward_[at(i)] = 1;
    return true;
  }

  PipelineShape shape_;
  ChunkOrder chunk_order_;
  int steps_ = 1;
  std::vector<std::vector<StageStep>> orders_;  // by stage
  std::vector<char> forward_, backward_;        // is computed; by part, step and micro-batch
};

std::vector<int> numbers(int first, int last) {
  std::vector<int> out(at(last - first + 1));
  std::iota(out.begin(), out.end(), first);
  return out;
}

TEST(PipelineOrders, NoStageWaitsForever) {
  const std::vector<int> stages = is_long_form() ? numbers(2, 64) : std::vector{2, 3, 5, 8, 33, 64};
  for (const Case& c : cases(stages, numbers(1, 64))) {
    EXPECT_TRUE(Play(c).ends()) << name_of(c);
  }
}

TEST(PipelineOrders, PlansOfManyStagesAreVerified) {
  std::vector<Case> all = cases({2, 3, 5, 16}, {1, 2, 3, 16, 64});
  const std::vector<int> most = kSanitized ? std::vector{64} : std::vector{63, 64};
  for (const Case& c : cases(most, kSanitized ? most : std::vector{1, 63, 64})) all.push_back(c);
  for (const Case& c : all) {
    EXPECT_TRUE(analysis::verify(plan_of(c)).ok()) << name_of(c);
  }
}

}  // namespace
}  // namespace stormo::parallel
