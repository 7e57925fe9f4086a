#include <stormo/plan/flat_buffer.h>

#include <algorithm>

#include <stormo/plan/project.h>

namespace stormo::plan {
namespace {

constexpr std::int64_t kAlignBytes = 64;
constexpr std::int64_t kAlignElements = 16;

std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

}  // namespace

FlatBuffer flat_buffer(std::span<const std::int64_t> counts, std::int64_t element_bytes,
                       int ranks) {
  FlatBuffer out;
  std::int64_t end = 0;
  for (const std::int64_t count : counts) {
    out.offsets.push_back(round_up(end, kAlignBytes / element_bytes));
    end = out.offsets.back() + count;
  }
  out.elements = round_up(std::max<std::int64_t>(end, 1), ranks * kAlignElements);
  return out;
}

std::vector<Unit> units_of(const ModelShape& model) {
  const Stages stages(model);
  std::vector<Unit> out;
  int segment = 0, next = 0;
  for (const SegmentShape& s : model.segments) {
    bool goes_on = false;
    for (const ParameterShape& p : s.parameters) {
      const bool tied = stages.is_tied(next);
      if (!goes_on || tied) {
        out.push_back({.parameters = {next, next}, .segment = segment, .elsewhere = p.elsewhere});
      }
      out.back().parameters.last = next++;
      out.back().trains = out.back().trains || p.trainable;
      goes_on = !tied;
    }
    ++segment;
  }
  return out;
}

std::vector<FlatGroup> flat_groups(const ModelShape& model, Range parameters) {
  const std::vector<const ParameterShape*> all = flatten(model);
  std::vector<FlatGroup> out;
  for (int i = parameters.first; i <= parameters.last; ++i) {
    const ParameterShape& p = *all[static_cast<std::size_t>(i)];
    if (p.elsewhere) continue;
    auto group = std::ranges::find_if(out, [&](const FlatGroup& g) {
      return g.dtype == p.dtype && g.trainable == p.trainable && g.sparse == p.sparse;
    });
    if (group == out.end()) {
      group = out.insert(
          group, {.dtype = p.dtype, .trainable = p.trainable, .sparse = p.sparse, .counts = {}});
    }
    group->counts.push_back(p.elements);
  }
  return out;
}

}  // namespace stormo::plan
