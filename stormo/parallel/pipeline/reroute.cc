// Pipelines that go on without ranks that are lost.
//
// Idea: pipelines of a job are replicas, so a rank of the same stage in another one has the
// parameters, and can compute the micro-batches of a lost rank. It does so while it would wait for
// its neighbours. No parameter moves, no micro-batch is lost or computed twice, and the update is
// the same. Cost per step: nothing while ranks have idle time for the work, and no more than
// d/(d-l) of the fullest stage's time with l of its d ranks lost; each move that goes by way of a
// peer is sent between two pipelines. Papers: S. Gandhi et al., "ReCycle: Resilient training of
// large DNNs using pipeline adaptation", SOSP 2024; I. Jang et al., "Oobleck: Resilient distributed
// training of large models using pipeline templates", SOSP 2023.
#include <stormo/parallel/pipeline/reroute.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include <stormo/base/index.h>
#include <stormo/parallel/pipeline/rerouted_order.h>
#include <stormo/plan/limits.h>
#include <stormo/plan/project.h>

namespace stormo::parallel {
namespace {

using plan::Action;
using plan::AssignedPlan;

/// Writes an order of pieces as assigned actions. What ranks do together comes as soon as the
/// actions of micro-batches before it in the plan are there, of all replicas.
class Writer {
 public:
  Writer(AssignedPlan& out, const std::vector<std::vector<Rank>>& left,
         const std::vector<StagePiece>& pieces, const std::vector<std::vector<Rank>>& rank_of)
      : out_(out),
        plan_(out.plan),
        left_(left),
        pieces_(pieces),
        rank_of_(rank_of),
        stages_(plan_.model),
        unfinished_(left.size()),
        together_(left.size()) {
    for (std::size_t i = 0; i < plan_.actions.size(); ++i) {
      const Action& a = plan_.actions[i];
      if (makes(a, plan::Value::kBatch)) loads_.push_back(i);
      if (is_of_replica(a) && !row_of(a.kind).micro_batch) continue;
      for (std::size_t s = 0; s < left.size(); ++s) {
        if (!stages_.concern(a, static_cast<int>(s))) continue;
        (row_of(a.kind).micro_batch ? unfinished_ : together_)[s].push_back(i);
      }
    }
    for (auto* lists : {&unfinished_, &together_}) {
      for (auto& list : *lists) std::ranges::reverse(list);  // taken from the end
    }
    for (std::size_t p = 0; p < pieces.size(); ++p) {
      if (pieces[p].takes == 0) continue;
      const Action& forward = plan_.actions[pieces[p].action];
      for (int s = forward.range.first; s <= forward.range.last; ++s) {
        by_place_[{forward.micro_batch, s}] = p;
      }
    }
    replicas_left_.assign(plan_.actions.size(), static_cast<int>(rank_of.size()));
  }

  void write(const std::vector<ReroutedOrder::Task>& tasks) {
    load();
    write_together();
    for (const ReroutedOrder::Task& t : tasks) {
      const StagePiece& piece = pieces_[t.piece];
      const Rank rank = rank_of_[at(t.replica)][t.piece];
      for (const std::size_t i : piece.before) write(i, t.replica, {rank});
      write(piece.action, t.replica, {rank});
      for (const std::size_t i : piece.after) {
        std::vector<Rank> ranks = {rank};
        if (row_of(plan_.actions[i].kind).moves()) ranks.push_back(receiver(i, t.replica));
        write(i, t.replica, std::move(ranks));
      }
      write_together();
    }
  }

 private:
  /// A rank loads the batches of which it computes something.
  void load() {
    std::set<std::pair<int, Rank>> some;
    for (std::size_t d = 0; d < rank_of_.size(); ++d) {
      for (const Rank r : rank_of_[d]) some.insert({static_cast<int>(d), r});
    }
    for (const std::size_t i : loads_) {
      for (const auto& [replica, rank] : some) out_.actions.push_back({i, replica, {rank}});
    }
  }

  Rank receiver(std::size_t move, int replica) const {
    const Action& a = plan_.actions[move];
    return rank_of_[at(replica)][by_place_.at({a.micro_batch, ends_of(a).to})];
  }

  void write(std::size_t action, int replica, std::vector<Rank> ranks) {
    out_.actions.push_back({action, replica, std::move(ranks)});
    --replicas_left_[action];
  }

  void write_together() {
    for (bool more = true; more;) {
      more = false;
      for (std::size_t s = 0; s < left_.size(); ++s) {
        while (!unfinished_[s].empty() && replicas_left_[unfinished_[s].back()] == 0) {
          unfinished_[s].pop_back();
        }
      }
      for (std::size_t s = 0; s < left_.size(); ++s) {
        if (together_[s].empty() || !is_next(together_[s].back())) continue;
        const std::size_t action = together_[s].back();
        for (auto& group : groups_of(plan_, plan_.actions[action], left_)) {
          out_.actions.push_back({action, 0, std::move(group)});
        }
        for (auto& list : together_) {
          if (!list.empty() && list.back() == action) list.pop_back();
        }
        more = true;
      }
    }
  }

