#include <cli/plan/load.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <tuple>
#include <utility>
#include <vector>

#include <stormo/analysis/schedule/verify.h>
#include <stormo/base/units.h>
#include <stormo/parallel/strategy/strategy.h>
#include <stormo/plan/limits.h>
#include <stormo/schedule/builders.h>

namespace stormo::cli {
namespace {

using plan::Schedule;
using schedule::Builder;

Result<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return io_error("cannot read '" + path + "'");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (file.bad()) return io_error("cannot read '" + path + "'");
  return text;
}

/// A step of which nothing but the plan is known.
StepInput step_of_plan(const PlanOptions& o, plan::StepPlan plan, std::vector<int> ranks_per_host) {
  constexpr std::int64_t kSamples = 32;
  StepInput step{.plan = std::move(plan), .ranks_per_host = std::move(ranks_per_host)};
  step.samples = step.sizes.samples = o.samples > 0 ? o.samples : kSamples;
  return step;
}

/// Flags that would change nothing. Defaults are nobody's choice.
Status check_flags(const PlanOptions& o, bool is_step) {
  const PlanOptions none;
  std::vector<std::string_view> idle;
  const auto look = [&idle](bool is_given, std::string_view flag) {
    if (is_given) idle.push_back(flag);
  };
  if (is_step) {
    look(o.root != none.root, "--root");
    look(o.pieces != none.pieces, "--pieces");
    look(o.bytes != none.bytes, "--bytes");
  } else {
    look(o.samples != none.samples, "--samples");
    look(o.gflops != none.gflops, "--gflops");
    look(o.measured, "--measured");
    look(!o.trace.empty(), "--trace");
    look(!o.lost.empty(), "--lost");
  }
  if (idle.empty()) return {};
  return invalid_argument(fmt::format("'{}' is {}: leave out {}, which is for {}", o.plan,
                                      is_step ? "a training step" : "a collective",
                                      fmt::join(idle, ", "),
                                      is_step ? "collectives" : "training steps"));
}

/// The same of an algorithm, or of a file with a collective (null).
Status check_collective_flags(const PlanOptions& o, const schedule::Builder* builder) {
  STORMO_RETURN_IF_ERROR(check_flags(o, /*is_step=*/false));
  const PlanOptions none;
  std::vector<std::string_view> idle;
  if (o.root != none.root && (builder == nullptr || !builder->takes.root)) idle.push_back("--root");
  if (o.pieces != none.pieces && (builder == nullptr || !builder->takes.pieces)) {
    idle.push_back("--pieces");
  }
  if (idle.empty()) return {};
  return invalid_argument(
      fmt::format("'{}' takes no {}: leave that out; 'stormo plan list' shows which algorithms "
                  "take it",
                  o.plan, fmt::join(idle, " and no ")));
}

Result<Plan> parse_plan_file(const PlanOptions& o) {
  const std::string& path = o.plan;
  STORMO_ASSIGN_OR_RETURN(const std::string text, read_file(path));
  // the first word that is no comment says what the text is
  std::size_t at = text.find_first_not_of(" \t\r\n");
  while (at != std::string::npos && text[at] == '#') {
    at = text.find('\n', at);
    if (at != std::string::npos) at = text.find_first_not_of(" \t\r\n", at);
  }
  if (at != std::string::npos && std::string_view(text).substr(at).starts_with("step_plan")) {
    STORMO_RETURN_IF_ERROR(check_flags(o, /*is_step=*/true));
    auto p = plan::parse_step_plan(text);
    if (!p.ok()) return p.status().within(path);
    STORMO_ASSIGN_OR_RETURN(const plan::Topology t, load_topology(o, p->mesh.size()));
    return Plan(step_of_plan(o, std::move(*p), t.host_sizes));
  }
  STORMO_RETURN_IF_ERROR(check_collective_flags(o, nullptr));
  auto s = plan::parse_schedule(text);
  if (!s.ok()) return s.status().within(path);
  return Plan(std::move(*s));
}

/// A model that step plans can be shown for: three layers of a small perceptron.
plan::ModelShape sample_model() {
  plan::ModelShape model;
  const std::int64_t sizes[] = {784, 512, 512, 10};
  for (int i = 0; i < 3; ++i) {
    const std::string name = fmt::format("fc{}", i + 1);
    model.segments.push_back({.name = name,
                              .parameters = {{name + ".weight", sizes[i] * sizes[i + 1]},
                                             {name + ".bias", sizes[i + 1]}},
                              .flops_per_sample = 2 * sizes[i] * sizes[i + 1],
                              .borrowed = {}});
  }
  // how ranks can have columns of the samples; strategies but vertical leave that out
  model.segments.front().parameters.front().split = {.dim = 1, .units = sizes[0]};
  model.segments.front().sums.forward = {sizes[1]};
  model.segments.back().sums.loss = {sizes[3] + 1};
  return model;
}

Status unknown_plan(const std::string& name) {
  const std::vector<std::string>& strategies = parallel::strategy_names();
  std::vector<std::string_view> names(strategies.begin(), strategies.end());
  for (const Builder& b : schedule::builders()) names.push_back(b.name);
  const std::string_view near = nearest_match(name, names);
  return Status(Code::kNotFound,
                fmt::format("'{}' is neither an algorithm nor a file; {}", name,
                            near.empty() ? "'stormo plan list' prints all names"
                                         : fmt::format("did you mean '{}'?", near)));
}

}  // namespace

