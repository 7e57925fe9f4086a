#include <stormo/plan/step_plan.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include <stormo/plan/hash.h>

namespace stormo::plan {
namespace {

void add(StableHash& h, const char* what, const Window& w) {
  h.add(what);
  for (const std::int64_t n : {w.channels, w.height, w.width, std::int64_t{w.kernel},
                               std::int64_t{w.stride}, std::int64_t{w.padding}}) {
    h.add(static_cast<std::uint64_t>(n));
  }
}

void add(StableHash& h, const std::vector<StateCrossing>& exchange) {
  h.add("states");
  for (const StateCrossing& c : exchange) {
    for (const std::int64_t n : {std::int64_t{c.from}, std::int64_t{c.to}, c.elements}) {
      h.add(static_cast<std::uint64_t>(n));
    }
  }
}

void add(StableHash& h, const ModelShape& model) {
  h.add(std::uint64_t{model.segments.size()});
  for (const SegmentShape& s : model.segments) {
    h.add(s.name);
    h.add(static_cast<std::uint64_t>(s.flops_per_sample));
    h.add(std::uint64_t{s.borrowed.size()});
    for (const int p : s.borrowed) h.add(static_cast<std::uint64_t>(p));
    if (s.stage != 0) h.add("stage " + std::to_string(s.stage));
    if (s.heads != 0) h.add("heads " + std::to_string(s.heads));
    for (const auto& [what, sums] : named(s.sums)) {
      if (!sums->empty()) h.add(what);
      for (const std::int64_t n : *sums) h.add(static_cast<std::uint64_t>(n));
    }
    if (s.splits_output) h.add("splits_output");
    if (s.positions != 0) h.add("positions " + std::to_string(s.positions));
    if (s.keys != 0) h.add("keys " + std::to_string(s.keys));
    for (const Window& w : s.windows) add(h, "window", w);
    for (const Window& w : s.split_windows) add(h, "split_window", w);
    for (const auto& exchange : s.state_crossings) add(h, exchange);
    for (const std::int64_t n : s.norms) h.add("norm " + std::to_string(n));
    if (s.spatial_all_reduce != 0)
      h.add("spatial_all_reduce " + std::to_string(s.spatial_all_reduce));
    h.add(std::uint64_t{s.parameters.size()});
    for (const ParameterShape& p : s.parameters) {
      h.add(p.name);
      h.add(static_cast<std::uint64_t>(p.elements));
      h.add(to_string(p.dtype));
      h.add(std::uint64_t{p.trainable});
      h.add(std::uint64_t{p.sparse});
      if (p.elsewhere) h.add("elsewhere");
      if (p.rows != 0) h.add("rows " + std::to_string(p.rows));
      if (p.split.units == 0) continue;
      h.add("split");
      for (const std::int64_t n :
           {std::int64_t{p.split.dim}, std::int64_t{p.split.blocks}, p.split.units}) {
        h.add(static_cast<std::uint64_t>(n));
      }
      if (!p.split.counts.empty()) h.add("counts");
      for (const std::int64_t n : p.split.counts) h.add(static_cast<std::uint64_t>(n));
    }
  }
}

void add(StableHash& h, const std::vector<Placement>& placements) {
  h.add(std::uint64_t{placements.size()});
  for (const Placement p : placements) h.add(to_string(p));
}

void add(StableHash& h, const Action& a) {
  h.add(to_string(a.kind));
  h.add(static_cast<std::uint64_t>(a.range.first));
  h.add(static_cast<std::uint64_t>(a.range.last));
  h.add(static_cast<std::uint64_t>(a.micro_batch));
  h.add(std::uint64_t{a.axes.size()});
  for (const std::string& axis : a.axes) h.add(axis);
  h.add(std::uint64_t{a.asynchronous});
  h.add(static_cast<std::uint64_t>(a.every));
  if (a.offset != 0) h.add("offset " + std::to_string(a.offset));
  if (a.mixing != 0) h.add(std::bit_cast<std::uint64_t>(a.mixing));
  if (a.slot >= 0) h.add("slot " + std::to_string(a.slot));
  if (a.delay != 0) h.add("delay " + std::to_string(a.delay));
  if (a.codec != Codec::kNone) h.add("codec " + to_string(a.codec));
  if (!a.algorithm.empty()) h.add("by " + a.algorithm);
}

template <class Fact>
bool has(const StepPlan& p, const Fact& fact) {
  return std::ranges::any_of(p.actions, [&](const Action& a) { return fact(row_of(a.kind)); });
}

}  // namespace

bool is_remote(const StepPlan& p) {
  return std::ranges::count(p.parameters, Placement::kRemote) > 0;
}

bool averages_on_servers(const StepPlan& p) {
  return is_remote(p) && has(p, [](const ActionRow& row) { return row.averages(); });
}

bool has_worker_copies(const StepPlan& p) {
  return averages_on_servers(p) || (is_remote(p) && std::ranges::any_of(p.actions, [](auto& a) {
                                      return row_of(a.kind).scope == Scope::kServers && a.every > 1;
                                    }));
}

int longest_delay(const StepPlan& p) {
  int out = 0;
  for (const Action& a : p.actions) out = std::max(out, a.delay);
  return out;
}

std::vector<std::size_t> order_of_batch(const StepPlan& p) {
  std::vector<std::size_t> out(p.actions.size());
  std::iota(out.begin(), out.end(), std::size_t{0});
  const int longest = longest_delay(p);
  std::ranges::stable_sort(out, {}, [&](std::size_t i) {
    return row_of(p.actions[i].kind).all_batches ? longest : p.actions[i].delay;
  });
  return out;
}

bool has_backward_parts(const StepPlan& p) {
  return has(p, [](const ActionRow& row) { return row.passes_gradient() && !row.adds_gradients; });
}

bool is_population(const StepPlan& p) {
  return has(p, [](const ActionRow& row) { return row.of_population(); });
}

bool is_diverged(const StepPlan& p) {
  return std::ranges::count(p.parameters, Placement::kDiverged) > 0;
}

bool is_staggered(const StepPlan& p) {
  return std::ranges::any_of(p.actions, [](const Action& a) { return a.offset > 0; });
}

bool averages_slots(const StepPlan& p) {
  return has(p, [](const ActionRow& row) { return row.averages_slot; });
}

bool has_centre(const StepPlan& p) {
  return has(
      p, [](const ActionRow& row) { return row.places(Value::kParameters, Placement::kRemote); });
}

bool has_servers(const StepPlan& p) { return is_remote(p) || has_centre(p); }

bool keeps_residuals(const StepPlan& p) {
  return std::ranges::any_of(p.actions, [](const Action& a) { return row_of(a.codec).encodes(); });
}

std::string_view to_string(AttentionForm form) {
  switch (form) {
    case AttentionForm::kRing: return "ring";
    case AttentionForm::kHeads: return "heads";
  }
  return "unknown";
}

std::string_view to_string(Placement placement) {
  switch (placement) {
    case Placement::kReplicate: return "replicate";
    case Placement::kShard: return "shard";
    case Placement::kPartial: return "partial";
    case Placement::kShared: return "shared";
    case Placement::kDiverged: return "diverged";
    case Placement::kRemote: return "remote";
    case Placement::kStaged: return "staged";
    case Placement::kSplit: return "split";
  }
  return "unknown";
}

std::uint64_t hash(const StepPlan& p) {
  StableHash h;
  h.add("step_plan v2");
  h.add(p.strategy);
  h.add(hash(p.mesh));
  h.add(static_cast<std::uint64_t>(p.micro_batches));
  h.add(std::uint64_t{p.scaled_loss});
  h.add(std::uint64_t{p.clipped});
  if (p.commits) h.add("commits");
  if (p.logical_shards > 0) h.add("logical_shards " + std::to_string(p.logical_shards));
  if (p.chosen) h.add("chosen");
  if (p.attention != AttentionForm::kRing) h.add(to_string(p.attention));
  if (p.sequence_parallel) h.add("sequence_parallel");
  if (p.newest_weights) h.add("newest_weights");
  if (p.labels >= 0) h.add("labels " + std::to_string(p.labels));
  add(h, p.model);
  add(h, p.parameters);
  add(h, p.frozen);
  add(h, p.optimizer_state);
  h.add(std::uint64_t{p.actions.size()});
  for (const Action& a : p.actions) add(h, a);
  return h.value();
}

}  // namespace stormo::plan