  /// On all stages that it concerns, all before it is there.
  bool is_next(std::size_t action) const {
    for (std::size_t s = 0; s < left_.size(); ++s) {
      if (!stages_.concern(plan_.actions[action], static_cast<int>(s))) continue;
      if (together_[s].back() != action) return false;
      if (!unfinished_[s].empty() && unfinished_[s].back() < action) return false;
    }
    return true;
  }

  AssignedPlan& out_;
  const plan::StepPlan& plan_;
  const std::vector<std::vector<Rank>>& left_;
  const std::vector<StagePiece>& pieces_;
  const std::vector<std::vector<Rank>>& rank_of_;
  plan::Stages stages_;
  std::map<std::pair<int, int>, std::size_t> by_place_;  // micro-batch, segment: its forward
  std::vector<std::size_t> loads_;
  // by stage: actions of micro-batches that are not there for all replicas, and those of ranks
  // together; the first of the plan is at the end
  std::vector<std::vector<std::size_t>> unfinished_, together_;
  std::vector<int> replicas_left_;  // by action
};

/// By replica and piece: who computes it, of the ranks that `left` has for each stage. The
/// micro-batches of others go in turn to their peers.
std::vector<std::vector<Rank>> assign_pieces(const plan::StepPlan& plan,
                                             const std::vector<std::vector<Rank>>& left,
                                             const std::vector<StagePiece>& pieces) {
  const int replicas = num_replicas(plan);
  std::vector<std::vector<Rank>> out(at(replicas), std::vector<Rank>(pieces.size()));
  std::vector<std::vector<Rank>> peers(left.size());  // by stage: of micro-batches of lost ranks
  for (std::size_t s = 0; s < left.size(); ++s) {
    const std::size_t lost = at(replicas) - left[s].size();
    for (std::size_t i = 0; i < lost * at(plan.micro_batches); ++i) {
      peers[s].push_back(left[s][i % left[s].size()]);
    }
  }
  for (int d = 0; d < replicas; ++d) {
    for (std::size_t s = 0; s < left.size(); ++s) {
      const Rank own = rank_of(plan, d, static_cast<int>(s));
      const bool is_left = std::ranges::count(left[s], own) > 0;
      const auto first = peers[s].end() - (is_left ? 0 : plan.micro_batches);
      for (std::size_t p = 0; p < pieces.size(); ++p) {
        if (pieces[p].stage != static_cast<int>(s)) continue;
        out[at(d)][p] = is_left ? own : *(first + plan.actions[pieces[p].action].micro_batch);
      }
      peers[s].erase(first, peers[s].end());
    }
  }
  return out;
}

}  // namespace

Result<AssignedPlan> reroute(const plan::StepPlan& plan, std::vector<Rank> lost, int more_kept,
                             const std::vector<Rank>& idle) {
  STORMO_RETURN_IF_ERROR(check_peers(plan));
  STORMO_ASSIGN_OR_RETURN(const auto left, ranks_left(plan, lost));
  std::vector<Rank> without_work = lost;
  without_work.insert(without_work.end(), idle.begin(), idle.end());
  STORMO_ASSIGN_OR_RETURN(const auto computing, ranks_left(plan, without_work));
  const std::int64_t all = std::int64_t{num_replicas(plan)} * std::ssize(plan.actions);
  if (all > plan::kMaxActions) {
    return invalid_argument(
        "without lost ranks a plan says what each replica does: " + std::to_string(all) +
        " actions, of at most " + std::to_string(plan::kMaxActions) +
        "; use fewer replicas or micro-batches");
  }
  if (without_work.empty()) return assign(plan);
  std::ranges::sort(lost);
  const std::vector<StagePiece> pieces = pieces_of(plan);
  const KeptSegments kept = kept_segments(
      plan, pieces, std::clamp(more_kept, 0, num_replicas(plan) * plan.micro_batches));
  const std::vector<std::vector<Rank>> rank_of = assign_pieces(plan, computing, pieces);
  ReroutedOrder best;
  for (const Preference preference : kPreferences) {
    ReroutedOrder order = order_tasks(pieces, plan.mesh.size(), kept, rank_of, preference);
    if (best.tasks.empty() || order.seconds < best.seconds) best = std::move(order);
  }
  AssignedPlan out{.plan = plan, .lost = std::move(lost)};
  Writer(out, left, pieces, rank_of).write(best.tasks);
  return out;
}

}  // namespace stormo::parallel