Result<int> single_ranks(const std::string& text) {
  STORMO_ASSIGN_OR_RETURN(const RankRange range, parse_ranks(text));
  if (range.first == range.last) return range.first;
  return invalid_argument("--ranks: a range needs 'verify --all'; give one number");
}

Result<RankRange> parse_ranks(const std::string& text) {
  RankRange range;
  const char* end = text.data() + text.size();
  auto [stop, error] = std::from_chars(text.data(), end, range.first);
  range.last = range.first;
  if (error == std::errc{} && std::string_view(stop, end).starts_with("..")) {
    std::tie(stop, error) = [&] {
      const auto r = std::from_chars(stop + 2, end, range.last);
      return std::pair(r.ptr, r.ec);
    }();
  }
  if (error != std::errc{} || stop != end || range.first < 1 || range.last < range.first ||
      range.last > plan::kMaxRanks) {
    return invalid_argument(
        fmt::format("--ranks: '{}' is neither a number from 1 to {} nor a range "
                    "such as 1..33",
                    text, plan::kMaxRanks));
  }
  return range;
}

Result<Plan> load_plan(const PlanOptions& o) {
  if (o.plan.empty()) return invalid_argument("give the name of an algorithm or a file");
  STORMO_ASSIGN_OR_RETURN(const int ranks, single_ranks(o.ranks));
  if (is_recipe(o.plan)) {
    STORMO_RETURN_IF_ERROR(check_flags(o, /*is_step=*/true));
    STORMO_ASSIGN_OR_RETURN(const plan::Topology t, load_topology(o, ranks));
    STORMO_ASSIGN_OR_RETURN(StepInput step, load_recipe_step(o, t.host_sizes));
    return Plan(std::move(step));
  }
  if (!o.overrides.empty()) {
    return invalid_argument("'" + o.overrides.front() + "': only a recipe has keys to change");
  }
  const std::vector<std::string>& strategies = parallel::strategy_names();
  const auto strategy = std::find(strategies.begin(), strategies.end(), o.plan);
  if (strategy != strategies.end()) {
    STORMO_RETURN_IF_ERROR(check_flags(o, /*is_step=*/true));
    const auto kind = static_cast<parallel::Strategy::Kind>(strategy - strategies.begin());
    STORMO_ASSIGN_OR_RETURN(const plan::Topology t, load_topology(o, ranks));
    auto p = parallel::plan_for({.kind = kind}, sample_model(), {.ranks_per_host = t.host_sizes});
    if (!p.ok()) return p.status();
    return Plan(step_of_plan(o, std::move(*p), t.host_sizes));
  }
  if (const auto builder = schedule::find_builder(o.plan); builder.ok()) {
    STORMO_RETURN_IF_ERROR(check_collective_flags(o, *builder));
    auto s = (*builder)->build(ranks, o.hosts, o.root, o.pieces);
    if (!s.ok()) return s.status();
    return Plan(std::move(*s));
  }
  std::error_code ignored;
  if (std::filesystem::is_regular_file(o.plan, ignored)) return parse_plan_file(o);
  return unknown_plan(o.plan);
}

Result<Schedule> executable(const PlanOptions& o, Schedule s) {
  if (!schedule::find_builder(o.plan).ok()) {
    STORMO_RETURN_IF_ERROR(analysis::verify(s).within(o.plan));
  }
  return s;
}

Result<std::int64_t> buffer_bytes(const PlanOptions& o, const Schedule& s) {
  auto bytes = parse_bytes(o.bytes);
  if (!bytes.ok()) return bytes.status().within("--bytes");
  double transfers = 1;
  for (const plan::Round& round : s.rounds) transfers += static_cast<double>(round.size());
  if (static_cast<double>(*bytes) * std::max(transfers, double{plan::kMaxChunks}) > 0x1p62) {
    return invalid_argument("--bytes: " + o.bytes + " is too large for this plan; give less");
  }
  return static_cast<std::int64_t>(*bytes);
}

Result<plan::Topology> load_topology(const PlanOptions& o, int ranks) {
  if (!o.topology.empty()) {
    STORMO_ASSIGN_OR_RETURN(const std::string text, read_file(o.topology));
    const auto t = plan::parse_topology(text);
    if (!t.ok()) return t.status().within(o.topology);
    if (t->ranks() == ranks) return *t;
    return invalid_argument(
        fmt::format("{}: the topology has {} ranks, the plan {}", o.topology, t->ranks(), ranks));
  }
  if (o.hosts < 1 || o.hosts > ranks) {
    return invalid_argument(fmt::format("--hosts: {} ranks cannot be on {} hosts", ranks, o.hosts));
  }
  return plan::Topology::gigabit(schedule::spread_over(ranks, o.hosts));
}

}  // namespace stormo::cli
