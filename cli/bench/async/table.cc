#include <cli/bench/async/table.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include <cli/bench/table.h>

namespace stormo::cli {
namespace {

using bench::WorkerRecord;
using Json = nlohmann::ordered_json;

int workers_that(const std::vector<WorkerRecord>& records, const SlowWorker& slow) {
  int count = 0;
  for (const WorkerRecord& r : records) count += slow.spares(r.worker) ? r.workers : 0;
  return count;
}

/// The steps of all workers in their order, from the time when the last one has begun.
std::vector<LossPoint> losses_of(const std::vector<WorkerRecord>& records) {
  double begin = 0;
  for (const WorkerRecord& r : records) begin = std::max(begin, r.times.front());
  std::vector<LossPoint> out;
  for (const WorkerRecord& r : records) {
    if (r.losses.empty()) return {};
    for (std::size_t i = 0; i < r.times.size(); ++i) {
      const std::chrono::duration<double> at(r.times[i] - begin);
      if (at.count() < 0) continue;
      out.push_back(
          {.at = std::chrono::duration_cast<Duration>(at), .loss = r.losses[i], .samples = 1});
    }
  }
  std::ranges::stable_sort(out, {}, &LossPoint::at);
  return out;
}

Json result_json(const AsyncResult& r, int batch) {
  const AsyncSummary& s = r.summary;
  return {{"steps_per_s", s.rate()},
          {"samples_per_s", s.rate() * batch},
          {"step_s", bench::median(s.step_s)},
          {"losses", {{"first", s.first_loss}, {"last", s.last_loss}}},
          {"verified", s.trained}};
}

std::string line(const AsyncRow& row, const AsyncResult& r) {
  const AsyncSummary& s = r.summary;
  std::string out =
      fmt::format("\n{:<31}  {:>8.4g}  {:>9.4g}  {:>9}  {:>9.4g}", r.name, s.rate(),
                  s.rate() * row.job.batch, short_time(bench::median(s.step_s)), s.last_loss);
  if (&r != &row.ours) {
    const bench::Spread rate = rate_ratio(row, r), step = step_ratio(row, r);
    out += fmt::format("  {:>6.3f}  {:>6.3f}  {:>6.3f}  {:>6.3f}", rate.median, rate.min, rate.max,
                       step.median);
    if (const auto then = equal_time(row, r)) {
      out += fmt::format("  {:>10.4g}  {:>9.4g}", then->other_loss, then->first_loss);
    }
  }
  return out + (s.trained ? "" : "  DOES NOT LEARN");
}

}  // namespace

std::string slow_text(const SlowWorker& slow) {
  const std::string who = slow.in_turns ? "turns" : std::to_string(slow.worker);
  return fmt::format("{}:{}x", who, slow.factor);
}

Result<AsyncSummary> summarize_workers(const std::vector<std::vector<WorkerRecord>>& rounds,
                                       const SlowWorker& slow) {
  AsyncSummary s;
  const auto spared = [&](int worker) { return slow.spares(worker); };
  for (const std::vector<WorkerRecord>& records : rounds) {
    const double all = bench::steps_per_second(records, [](int) { return true; });
    const double fast = bench::steps_per_second(records, spared);
    if (all == 0 || fast == 0)
      return Status(Code::kCorrupt, "the workers did not train at the same time; try more --steps");
    s.rates.push_back(all);
    s.step_s.push_back(workers_that(records, slow) / fast);
    for (const WorkerRecord& r : records)
      s.trained = s.trained && std::isfinite(r.first_loss) && r.last_loss < r.first_loss;
  }
  s.first_loss = bench::mean_of(rounds.front(), &WorkerRecord::first_loss);
  s.last_loss = bench::mean_of(rounds.front(), &WorkerRecord::last_loss);
  s.losses = losses_of(rounds.front());
  return s;
}

bench::Spread rate_ratio(const AsyncRow& row, const AsyncResult& other) {
  return bench::ratios(row.ours.summary.rates, other.summary.rates);
}

bench::Spread step_ratio(const AsyncRow& row, const AsyncResult& other) {
  return bench::ratios(other.summary.step_s, row.ours.summary.step_s);
}

std::optional<EqualTime> equal_time(const AsyncRow& row, const AsyncResult& other) {
  const std::vector<LossPoint>&a = row.ours.summary.losses, &b = other.summary.losses;
  if (a.empty() || b.empty()) return std::nullopt;
  const Duration at = std::min(a.back().at, b.back().at);
  const auto loss = [&](const std::vector<LossPoint>& points) {
    const auto end = std::ranges::upper_bound(points, at, {}, &LossPoint::at);
    const auto steps = std::min<std::ptrdiff_t>(end - points.begin(), row.workers * kStepBatches);
    double sum = 0;
    for (auto p = end - steps; p != end; ++p) sum += p->loss;
    return sum / static_cast<double>(steps);
  };
  return EqualTime{.at = at, .first_loss = loss(a), .other_loss = loss(b)};
}

std::string async_heading(const AsyncRow& row) {
  return fmt::format(
      "{}, batch {} per worker, {} worker{}, plain SGD: {} rounds of {} steps per worker",
      row.job.model->name, row.job.batch, row.workers, row.workers == 1 ? "" : "s",
      row.ours.summary.rates.size(), row.job.steps);
}

std::string async_table(const AsyncRow& row) {
  std::string out = async_heading(row);
  const auto end = std::back_inserter(out);
  if (row.slow.any())
    fmt::format_to(end, "\nslow on purpose, by waits after backward: {}", slow_text(row.slow));
  fmt::format_to(end,
                 "\n{:<31}  {:>8}  {:>9}  {:>9}  {:>9}  {:>6}  {:>6}  {:>6}  {:>6}  {:>9}  {:>9}",
                 "", "steps/s", "samples/s", "step", "loss", "ratio", "min", "max", "of step",
                 "equal time", "first");
  out += line(row, row.ours);
  for (const AsyncResult& r : row.against) out += line(row, r);
  for (const auto& [name, reason] : row.absent)
    fmt::format_to(end, "\n{:<31}  not available: {}", name, reason);
  return out + "\n";
}

std::string async_json(const AsyncRow& row) {
  Json out = {{"op", "async"},
              {"model", row.job.model->name},
              {"strategy", row.ours.name},
              {"workers", row.workers},
              {"batch", row.job.batch},
              {"steps", row.job.steps},
              {"rounds", row.ours.summary.rates.size()}};
  if (row.slow.any()) out["slow"] = slow_text(row.slow);
  out.update(result_json(row.ours, row.job.batch));
  for (const AsyncResult& r : row.against) {
    Json& their = out["against"][r.name] = result_json(r, row.job.batch);
    bench::add_spread(their, "ratio", rate_ratio(row, r));
    bench::add_spread(their, "step_ratio", step_ratio(row, r));
    if (const auto then = equal_time(row, r)) {
      their["equal_time"] = {{"time_s", std::chrono::duration<double>(then->at).count()},
                             {"first_loss", then->first_loss},
                             {"loss", then->other_loss}};
    }
  }
  for (const auto& [name, reason] : row.absent) out["not_available"][name] = reason;
  return out.dump();
}

}  // namespace stormo::cli
