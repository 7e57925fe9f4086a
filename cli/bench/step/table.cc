#include <cli/bench/step/table.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include <cli/bench/step/opponents.h>
#include <cli/bench/table.h>

namespace stormo::cli {
namespace {

using bench::StepRecord;
using Json = nlohmann::ordered_json;

constexpr double kTolerance = 1e-3;

bool near(double a, double b) { return std::abs(a - b) <= kTolerance * std::abs(b); }

double largest_host(const std::vector<StepRecord>& ranks) {
  std::map<int, double> hosts;
  for (const StepRecord& r : ranks) hosts[r.host] += static_cast<double>(r.pss);
  double most = 0;
  for (const auto& [host, bytes] : hosts) most = std::max(most, bytes);
  return most;
}

bool all_trained(const std::vector<StepRecord>& ranks) {
  return std::all_of(ranks.begin(), ranks.end(), [](const StepRecord& r) {
    return std::isfinite(r.first_loss) && std::isfinite(r.compared_loss) &&
           r.last_loss < r.first_loss;
  });
}

Json memory_json(const StepSummary& s) {
  return {{"pss_per_rank", std::llround(s.pss_per_rank)},
          {"pss_per_host", std::llround(s.pss_per_host)},
          {"peak_rss_per_rank", std::llround(s.peak_rss_per_rank)}};
}

Json losses_json(const StepSummary& s) {
  return {{"first", s.first_loss}, {"compared", s.compared_loss}, {"last", s.last_loss}};
}

Json spread_json(const bench::Spread& s) {
  Json out;
  bench::add_spread(out, "ratio", s);
  return out;
}

/// Whether this contender has other losses after some steps, and may.
bool deviates(const StepResult& r) {
  const auto row = std::ranges::find(step_opponents(), r.name, &TrainingOpponent::name);
  return row != step_opponents().end() && row->deviates;
}

/// A contender beside ours; `ratio` says which way round.
Json result_json(const StepResult& r, const bench::Spread& ratio, const StepSummary& reference) {
  Json out = spread_json(ratio);
  out["p50_s"] = r.best().p50_s;
  out["p90_s"] = r.best().p90_s;
  out["memory"] = memory_json(r.best());
  out["losses"] = losses_json(r.best());
  out["verified"] = agrees(r.best(), reference, deviates(r));
  out["malloc"] = r.malloc;
  for (const auto& [malloc, summary] : r.tried) out["malloc_p50_s"][malloc] = summary.p50_s;
  return out;
}

std::string mebibytes(double bytes) { return fmt::format("{:.0f}", bytes / (1 << 20)); }

std::string line(const std::string& name, const std::string& malloc, const StepSummary& s,
                 const std::string& ratio) {
  return fmt::format("\n{:<18}  {:<7}  {:>9}  {:>9}  {:>7}  {:>7}  {:>7}  {:>9.4g}  {}", name,
                     malloc, short_time(s.p50_s), short_time(s.p90_s), mebibytes(s.pss_per_rank),
                     mebibytes(s.pss_per_host), mebibytes(s.peak_rss_per_rank), s.last_loss, ratio);
}

std::string shown(const bench::Spread& s) {
  return fmt::format("{:>6.3f}  {:>6.3f}  {:>6.3f}", s.median, s.min, s.max);
}

bench::Spread theirs_over_ours(const StepSummary& theirs, const StepSummary& ours) {
  return bench::ratios(theirs.round_p50_s, ours.round_p50_s);
}

/// What each round has above `loop`.
std::vector<double> above(const StepSummary& loop, const StepSummary& s) {
  std::vector<double> out = s.round_p50_s;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] -= loop.round_p50_s[i];
  return out;
}

std::string speedup_line(const Speedup& s) {
  return fmt::format("\n{} over {}: {} times as fast", s.name, s.over, shown(s.ratio)) +
         (s.exposed ? fmt::format(", exposed {}", shown(*s.exposed)) : "");
}

Json speedup_json(const Speedup& s) {
  Json out;
  out["over"] = s.over;
  bench::add_spread(out, "speedup", s.ratio);
  if (s.exposed) bench::add_spread(out, "exposed", *s.exposed);
  return out;
}

}  // namespace

std::vector<Speedup> speedups(const std::vector<StepResult>& against) {
  const auto find = [&](std::string_view name) {
    const auto at = std::find_if(against.begin(), against.end(),
                                 [&](const StepResult& r) { return r.name == name; });
    return at == against.end() ? nullptr : &at->best();
  };
  const StepSummary* const loop = find("pytorch");
  std::vector<Speedup> out;
  for (const TrainingOpponent& row : step_opponents()) {
    const StepSummary* const own = find(row.name);
    const StepSummary* const other = find(row.instead_of);
    if (own == nullptr || other == nullptr) continue;
    Speedup s{std::string(row.name), std::string(row.instead_of),
              bench::ratios(other->round_p50_s, own->round_p50_s), std::nullopt};
    if (loop != nullptr) s.exposed = bench::ratios(above(*loop, *own), above(*loop, *other));
    out.push_back(std::move(s));
  }
  return out;
}

