// An outer optimizer whose averages are spread over a period.
//
// Idea: averages of all parameters at once leave the network idle for a period, and then all ranks
// wait for it. Fragments of the parameters, each averaged in steps of its own, send as much with a
// fraction of the peak. Ranks need not wait: they train on while a fragment travels, and mix what
// comes back with what they have by then. What they do meanwhile is in the next average, as outer
// gradients are differences to the parameters of the outer optimizer. Cost: as an outer update, and
// one fragment under way. Paper: A. Douillard et al., "Streaming DiLoCo with overlapping
// communication: towards a distributed free lunch", 2025.
#include <stormo/parallel/replicas/streaming.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include <stormo/base/requirements.h>
#include <stormo/plan/text/text.h>

namespace stormo::parallel {
namespace {

using plan::Action;
using plan::Range;

constexpr double kUsualMixing = 0.5;

/// Neighbouring parameters, each fragment with about as many elements. None if there are fewer
/// trainable parameters than fragments.
std::vector<Range> fragments_of(const plan::ModelShape& model, Range all, int fragments) {
  const auto shapes = flatten(model);
  std::vector<int> trained;
  std::int64_t elements = 0;
  for (int p = all.first; p <= all.last; ++p) {
    const plan::ParameterShape& shape = *shapes[static_cast<std::size_t>(p)];
    if (!shape.trainable) continue;
    trained.push_back(p);
    elements += shape.elements;
  }
  if (std::ssize(trained) < fragments) return {};
  std::vector<Range> out;
  std::int64_t before = 0;  // elements of trainable parameters that have a fragment
  std::size_t next = 0;     // of those parameters
  for (int f = 0; f < fragments; ++f) {
    const double end = static_cast<double>(elements) / fragments * (f + 1);
    const int first = out.empty() ? all.first : out.back().last + 1;
    const std::size_t most = trained.size() - static_cast<std::size_t>(fragments - f - 1);
    for (bool any = false; next < most; any = true, ++next) {
      const std::int64_t own = shapes[static_cast<std::size_t>(trained[next])]->elements;
      if (any && static_cast<double>(before) + static_cast<double>(own) / 2 > end) break;
      before += own;
    }
    out.push_back({first, f + 1 == fragments ? all.last : trained[next - 1]});
  }
  return out;
}

Result<plan::StepPlan> stream(const plan::StepPlan& in, const Streaming& how) {
  const auto average =
      std::ranges::find_if(in.actions, [](const Action& a) { return row_of(a.kind).averages(); });
  const auto update = std::ranges::find_if(
      in.actions, [](const Action& a) { return row_of(a.kind).outer_updates(); });
  if (average == in.actions.end() || update != average + 1) {
    return Status(Code::kBadPlan,
                  "streaming: the plan has no average with an outer update; apply it after "
                  "outer_update");
  }
  const std::string wrong = wrong_with(how, average->every);
  if (!wrong.empty()) return invalid_argument("streaming: it " + wrong);
  const std::vector<Range> ranges = fragments_of(in.model, average->range, how.fragments);
  if (ranges.empty()) {
    return invalid_argument("streaming: there are " + std::to_string(how.fragments) +
                            " fragments, and fewer trainable parameters; give fewer");
  }
  plan::StepPlan out = in;
  out.strategy += "+streaming";
  std::vector<Action> all;
  for (int f = 0; f < how.fragments; ++f) {
    Action own = *average, outer = *update;
    own.range = outer.range = ranges[static_cast<std::size_t>(f)];
    own.offset = static_cast<int>(std::int64_t{f} * own.every / how.fragments);
    own.asynchronous = how.delay > 0;
    outer.offset = own.offset + how.delay;
    if (how.delay > 0) outer.mixing = how.mixing == -1 ? kUsualMixing : how.mixing;
    all.insert(all.end(), {own, outer});
  }
  const auto at = out.actions.begin() + (average - in.actions.begin());
  out.actions.insert(out.actions.erase(at, at + 2), all.begin(), all.end());
  for (Action& a : out.actions) {
    if (row_of(a.kind).all_batches) a.offset = how.delay;
  }
  return out;
}

}  // namespace

std::string wrong_with(const Streaming& how, int period) {
  Requirements require;
  const auto text = [](double number) {
    std::string out;
    plan::append_real(out, number);
    return out;
  };
  require(how.fragments >= 1 && how.fragments <= period,
          "has fragments with a step each in a period of " + std::to_string(period) +
              ": give 1 to " + std::to_string(period) + ", not " + std::to_string(how.fragments) +
              ", or a longer period");
  const int apart = how.fragments >= 1 ? period / how.fragments : period;
  require(how.delay >= 0 && (how.delay < apart || apart == 0),
          "has fragments that are " + std::to_string(apart) +
              " step(s) apart (period / fragments), and each is back before the next one is sent: "
              "give a delay of 0 to " +
              std::to_string(apart - 1) + ", not " + std::to_string(how.delay));
  require(
      how.mixing == -1 || (how.mixing >= 0 && how.mixing <= 1),
      "keeps a share of a rank's own parameters: give a mixing of 0 to 1, not " + text(how.mixing));
  require(how.mixing == -1 || how.delay > 0,
          "mixes with what ranks have done while a fragment travels: leave out mixing, or give a "
          "delay");
  return require.wrong();
}

Pass streaming(const Streaming& how) {
  return [how](const plan::StepPlan& in) { return stream(in, how); };
}

}  // namespace stormo::parallel
