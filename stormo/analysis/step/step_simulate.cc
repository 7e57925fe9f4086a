#include <stormo/analysis/step/step_simulate.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include <stormo/analysis/step/assigned.h>
#include <stormo/analysis/step/step_groups.h>
#include <stormo/analysis/transfer/transfers.h>
#include <stormo/base/index.h>
#include <stormo/plan/project.h>

namespace stormo::analysis {
namespace {

using plan::Action;
using plan::Placement;
using plan::Range;
using plan::Value;

/// Of steps that overlap, and of a period whose actions come in different steps.
constexpr int kMostSteps = 32, kMostOfPeriod = 2048;

/// What is under way, by range of parameters and rank: when it will be there.
using Arrivals = std::map<std::pair<int, int>, std::vector<double>>;

class TimeWalk {
 public:
  TimeWalk(const plan::StepPlan& plan, const std::vector<int>& ranks_per_host,
           const StepSizes& sizes, const StepTimes& times, Timeline timeline)
      : plan_(plan),
        sizes_(sizes),
        times_(times),
        timeline_(timeline),
        groups_(plan.mesh, ranks_per_host),
        reads_(parameters_read(plan.model)),
        stages_(plan.model),
        ranks_(at(plan.mesh.size())) {
    for (Rank r = 0; r < plan.mesh.size(); ++r) stage_of_.push_back(at(stage_of(plan.mesh, r)));
    out_.compute.resize(ranks_.size());
    computed_.resize(plan.model.segments.size());
    for (const Action& a : plan.actions) {
      if (!row_of(a.kind).places(Value::kGradients, Placement::kShard)) continue;
      scattered_.insert({a.range.first, a.range.last});
    }
    for (std::size_t s = 0; s < plan.model.segments.size(); ++s) {
      owner_.insert(owner_.end(), plan.model.segments[s].parameters.size(), s);
    }
  }

  Result<StepSimulation> run() {
    const int delay = longest_delay(plan_);
    const bool staggered = is_staggered(plan_);
    const int period = delay > 0 || staggered ? plan_.actions.back().every : 1;
    const int most = staggered ? kMostOfPeriod : kMostSteps;
    out_.steps = std::min(period, most);
    double half = 0, each_more = 0;  // when half of them are done; what a further one takes
    for (step_ = 0; step_ < out_.steps + delay; ++step_) {
      for (action_ = 0; action_ < plan_.actions.size(); ++action_) {
        const Action& a = plan_.actions[action_];
        if (staggered && (step_ - a.offset) % a.every != 0) continue;
        const int batch = step_ - a.delay;
        if (row_of(a.kind).all_batches && !staggered ? step_ == out_.steps + delay - 1
                                                     : batch >= 0 && batch < out_.steps) {
          STORMO_RETURN_IF_ERROR(next(a));
        }
      }
      if (step_ + 1 == most / 2) half = now();
      if (step_ + 1 == most) each_more = (now() - half) / (most - most / 2);
    }
    return finish(each_more * (period - out_.steps), period);
  }

  /// The same plan, whose actions are assigned to ranks.
  Result<StepSimulation> run(const plan::AssignedPlan& assigned) {
    for (const plan::AssignedAction& a : assigned.actions) {
      if (row_of(plan_.actions[a.action].kind).makes.has(Value::kActivations)) {
        computes_[{a.ranks.front(), a.replica}].insert(plan_.actions[a.action].micro_batch);
      }
    }
    for (const plan::AssignedAction& a : assigned.actions) STORMO_RETURN_IF_ERROR(next(a));
    return finish(0, 1);
  }

 private:
  /// When a rank's lanes are free.
  struct Ready {
    double compute = 0;
    double communication = 0;
  };

  /// When the first rank's computations are done that have begun.
  double now() const { return ranks_.empty() ? 0 : ranks_.front().compute; }

  StepSimulation finish(double more, int period) {
    for (const Ready& rank : ranks_) {
      const double end = std::max(rank.compute, rank.communication) + more;
      out_.finish.push_back(end / period);
    }
    for (double& seconds : out_.compute) seconds /= out_.steps;
    out_.seconds = out_.finish.empty() ? 0 : std::ranges::max(out_.finish);
    return std::move(out_);
  }

