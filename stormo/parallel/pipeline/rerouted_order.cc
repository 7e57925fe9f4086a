#include <stormo/parallel/pipeline/rerouted_order.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include <stormo/base/check.h>
#include <stormo/base/index.h>
#include <stormo/plan/project.h>

namespace stormo::parallel {
namespace {

using plan::Action;
using plan::Value;

/// By segment, in some unit: operations, or elements of parameters where these are unknown.
std::vector<double> forward_times(const plan::ModelShape& model) {
  std::vector<double> operations, elements;
  for (const plan::SegmentShape& s : model.segments) {
    operations.push_back(static_cast<double>(s.flops_per_sample));
    elements.push_back(static_cast<double>(num_elements(s)) + 1);
  }
  return std::ranges::count(operations, 0) == 0 ? operations : elements;
}

/// Gathers the pieces of a plan from its actions.
class Pieces {
 public:
  explicit Pieces(const plan::StepPlan& plan)
      : plan_(plan), stages_(plan.model), times_(forward_times(plan.model)) {
    std::vector<int> chunks(at(num_stages(plan.mesh)));
    for (std::size_t s = 0; s < plan.model.segments.size(); ++s) {
      const int stage = plan.model.segments[s].stage;
      const bool goes_on = s > 0 && plan.model.segments[s - 1].stage == stage;
      chunk_of_.push_back(goes_on ? chunk_of_.back() : chunks[at(stage)]++);
    }
  }

  std::vector<StagePiece> gather() {
    for (std::size_t i = 0; i < plan_.actions.size(); ++i) {
      const Action& a = plan_.actions[i];
      const plan::ActionRow& row = row_of(a.kind);
      if (!row.micro_batch) continue;
      if (row.moves()) {
        const auto& made = makes(a, Value::kOutput) ? forward_ : backward_;
        out_[made.at({a.micro_batch, ends_of(a).from})].after.push_back(i);
      } else if (row.makes.has(Value::kLoss)) {
        const int last = static_cast<int>(plan_.model.segments.size()) - 1;
        out_[forward_.at({a.micro_batch, last})].after.push_back(i);
      } else if (row.recomputes()) {
        recomputes_[{a.micro_batch, a.range.first}].push_back(i);
      } else {
        add(i, a);
      }
    }
    for (std::size_t p = 0; p < out_.size(); ++p) {
      for (const std::size_t needed : out_[p].needs) out_[needed].needed_by.push_back(p);
    }
    for (auto p = out_.rbegin(); p != out_.rend(); ++p) {
      for (const std::size_t next : p->needed_by) p->path = std::max(p->path, out_[next].path);
      p->path += p->seconds;
    }
    return std::move(out_);
  }

 private:
  using Place = std::pair<int, int>;  // micro-batch, segment

  void add(std::size_t number, const Action& a) {
    const plan::ActionRow& row = row_of(a.kind);
    const auto [first, last] = a.range;
    StagePiece piece{
        .action = number, .stage = stages_.of_segment(first), .chunk = chunk_of_[at(first)]};
    const double forward = std::accumulate(times_.begin() + first, times_.begin() + last + 1, 0.0);
    const auto need = [&](const std::map<Place, std::size_t>& made, int segment) {
      const auto found = made.find({a.micro_batch, segment});
      if (found == made.end() || std::ranges::count(piece.needs, found->second) > 0) return;
      piece.needs.push_back(found->second);
    };
    if (row.runs_forward()) {
      piece.seconds = forward;
      piece.takes = a.range.size();
      for (std::size_t i = at(last) + 1; i < chunk_of_.size(); ++i) {
        const int stage = stages_.of_segment(static_cast<int>(i));
        piece.behind += stage == piece.stage && chunk_of_[i] == piece.chunk ? 1 : 0;
      }
      need(forward_, first - 1);
      for (int s = first; s <= last; ++s) forward_[{a.micro_batch, s}] = out_.size();
    } else {
      piece.seconds = forward * ((row.passes_gradient() ? 1 : 0) + (row.adds_gradients ? 1 : 0));
      piece.only_weights = !row.passes_gradient();
      piece.frees = row.adds_gradients ? a.range.size() : 0;
      for (int s = first; s <= last; ++s) {
        need(row.passes_gradient() ? forward_ : backward_, s);
      }
      if (row.passes_gradient()) {
        need(backward_, last + 1);
        take_recomputes(a, forward, piece);
        for (int s = first; s <= last; ++s) backward_[{a.micro_batch, s}] = out_.size();
      }
    }
    out_.push_back(std::move(piece));
  }

