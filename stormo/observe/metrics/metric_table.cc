#include <stormo/observe/metrics/metric_table.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include <stormo/base/event.h>

namespace stormo::observe {
namespace {

using In = const MetricInput&;
using Out = MetricValues&;

double unix_seconds(std::chrono::system_clock::time_point when) {
  return std::chrono::duration<double>(when.time_since_epoch()).count();
}

std::string phase(int lane) { return std::string(to_string(static_cast<Lane>(lane))); }

/// Adds a number of the newest step, if there is one.
template <auto kField>
void of_step(In in, Out out) {
  if (in.run.step) out.add(static_cast<double>(std::invoke(kField, *in.run.step)));
}

template <auto kField>
void of_start(In in, Out out) {
  if (in.run.start) out.add(static_cast<double>(std::invoke(kField, *in.run.start)));
}

void build_info(In in, Out out) {
  out.samples.push_back({{{"version", in.build.version}, {"git", in.build.git}}, 1});
}

void run_info(In in, Out out) {
  if (!in.run.start) return;
  out.samples.push_back(
      {{{"recipe", in.run.start->recipe}, {"strategy", in.run.start->strategy}}, 1});
}

void start_time(In in, Out out) { out.add(unix_seconds(in.run.began)); }

void ranks(In in, Out out) {
  if (in.run.start) out.add("state", "active", in.run.start->ranks);
}

void step_duration(In in, Out out) {
  if (in.run.step) out.times = &in.run.step->times;
}

void phase_seconds(In in, Out out) {
  if (!in.run.step) return;
  for (int lane = 0; lane < kNumLanes; ++lane) {
    out.add("phase", phase(lane), in.run.step->lane_seconds[static_cast<std::size_t>(lane)]);
  }
}

void phase_ratio(In in, Out out) {
  if (!in.run.logged) return;
  const auto& ranks = in.run.logged->rank_shares;
  for (int lane = 0; lane < kNumLanes; ++lane) {
    const auto share = [lane](const auto& of) { return of[static_cast<std::size_t>(lane)]; };
    const auto [least, most] = std::ranges::minmax(ranks, {}, share);
    double sum = 0;
    for (const auto& rank : ranks) sum += share(rank);
    const auto add = [&](const char* over, double value) {
      out.samples.push_back({{{"phase", phase(lane)}, {"over_ranks", over}}, value});
    };
    add("min", share(least));
    add("mean", sum / static_cast<double>(ranks.size()));
    add("max", share(most));
  }
}

void slowest_rank(In in, Out out) {
  if (in.run.logged) out.add(in.run.logged->slowest);
}

/// Of each part of a step, the rank that is slowest in it; none while no rank is slow.
template <auto kField>
void of_slow_ranks(In in, Out out) {
  std::map<std::string_view, const SlowRanksRecord::Change*> worst;
  for (const SlowRanksRecord::Change& c : in.run.slow.changes) {
    const auto [at, first] = worst.try_emplace(c.part, &c);
    if (!first && c.ratio > at->second->ratio) at->second = &c;
  }
  for (const auto& [part, c] : worst) {
    out.add("phase", std::string(part), static_cast<double>(std::invoke(kField, *c)));
  }
}

void slow_ranks(In in, Out out) {
  if (in.run.logged) out.add(static_cast<double>(in.run.slow.changes.size()));
}

void last_step_time(In in, Out out) {
  if (in.run.step) out.add(unix_seconds(in.run.step_seen));
}

void gradient_norm(In in, Out out) {
  if (in.run.step && in.run.step->gradient_norm) out.add(*in.run.step->gradient_norm);
}

void bytes_sent(In in, Out out) {
  const bool several_hosts = in.run.start && in.run.start->hosts > 1;
  if (several_hosts && in.run.step) out.add(static_cast<double>(in.run.step->bytes_sent));
}

void evaluation_loss(In in, Out out) {
  for (const EvalRecord& e : in.run.evaluations) out.add("split", e.split, e.loss);
}

void evaluation_accuracy(In in, Out out) {
  for (const EvalRecord& e : in.run.evaluations) {
    if (e.accuracy) out.add("split", e.split, *e.accuracy);
  }
}

bool saves(In in) { return in.run.start && !in.run.start->checkpoint.empty(); }

void checkpoint_age(In in, Out out) {
  if (!saves(in) || in.run.checkpoint.empty()) return;
  out.add(std::chrono::duration<double>(in.now - in.run.checkpoint_seen).count());
}

void checkpoint_failures(In in, Out out) {
  if (saves(in)) out.add(static_cast<double>(in.run.failed_saves));
}

void warnings(In in, Out out) {
  for (const auto& [kind, count] : in.run.warnings) {
    out.add("kind", kind, static_cast<double>(count));
  }
}

void replica_mismatches(In in, Out out) {
  if (!in.run.start || in.run.start->ranks == 1) return;
  const auto found = in.run.warnings.find("replica_mismatch");
  out.add(found == in.run.warnings.end() ? 0 : static_cast<double>(found->second));
}

void energy(In in, Out out) {
  if (in.cost == nullptr) return;
  for (const auto& [source, joules] : in.cost->joules) out.add("source", source, joules);
}

template <auto kField>
void of_cost(In in, Out out) {
  if (in.cost != nullptr) out.add(static_cast<double>(std::invoke(kField, *in.cost)));
}

constexpr auto kCounter = MetricKind::kCounter;
constexpr auto kGauge = MetricKind::kGauge;

constexpr MetricRow kTable[] = {
    {"stormo_build_info", MetricKind::kInfo, "", "The build of Stormo.", build_info},
    {"stormo_run_info", MetricKind::kInfo, "", "What is trained.", run_info},
    {"stormo_start_time_seconds", kGauge, "seconds", "Unix time at which rank 0 began.",
     start_time},
    {"stormo_ranks", kGauge, "", "Ranks of the job.", ranks},
    {"stormo_hosts", kGauge, "", "Hosts of the job.", of_start<&StartRecord::hosts>},
    {"stormo_parameters", kGauge, "", "Parameters of the model.",
     of_start<&StartRecord::parameters>},
    {"stormo_global_batch_samples", kGauge, "", "Samples of a step, of all ranks together.",
     of_start<&StartRecord::global_batch>},
    {"stormo_planned_steps", kGauge, "", "Steps of the whole run.", of_start<&StartRecord::steps>},
    {"stormo_steps_total", kCounter, "", "Steps that are done, also before a resume.",
     of_step<&StepRecord::step>},
    {"stormo_samples_total", kCounter, "", "Samples that were trained, also before a resume.",
     of_step<&StepRecord::samples>},
    {"stormo_data_epochs", kGauge, "", "Epochs of the training data that are done.",
     of_step<&StepRecord::epoch>},
    {"stormo_remaining_seconds", kGauge, "seconds", "Estimated time to the last step.",
     of_step<&StepRecord::eta_s>},
    {"stormo_last_step_timestamp_seconds", kGauge, "seconds",
     "Unix time at which the newest step was seen.", last_step_time},
    {"stormo_step_duration_seconds", MetricKind::kHistogram, "seconds",
     "Times of the steps of this process, without evaluation and waiting for checkpoints.",
     step_duration},
    {"stormo_phase_seconds_total", kCounter, "seconds",
     "Time in which rank 0 was busy with this; phases can overlap.", phase_seconds},
    {"stormo_phase_ratio", kGauge, "ratio",
     "Share of the time between the last two logged steps: least, mean and most of all ranks.",
     phase_ratio},
    {"stormo_slowest_rank", kGauge, "",
     "Rank that computed and loaded longest, as of the last logged step.", slowest_rank},
    {"stormo_slow_ranks", kGauge, "", "Ranks that are named as slow now, once for each cause.",
     slow_ranks},
    {"stormo_slow_rank", kGauge, "", "Rank that is slow now in this part of a step.",
     of_slow_ranks<&SlowRanksRecord::Change::rank>},
    {"stormo_slowness_ratio", kGauge, "ratio",
     "Times that this part of a step takes that rank as long as the others.",
     of_slow_ranks<&SlowRanksRecord::Change::ratio>},
    {"stormo_step_without_slow_rank_ratio", kGauge, "ratio",
     "Time of a step if that rank were as fast as the others, as a share of what it takes.",
     of_slow_ranks<&SlowRanksRecord::Change::without>},
    {"stormo_loss", kGauge, "", "Loss of the newest step, mean over the samples of all ranks.",
     of_step<&StepRecord::loss>},
    {"stormo_learning_rate", kGauge, "", "Learning rate of the newest step.",
     of_step<&StepRecord::learning_rate>},
    {"stormo_gradient_norm", kGauge, "", "Norm of the averaged gradient, before clipping.",
     gradient_norm},
    {"stormo_wire_bytes_total", kCounter, "bytes",
     "Payload that collectives of rank 0 have sent to other hosts.", bytes_sent},
    {"stormo_evaluation_loss", kGauge, "", "Loss of the newest evaluation.", evaluation_loss},
    {"stormo_evaluation_accuracy", kGauge, "", "Share of samples that are classified correctly.",
     evaluation_accuracy},
    {"stormo_checkpoint_age_seconds", kGauge, "seconds",
     "Time since the newest checkpoint was complete, or was resumed from.", checkpoint_age},
    {"stormo_checkpoint_failures_total", kCounter, "", "Checkpoints that could not be written.",
     checkpoint_failures},
    {"stormo_replica_mismatches_total", kCounter, "",
     "Ranks whose parameters or optimizer state had wrong bits, which were put right.",
     replica_mismatches},
    {"stormo_warnings_total", kCounter, "", "Warnings of this run.", warnings},
    {"stormo_energy_joules_total", kCounter, "joules",
     "Energy that the host of rank 0 has used since the start of the process, all its programs.",
     energy},
    {"stormo_wall_seconds_total", kCounter, "seconds", "Time of all starts of this run.",
     of_cost<&CostRecord::wall_s>},
    {"stormo_wasted_seconds_total", kCounter, "seconds",
     "Time between checkpoints and the faults after them, of all starts.",
     of_cost<&CostRecord::wasted_s>},
};

}  // namespace

std::span<const MetricRow> metric_table() { return kTable; }

}  // namespace stormo::observe