  Status next(const plan::AssignedAction& assigned) {
    action_ = assigned.action;
    replica_ = assigned.replica;
    const Action& a = plan_.actions[action_];
    if (row_of(a.kind).moves()) {
      move(a, {.axis = plan::kStageAxis,
               .messages = {{.from = assigned.ranks.front(),
                             .to = assigned.ranks.back(),
                             .bytes = moved_bytes(plan_, a, sizes_)}}});
      return {};
    }
    concerned_.clear();
    for (const Rank r : assigned.ranks) concerned_.push_back(at(r));
    wait_for_inputs(a);
    compute(a);
    if (plan::is_of_replica(a)) return {};
    const StepGroups::Group group = groups_.of(assigned.ranks);
    for (const Transfer& t : transfers_of(plan_, action_, sizes_)) {
      const auto* c = std::get_if<Collective>(&t);
      if (c == nullptr || !takes_part(plan_.mesh, group, *c)) continue;
      STORMO_ASSIGN_OR_RETURN(const double seconds, times_.collective(group.ranks_per_host, *c));
      start(group, seconds + std::exchange(encoding_, 0), a.asynchronous);
    }
    wait_for(row_of(a.kind).needs_at_end, a);
    return {};
  }

  Status next(const Action& a) {
    concerned_.clear();
    std::vector<bool> concerned;  // by stage
    for (int s = 0; s < num_stages(plan_.mesh); ++s) concerned.push_back(stages_.concern(a, s));
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (concerned[stage_of_[r]]) concerned_.push_back(r);
    }
    wait_for_inputs(a);
    compute(a);
    if (row_of(a.kind).barrier) {
      for (const StepGroups::Group& group : groups_.over(a.axes)) {
        start(group, times_.barrier, /*asynchronous=*/false);
      }
    }
    for (const Transfer& t : transfers_of(plan_, action_, sizes_)) {
      STORMO_RETURN_IF_ERROR(std::visit([&](const auto& each) { return send(a, each); }, t));
    }
    // what it sends itself travels beside what it waits for here
    wait_for(row_of(a.kind).needs_at_end, a);
    return {};
  }

  void wait_for_inputs(const Action& a) {
    const plan::Values needs = row_of(a.kind).needs;
    wait_for(needs, a);
    if (needs.has(Value::kOutput)) wait_for_move(Value::kOutput, a.range.first - 1, a);
    if (needs.has(Value::kOutputGradient)) {
      wait_for_move(Value::kOutputGradient, a.range.last, a);
    }
  }

  void wait_for(plan::Values values, const Action& a) {
    for (const auto& [value, under_way] : under_way_) {
      if (!values.has(value)) continue;
      for (const auto& [range, arrivals] : under_way) {
        if (concerns(a, range)) wait_until(arrivals);
      }
    }
  }
  /// Whether an action uses one of these parameters.
  bool concerns(const Action& a, std::pair<int, int> parameters) const {
    const auto [first, last] = parameters;
    switch (row_of(a.kind).range) {
      case plan::RangeOf::kNothing: return true;
      case plan::RangeOf::kParameters: return a.range.first <= last && first <= a.range.last;
      case plan::RangeOf::kSegments: break;
    }
    const auto begin = reads_.begin() + a.range.first, end = reads_.begin() + a.range.last + 1;
    return std::any_of(begin, end, [=](const std::vector<int>& read) {
      return std::ranges::any_of(read, [=](int p) { return first <= p && p <= last; });
    });
  }
  /// Across the boundary behind a segment, if the micro-batch was moved there.
  void wait_for_move(Value value, int segment, const Action& needs) {
    const auto found =
        moves_.find({value, segment, needs.micro_batch, step_ - needs.delay, replica_});
    if (found != moves_.end()) wait_until(found->second);
  }
  void wait_until(const std::vector<double>& arrivals) {
    for (const std::size_t r : concerned_) wait_until(r, arrivals[r]);
  }

  Status send(const Action& a, const Collective& c) {
    const StepGroups::Group* like = nullptr;  // most groups lie on hosts as the one before them
    double seconds = 0;
    for (const StepGroups::Group& group : groups_.over(c.axes, c.stages, c.slice)) {
      if (c.only_between_hosts && group.ranks_per_host.size() == 1) continue;
      if (like == nullptr || like->ranks_per_host != group.ranks_per_host) {
        STORMO_ASSIGN_OR_RETURN(seconds, times_.collective(group.ranks_per_host, c));
        like = &group;
      }
      start(group, seconds + encoding_, a.asynchronous);
    }
    encoding_ = 0;
    return {};
  }

