#include <stormo/parallel/computation/micro_batches.h>

#include <algorithm>
#include <string>

namespace stormo::parallel {
namespace {

constexpr int kMost = 65536;

Result<plan::StepPlan> cut(const plan::StepPlan& in, int n) {
  if (n < 1 || n > kMost) {
    return invalid_argument("micro_batches: " + std::to_string(n) + "; give 1 to " +
                            std::to_string(kMost));
  }
  if (in.micro_batches != 1) {
    return Status(Code::kBadPlan, "micro_batches: the batch is cut already; apply it once");
  }
  const auto computes = [](const plan::Action& a) { return row_of(a.kind).micro_batch; };
  const auto first = std::ranges::find_if(in.actions, computes);
  const auto last = std::find_if_not(first, in.actions.end(), computes);
  if (std::any_of(last, in.actions.end(), computes)) {
    return Status(Code::kBadPlan,
                  "micro_batches: forward, loss and backward must follow each other; apply it "
                  "before passes that cut them");
  }
  plan::StepPlan out = in;
  out.strategy += "+micro_batches" + std::to_string(n);
  out.micro_batches = n;
  out.actions.assign(in.actions.begin(), first);
  for (int m = 0; m < n; ++m) {
    for (auto a = first; a != last; ++a) {
      out.actions.push_back(*a);
      out.actions.back().micro_batch = m;
    }
  }
  out.actions.insert(out.actions.end(), last, in.actions.end());
  return out;
}

}  // namespace

Pass micro_batches(int n) {
  return [n](const plan::StepPlan& in) { return cut(in, n); };
}

}  // namespace stormo::parallel