StepSummary summarize(const StepRounds& rounds) {
  StepSummary s{.trained = true};
  std::vector<double> p90, rank, host, peak;
  for (const std::vector<StepRecord>& ranks : rounds) {
    s.round_p50_s.push_back(bench::mean_of(ranks, &StepRecord::p50_s));
    p90.push_back(bench::mean_of(ranks, &StepRecord::p90_s));
    double pss = 0, rss = 0;
    for (const StepRecord& r : ranks) {
      pss = std::max(pss, static_cast<double>(r.pss));
      rss = std::max(rss, static_cast<double>(r.peak_rss));
    }
    rank.push_back(pss);
    peak.push_back(rss);
    host.push_back(largest_host(ranks));
    s.trained = s.trained && all_trained(ranks);
  }
  s.p50_s = bench::median(s.round_p50_s);
  s.p90_s = bench::median(p90);
  s.pss_per_rank = bench::median(rank);
  s.pss_per_host = bench::median(host);
  s.peak_rss_per_rank = bench::median(peak);
  s.first_loss = bench::mean_of(rounds.front(), &StepRecord::first_loss);
  s.compared_loss = bench::mean_of(rounds.front(), &StepRecord::compared_loss);
  s.last_loss = bench::mean_of(rounds.front(), &StepRecord::last_loss);
  return s;
}

StepResult choose_malloc(std::string name, std::map<std::string, StepSummary> tried) {
  const auto best = std::min_element(tried.begin(), tried.end(), [](const auto& a, const auto& b) {
    return a.second.p50_s < b.second.p50_s;
  });
  return {.name = std::move(name), .malloc = best->first, .tried = std::move(tried)};
}

bool agrees(const StepSummary& one, const StepSummary& reference, bool deviates) {
  return one.trained && near(one.first_loss, reference.first_loss) &&
         (deviates || near(one.compared_loss, reference.compared_loss));
}

bool verified(const StepRow& row) {
  const StepSummary& reference = row.without_communication.best();
  return reference.trained && agrees(row.ours, reference, row.job.strategy->deviates);
}

std::string step_table(const StepRow& row) {
  const StepSummary& alone = row.without_communication.best();
  std::string out = fmt::format(
      "{}, batch {}{}{}, strategy {}, {} rank{} on {} host{}: {} rounds of {} steps\n",
      row.job.model->name, row.job.batch, row.job.strategy->cut.empty() ? " per rank" : "",
      row.job.micro_batches > 1 ? fmt::format(" in {} micro-batches", row.job.micro_batches) : "",
      row.job.strategy->name, row.ranks, row.ranks == 1 ? "" : "s", row.hosts,
      row.hosts == 1 ? "" : "s", row.ours.round_p50_s.size(), row.job.steps);
  const auto end = std::back_inserter(out);
  fmt::format_to(end,
                 "{:<18}  {:<7}  {:>9}  {:>9}  {:>7}  {:>7}  {:>7}  {:>9}  {:>6}  {:>6}  {:>6}", "",
                 "malloc", "p50", "p90", "MiB", "host", "peak", "loss", "ratio", "min", "max");
  const auto add = [&](const StepResult& r, const StepSummary& reference) {
    for (const auto& [malloc, s] : r.tried)
      out += line(r.name, malloc, s, shown(theirs_over_ours(s, row.ours))) +
             (agrees(s, reference, deviates(r)) ? "" : "  OTHER LOSSES");
  };
  out += line("stormo", "", row.ours, "") + (verified(row) ? "" : "  WRONG");
  add(row.without_communication, alone);
  for (const StepResult& r : row.against) add(r, alone);
  if (row.predicted) {
    fmt::format_to(end, "\n{:<18}  {:<7}  {:>9}  {:>9}  {:>7}  {:>7}  {:>7}  {:>9}  {}",
                   "predicted", "", short_time(row.predicted->p50_s), "", "", "", "", "",
                   shown(theirs_over_ours(*row.predicted, row.ours)));
  }
  for (const auto& [name, reason] : row.left_out)
    fmt::format_to(end, "\n{:<18}  left out: {}", name, reason);
  for (const Speedup& s : speedups(row.against)) out += speedup_line(s);
  return out + "\n";
}

std::string step_json(const StepRow& row) {
  const StepSummary& alone = row.without_communication.best();
  Json out = {{"op", "step"},
              {"model", row.job.model->name},
              {"strategy", row.job.strategy->name},
              {"ranks", row.ranks},
              {"hosts", row.hosts},
              {"batch", row.job.batch},
              {"micro_batches", row.job.micro_batches},
              {"steps", row.job.steps},
              {"rounds", row.ours.round_p50_s.size()},
              {"p50_s", row.ours.p50_s},
              {"p90_s", row.ours.p90_s},
              {"memory", memory_json(row.ours)},
              {"losses", losses_json(row.ours)},
              {"verified", verified(row)}};
  out["over_no_communication"] = result_json(
      row.without_communication, bench::ratios(row.ours.round_p50_s, alone.round_p50_s), alone);
  for (const StepResult& r : row.against) {
    out["against"][r.name] = result_json(r, theirs_over_ours(r.best(), row.ours), alone);
    if (r.name != "arena") continue;
    for (const auto& [malloc, s] : row.without_communication.tried)
      out["allocator"]["over_" + malloc] =
          spread_json(bench::ratios(s.round_p50_s, r.best().round_p50_s));
  }
  if (row.predicted) {
    out["predicted"] = spread_json(theirs_over_ours(*row.predicted, row.ours));
    out["predicted"]["p50_s"] = row.predicted->p50_s;
  }
  for (const Speedup& s : speedups(row.against))
    out["against"][s.name]["instead_of"] = speedup_json(s);
  for (const auto& [name, reason] : row.left_out) out["left_out"][name] = reason;
  return out.dump();
}

}  // namespace stormo::cli