  Status send(const Action& a, const Crossing& c) {
    const plan::ActionRow& row = row_of(a.kind);
    row.moves() ? move(a, c) : row.meets_neighbours() ? meet_neighbours(a, c) : exchange(c);
    return {};
  }
  double seconds_of(const Crossing::Message& m) const {
    const plan::Link& link =
        groups_.same_host(m.from, m.to) ? times_.stages_in_host : times_.stages_between_hosts;
    return link.latency_s + static_cast<double>(m.bytes) * link.seconds_per_byte;
  }
  /// The sender goes on; the receiver waits when it needs the tensor.
  void move(const Action& a, const Crossing& c) {
    const Value value =
        row_of(a.kind).makes.has(Value::kOutput) ? Value::kOutput : Value::kOutputGradient;
    std::vector<double>& arrivals =
        moves_[{value, a.range.first, a.micro_batch, step_ - a.delay, replica_}];
    arrivals.resize(ranks_.size());
    for (const Crossing::Message& m : c.messages) {
      Ready& ready = ranks_[at(m.from)];
      const double begin = std::max(ready.compute, ready.communication);
      const double end = begin + seconds_of(m);
      record(at(m.from), Lane::kCommunication, begin, end);
      ready.communication = end;
      arrivals[at(m.to)] = end;
    }
  }
  /// A rank sends one message after the other, and waits for its neighbours only.
  void meet_neighbours(const Action& a, const Crossing& c) {
    std::vector<double> done(ranks_.size());
    for (const std::size_t r : concerned_) {
      ranks_[r].communication = std::max(ranks_[r].compute, ranks_[r].communication);
    }
    for (const Crossing::Message& m : c.messages) {
      double& now = ranks_[at(m.from)].communication;
      const double end = now + seconds_of(m);
      record(at(m.from), Lane::kCommunication, now, end);
      now = end;
      for (const Rank r : {m.from, m.to}) done[at(r)] = std::max(done[at(r)], end);
    }
    for (const std::size_t r : concerned_) {
      a.asynchronous ? arrive(r, done[r]) : wait_until(r, done[r]);
    }
  }
  void wait_until(std::size_t rank, double time) {
    double& now = ranks_[rank].compute;
    if (time <= now) return;
    record(rank, Lane::kWait, now, time);
    now = time;
  }

  /// Gradients of a segment are there before those of the segments in front of it.
  void note_gradients(const Action& a) {
    Action one = a;
    for (int s = a.range.last; s >= a.range.first; --s) {
      one.range = {s, s};
      std::vector<double>& computed = computed_[at(s)];
      computed.resize(ranks_.size());
      for (const std::size_t r : concerned_) {
        const double before = s == a.range.last ? ranks_[r].compute : computed_[at(s + 1)][r];
        computed[r] = before + times_.compute(static_cast<Rank>(r), one);
      }
    }
  }

  /// Whether what the present action reduces can be sent before the plan comes to it: as soon as
  /// its gradients are there.
  bool is_early() const {
    const Action& a = plan_.actions[action_];
    return row_of(a.kind).makes.has(Value::kGradients) && a.asynchronous &&
           !scattered_.contains({a.range.first, a.range.last});
  }

  double gradients_there(std::size_t rank) const {
    const Range range = plan_.actions[action_].range;
    double time = 0;
    for (std::size_t s = owner_[at(range.first)]; s <= owner_[at(range.last)]; ++s) {
      if (!computed_[s].empty()) time = std::max(time, computed_[s][rank]);
    }
    return time;
  }

  /// What a rank loads of a batch of which it computes some micro-batches.
  double share_loaded(std::size_t rank, const Action& a) const {
    if (computes_.empty() || !row_of(a.kind).makes.has(Value::kBatch)) return 1;
    const auto found = computes_.find({static_cast<Rank>(rank), replica_});
    const std::size_t some = found == computes_.end() ? 0 : found->second.size();
    return static_cast<double>(some) / plan_.micro_batches;
  }