  void take_recomputes(const Action& backward, double forward, StagePiece& piece) {
    for (int s = backward.range.first; s <= backward.range.last; ++s) {
      const auto found = recomputes_.find({backward.micro_batch, s});
      if (found == recomputes_.end()) continue;
      piece.before.insert(piece.before.end(), found->second.begin(), found->second.end());
      if (s == backward.range.first) piece.seconds += forward;
    }
  }

  const plan::StepPlan& plan_;
  plan::Stages stages_;
  std::vector<double> times_;
  std::vector<int> chunk_of_;                        // by segment
  std::map<Place, std::size_t> forward_, backward_;  // pieces
  std::map<Place, std::vector<std::size_t>> recomputes_;
  std::vector<StagePiece> out_;
};

/// Ranks that start what is ready, one after the other in time.
class ListSchedule {
 public:
  ListSchedule(const std::vector<StagePiece>& pieces, int ranks, const KeptSegments& kept,
               const std::vector<std::vector<Rank>>& rank_of, Preference preference)
      : pieces_(pieces),
        kept_(kept),
        rank_of_(rank_of),
        preference_(preference),
        ranks_(at(ranks)) {
    for (std::size_t d = 0; d < rank_of.size(); ++d) {
      tasks_.emplace_back(pieces.size());
      for (std::size_t p = 0; p < pieces.size(); ++p) {
        tasks_[d][p].inputs_left = pieces[p].needs.size();
        if (pieces[p].needs.empty()) rank(d, p).can_start.push_back({p, static_cast<int>(d)});
      }
    }
    for (RankState& r : ranks_) choose(r);
  }

  ReroutedOrder run() {
    const std::size_t all = pieces_.size() * rank_of_.size();
    while (out_.tasks.size() < all) {
      const auto next = std::ranges::min_element(ranks_, {}, &RankState::next_start);
      STORMO_CHECK(next->next.has_value(), "rerouted order: ranks wait for each other");
      start(*next);
    }
    return std::move(out_);
  }

 private:
  using Task = ReroutedOrder::Task;
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  struct TaskState {
    std::size_t inputs_left = 0;
    double ready = 0;
  };
  struct RankState {
    double free = 0;
    std::vector<int> kept = {};   // segments whose activations it keeps, up to each chunk
    std::vector<Task> can_start;  // of which all inputs are made or being made
    std::optional<std::size_t> next;
    double next_start = kNever;
  };

  RankState& rank(std::size_t replica, std::size_t piece) {
    return ranks_[at(rank_of_[replica][piece])];
  }

  /// The smaller, the sooner.
  std::tuple<double, std::size_t, int> key(const Task& t) const {
    const StagePiece& piece = pieces_[t.piece];
    double first = 0;
    if (preference_ == Preference::kLongestPath) first = -piece.path;
    if (preference_ == Preference::kBackward) {
      first = piece.only_weights ? 2 : piece.takes > 0 ? 1 : 0;
    }
    return {first, piece.action, t.replica};
  }

  bool has_room(const RankState& r, const StagePiece& piece) const {
    const int wanted = piece.takes + piece.behind;
    const std::size_t s = at(piece.stage), c = at(piece.chunk);
    if (r.kept.empty()) return true;
    return r.kept.back() + wanted <= kept_.in_all[s][c] && r.kept[c] + wanted <= kept_.up_to[s][c];
  }

  void choose(RankState& r) const {
    r.next.reset();
    r.next_start = kNever;
    for (std::size_t i = 0; i < r.can_start.size(); ++i) {
      const Task& t = r.can_start[i];
      const StagePiece& piece = pieces_[t.piece];
      if (piece.takes > 0 && !has_room(r, piece)) continue;
      const double begin = std::max(r.free, tasks_[at(t.replica)][t.piece].ready);
      if (begin > r.next_start) continue;
      if (begin == r.next_start && key(r.can_start[*r.next]) < key(t)) continue;
      r.next = i;
      r.next_start = begin;
    }
  }

