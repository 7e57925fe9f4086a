#pragma once

#include <ostream>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <stormo/parallel/strategy/strategy_table.h>
#include <stormo/protocol/server/policy.h>

// The ways to distribute training that tests try: each strategy of the product with its defaults,
// and one row here for each choice of options. Free of libtorch.
namespace stormo::test {

/// A strategy with its options.
struct Way {
  std::string name;
  parallel::Strategy strategy = {};
  /// Whether steps of several ranks without clipping end where those of one process end.
  enum class AsOne {
    kAlways,
    kIfLinear,  ///< with an update that is linear in the gradients
    kNever,
  } as_one = AsOne::kAlways;
  protocol::PolicyOptions::Kind policy = protocol::PolicyOptions::Kind::kSync;  ///< of servers
  bool by_default = false;  ///< a strategy of the product, without options

  const parallel::StrategyRow& row() const { return parallel::row_of(strategy.kind); }
  /// Ranks have columns of the samples, which takes other data and models.
  bool has_columns() const { return row().has_key("column_counts"); }
  /// As its row says: also with clipping, and through the Trainer.
  bool trains_as_one() const { return row().trains_as_one && !has_columns(); }
  bool fits(const std::vector<int>& hosts, const parallel::StepOptions& step = {}) const {
    return check_strategy(strategy, {.ranks_per_host = hosts}, step).ok();
  }
};

inline std::ostream& operator<<(std::ostream& out, const Way& way) { return out << way.name; }

/// Those with options first.
inline const std::vector<Way>& ways() {
  using enum parallel::Strategy::Kind;
  using enum Way::AsOne;
  using Parameters = parallel::Strategy::Parameters;
  using Policy = protocol::PolicyOptions::Kind;
  static const std::vector<Way> all = [] {
    std::vector<Way> out = {
        {"replicated", {.kind = kDdp, .parameters = Parameters::kReplicated}},
        {"host_shared", {.kind = kDdp, .parameters = Parameters::kHostShared}},
        {"stage1", {.kind = kFsdp, .parameters = Parameters::kSharded, .stage = 1}},
        {"stage2", {.kind = kFsdp, .parameters = Parameters::kSharded, .stage = 2}},
        {"stage3", {.kind = kFsdp, .parameters = Parameters::kSharded, .stage = 3}},
        {"hybrid1",
         {.kind = kFsdp, .parameters = Parameters::kSharded, .stage = 1, .hybrid = true}},
        {"hybrid3",
         {.kind = kFsdp, .parameters = Parameters::kSharded, .stage = 3, .hybrid = true}},
        {"servers", {.kind = kParameterServer}},
        {"servers_of_2_ranks", {.kind = kParameterServer, .worker_ranks = 2}},
        {"servers_of_3_ranks", {.kind = kParameterServer, .worker_ranks = 3}},
        {"averages_of_servers",
         {.kind = kParameterServer, .exchange_periods = {.averages = true}},
         kIfLinear,
         Policy::kAverage},
        {"downpour",
         {.kind = kParameterServer, .exchange_periods = {.fetch = 4, .push = 2}},
         kNever,
         Policy::kAsync},
        {"averaging", {.kind = kParameterAveraging, .period = 1}, kIfLinear},
        {"averaging_of_2_ranks",
         {.kind = kParameterAveraging, .worker_ranks = 2, .period = 1},
         kIfLinear},
    };
    for (const parallel::StrategyRow& row : parallel::strategy_rows()) {
      if (row.distribute == nullptr) continue;
      out.push_back({std::string(row.name),
                     {.kind = row.kind},
                     row.trains_as_one ? kAlways : kNever,
                     Policy::kSync,
                     /*by_default=*/true});
    }
    return out;
  }();
  return all;
}

/// Those that such hosts can have; ranks have whole samples. Each plan there is tried once with
/// each policy, and strategies with defaults only where no other way makes their plan.
inline std::vector<Way> ways_on(const std::vector<int>& hosts) {
  const plan::ModelShape model{
      .segments = {{.name = "s", .parameters = {{"s.weight", 8}}, .borrowed = {}}}};
  std::vector<Way> out;
  std::set<std::string> plans;
  std::set<std::tuple<std::string, protocol::PolicyOptions::Kind, Way::AsOne>> tried;
  for (const Way& way : ways()) {
    if (way.has_columns() || !way.fits(hosts)) continue;
    const std::string plan =
        to_text(plan_for(way.strategy, model, {.ranks_per_host = hosts}).take_or_throw());
    const bool is_new = plans.insert(plan).second;
    const bool is_other = tried.insert({plan, way.policy, way.as_one}).second;
    if (is_new || (is_other && !way.by_default)) out.push_back(way);
  }
  return out;
}

}  // namespace stormo::test