  void compute(const Action& a) {
    if (row_of(a.kind).adds_gradients) note_gradients(a);
    encoding_ = 0;
    if (a.codec != Codec::kNone) {  // whoever sends also encodes and decodes
      for (const std::size_t r : concerned_) {
        encoding_ = std::max(encoding_, times_.compute(static_cast<Rank>(r), a));
      }
      return;
    }
    for (const std::size_t r : concerned_) {
      const double seconds = times_.compute(static_cast<Rank>(r), a) * share_loaded(r, a);
      double& now = ranks_[r].compute;
      record(r, Lane::kCompute, now, now + seconds);
      now += seconds;
      out_.compute[r] += seconds;
    }
  }

  /// A collective, or a barrier, of the present action.
  void start(const StepGroups::Group& group, double seconds, bool asynchronous) {
    const bool early = is_early();
    double begin = 0;
    for (const Rank r : group.ranks) {
      const double ready = early ? gradients_there(at(r)) : ranks_[at(r)].compute;
      begin = std::max({begin, ready, ranks_[at(r)].communication});
    }
    for (const Rank r : group.ranks) {
      if (!asynchronous) wait_until(at(r), begin);
      record(at(r), Lane::kCommunication, begin, begin + seconds);
      ranks_[at(r)].communication = begin + seconds;
      if (asynchronous) {
        arrive(at(r), begin + seconds);
      } else {
        ranks_[at(r)].compute = begin + seconds;
      }
    }
  }

  /// Each worker by itself, with its first rank.
  Status send(const Action& a, const ServerExchange& e) {
    const plan::Link& link = times_.servers;
    const auto bytes = static_cast<double>(e.pulled + e.pushed);
    const double seconds = link.latency_s + bytes * link.seconds_per_byte;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (worker_part(plan_.mesh, static_cast<Rank>(r)).index > 0) continue;
      const double ready = is_early() ? gradients_there(r) : ranks_[r].compute;
      const double begin = std::max(ready, ranks_[r].communication);
      record(r, Lane::kCommunication, begin, begin + seconds);
      ranks_[r].communication = begin + seconds;
      if (a.asynchronous) {
        arrive(r, begin + seconds);
      } else {
        ranks_[r].compute = begin + seconds;
      }
    }
    return {};
  }

  /// Halos: a rank sends one message after the other, and the ranks of a line wait for each other.
  void exchange(const Crossing& c) {
    std::vector<double> seconds(ranks_.size());
    for (const Crossing::Message& m : c.messages) seconds[at(m.from)] += seconds_of(m);
    for (const StepGroups::Group& group : groups_.over({c.axis})) {
      double longest = 0;
      for (const Rank r : group.ranks) longest = std::max(longest, seconds[at(r)]);
      start(group, longest, /*asynchronous=*/false);
    }
  }

  void arrive(std::size_t rank, double time) {
    const Action& a = plan_.actions[action_];
    for (auto& [value, under_way] : under_way_) {
      if (!row_of(a.kind).makes.has(value)) continue;
      std::vector<double>& arrivals = under_way[{a.range.first, a.range.last}];
      arrivals.resize(ranks_.size());
      arrivals[rank] = std::max(arrivals[rank], time);
    }
  }

  void record(std::size_t rank, Lane lane, double start, double end) {
    if (timeline_ == Timeline::kDrop || start >= end) return;
    out_.timeline.push_back({.rank = static_cast<Rank>(rank),
                             .action = action_,
                             .lane = lane,
                             .start = start,
                             .end = end});
  }

  const plan::StepPlan& plan_;
  const StepSizes& sizes_;
  const StepTimes& times_;
  Timeline timeline_;
  StepGroups groups_;
  std::vector<std::vector<int>> reads_;  // by segment: parameters
  plan::Stages stages_;
  std::vector<std::size_t> stage_of_;   // by rank
  std::vector<std::size_t> concerned_;  // ranks, by the present action
  // by boundary, micro-batch, batch and replica, then by rank: arrivals
  std::map<std::tuple<Value, int, int, int, int>, std::vector<double>> moves_;
  // where actions are assigned: the micro-batches of a replica that a rank computes
  std::map<std::pair<Rank, int>, std::set<int>> computes_;
  std::vector<Ready> ranks_;
  std::vector<std::size_t> owner_;             // by parameter: its segment
  std::vector<std::vector<double>> computed_;  // by segment and rank: when its gradients are there
  std::set<std::pair<int, int>> scattered_;    // ranges of parameters
  std::array<std::pair<Value, Arrivals>, 4> under_way_ = {{{Value::kParameters, {}},
                                                           {Value::kGradients, {}},
                                                           {Value::kMixed, {}},
                                                           {Value::kAveraged, {}}}};
  std::size_t action_ = 0;
  double encoding_ = 0;  // of the present action, until its first collective
  int step_ = 0;
  int replica_ = 0;  // where actions are assigned, else 0
  StepSimulation out_;
};

}  // namespace