  void start(RankState& r) {
    const Task t = r.can_start[*r.next];
    const StagePiece& piece = pieces_[t.piece];
    r.can_start[*r.next] = r.can_start.back();
    r.can_start.pop_back();
    r.free = r.next_start + piece.seconds;
    r.kept.resize(kept_.up_to[at(piece.stage)].size());
    for (std::size_t c = at(piece.chunk); c < r.kept.size(); ++c) {
      r.kept[c] += piece.takes - piece.frees;
    }
    out_.tasks.push_back(t);
    out_.seconds = std::max(out_.seconds, r.free);
    const double done = r.free;
    for (const std::size_t p : piece.needed_by) {
      TaskState& other = tasks_[at(t.replica)][p];
      other.ready = std::max(other.ready, done);
      if (--other.inputs_left > 0) continue;
      RankState& its = rank(at(t.replica), p);
      its.can_start.push_back({p, t.replica});
      if (&its != &r) choose(its);
    }
    choose(r);
  }

  const std::vector<StagePiece>& pieces_;
  const KeptSegments& kept_;
  const std::vector<std::vector<Rank>>& rank_of_;
  Preference preference_;
  std::vector<std::vector<TaskState>> tasks_;  // by replica and piece
  std::vector<RankState> ranks_;
  ReroutedOrder out_;
};

}  // namespace

std::vector<StagePiece> pieces_of(const plan::StepPlan& plan) { return Pieces(plan).gather(); }

KeptSegments kept_segments(const plan::StepPlan& plan, const std::vector<StagePiece>& pieces,
                           int more) {
  const auto stages = at(num_stages(plan.mesh));
  std::vector<std::vector<int>> size(stages);  // by stage and chunk
  int before = -1;
  for (const plan::SegmentShape& s : plan.model.segments) {
    if (s.stage != before) size[at(s.stage)].push_back(0);
    before = s.stage;
    ++size[at(s.stage)].back();
  }
  std::vector<std::vector<int>> now;  // up to each chunk
  for (const std::vector<int>& of_stage : size) now.emplace_back(of_stage.size());
  std::vector<std::vector<int>> most = now;
  for (const StagePiece& p : pieces) {
    for (std::size_t c = at(p.chunk); c < now[at(p.stage)].size(); ++c) {
      int& kept = now[at(p.stage)][c];
      kept += p.takes - p.frees;
      most[at(p.stage)][c] = std::max(most[at(p.stage)][c], kept);
    }
  }
  const auto sum = [](const std::vector<int>& of) {
    return std::accumulate(of.begin(), of.end(), 0);
  };
  KeptSegments out{.in_all = most, .up_to = most};
  for (std::size_t s = 0; s < stages; ++s) {
    for (std::size_t c = size[s].size(); c-- > 0;) {
      int& limit = out.up_to[s][c];
      for (std::size_t other = 0; other < stages; ++other) {
        if (c >= size[other].size()) continue;
        limit = std::max(limit, most[other][c] * sum(size[s]) / sum(size[other]));
      }
      const bool is_last = c + 1 == size[s].size();
      if (!is_last) limit = std::min(limit, out.up_to[s][c + 1] - size[s][c + 1]);
      out.in_all[s][c] = is_last ? limit : out.in_all[s][c + 1] - size[s][c + 1];
    }
    int up_to = 0;  // segments of one micro-batch
    for (std::size_t c = 0; c < size[s].size(); ++c) {
      up_to += size[s][c];
      out.up_to[s][c] += more * up_to;
      out.in_all[s][c] += more * sum(size[s]);
    }
  }
  return out;
}

ReroutedOrder order_tasks(const std::vector<StagePiece>& pieces, int ranks,
                          const KeptSegments& kept, const std::vector<std::vector<Rank>>& rank_of,
                          Preference preference) {
  return ListSchedule(pieces, ranks, kept, rank_of, preference).run();
}

}  // namespace stormo::parallel