std::function<double(Rank, const Action&)> compute_times(const plan::StepPlan& plan,
                                                         const ComputeTimes& times) {
  double parts = 1;
  for (std::size_t axis = 0; axis < plan.optimizer_state.size(); ++axis) {
    if (plan.optimizer_state[axis] == plan::Placement::kShard) parts *= plan.mesh.axes[axis].size;
  }
  const int stages = num_stages(plan.mesh);
  // by stage: elements of its parameters before each
  std::vector<std::vector<double>> before(at(stages), {0});
  double all = 0;
  for (int s = 0; s < stages; ++s) {
    const plan::ModelShape model = largest_model_of(plan.model, plan.mesh, s);
    for (const plan::ParameterShape* p : flatten(model)) {
      const bool updated = p->trainable && !p->elsewhere;
      before[at(s)].push_back(before[at(s)].back() +
                              (updated ? static_cast<double>(p->elements) : 0));
    }
  }
  for (const plan::ParameterShape* p : flatten(plan.model)) {
    if (p->trainable) all += static_cast<double>(p->elements);
  }
  const auto of_segments = [](const std::vector<double>& each, Range r) {
    return std::accumulate(each.begin() + r.first, each.begin() + r.last + 1, 0.0);
  };
  const auto share = [=, mesh = plan.mesh](Rank rank, Range parameters) {
    const std::vector<double>& own = before[at(stage_of(mesh, rank))];
    return all > 0 ? (own[at(parameters.last + 1)] - own[at(parameters.first)]) / all / parts : 0;
  };
  const Range whole = all_parameters(plan.model);
  int sharing = 1;  // ranks whose gradients an update reads
  for (const Action& a : plan.actions) {
    if (row_of(a.kind).places(Value::kGradients, Placement::kShared)) {
      sharing = static_cast<int>(plan.mesh.group(0, a.axes).size());
    }
  }
  const double update = times.update + (sharing - 1) * times.gradient;
  std::vector<double> input = times.backward_input, weight = times.backward_weight;
  if (input.empty()) {
    for (const double both : times.backward) input.push_back(both / 2);
    weight = input;
  }
  return [=](Rank rank, const Action& a) -> double {
    const plan::ActionRow& row = row_of(a.kind);
    if (row.runs_forward()) return of_segments(times.forward, a.range);
    if (row.passes_gradient() || row.adds_gradients) {
      return of_segments(!row.adds_gradients      ? input
                         : !row.passes_gradient() ? weight
                                                  : times.backward,
                         a.range);
    }
    if (row.makes.has(Value::kBatch)) return times.load;
    if (row.makes.has(Value::kLoss)) return times.loss;
    if (row.makes.has(Value::kNorm)) return times.norm * share(rank, whole);
    const bool updates = row.makes.has(Value::kUpdated) || row.outer_updates();
    return updates ? update * share(rank, a.range) : 0;
  };
}

double StepSimulation::idle_share() const {
  const double all = seconds * static_cast<double>(compute.size());
  return all > 0 ? 1 - std::accumulate(compute.begin(), compute.end(), 0.0) / all : 0;
}

Result<StepSimulation> simulate(const plan::StepPlan& plan, const std::vector<int>& ranks_per_host,
                                const StepSizes& sizes, const StepTimes& times, Timeline timeline) {
  return TimeWalk(plan, ranks_per_host, sizes, times, timeline).run();
}

Result<StepSimulation> simulate(const plan::AssignedPlan& assigned,
                                const std::vector<int>& ranks_per_host, const StepSizes& sizes,
                                const StepTimes& times, Timeline timeline) {
  return TimeWalk(assigned.plan, ranks_per_host, sizes, times, timeline).run(assigned);
}

}  // namespace stormo::analysis
