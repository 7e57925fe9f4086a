#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <utility>

#include <stormo/comm/program/program.h>

namespace stormo::comm {
namespace {

using plan::ChunkId;
using plan::GoalKind;
using plan::Round;
using plan::Schedule;
using plan::Transfer;

/// Keeps the state of a compilation: which copies of which chunk are still a rank's own input.
class Compiler {
 public:
  Compiler(const Schedule& schedule, Rank me, const HostMap& hosts)
      : schedule_(schedule), me_(me), hosts_(hosts) {}

  Program run() {
    program_.chunks = schedule_.chunks;
    for (std::size_t i = 0; i < schedule_.rounds.size(); ++i) {
      if (fusible(i)) {
        fused_rounds(i);
        ++i;
      } else {
        plain_round(schedule_.rounds[i]);
      }
    }
    keep_own_input();
    find_unshared();
    return std::move(program_);
  }

 private:
  int my_host() const { return hosts_.host[index(me_)]; }
  static std::size_t index(Rank r) { return static_cast<std::size_t>(r); }
  int local(Rank r) const { return hosts_.local[index(r)]; }
  bool here(Rank r) const { return hosts_.host[index(r)] == my_host(); }
  bool is_local(const Transfer& t) const { return here(t.from) && here(t.to); }
  bool is_raw(Rank r, ChunkId c) const { return !written_.contains({r, c}); }

  /// Where a chunk is read now; notes which of my memories others see.
  Place source(Rank r, ChunkId c) {
    return noted(r, c, area_of(schedule_, r, c, is_raw(r, c)), me_);
  }
  Place target(Rank r, ChunkId c) { return noted(r, c, area_of(schedule_, r, c, false), me_); }
  Place noted(Rank owner, ChunkId c, Area area, Rank user) {
    if (owner == me_) {
      if (area == Area::kOut) (user == me_ ? used_here_ : used_by_peers_).insert(c);
      program_.shares_in |= area == Area::kIn && user != me_;
      program_.shares_out |= area == Area::kOut && user != me_;
      program_.uses_scratch |= area == Area::kScratch;
    }
    return {local(owner), area};
  }
  /// Who copies a chunk inside a host: the rank that gets it, but for a gather, where all chunks go
  /// to one rank. There each rank that has one writes it, so that they copy side by side.
  bool sender_copies() const { return schedule_.goal.kind == GoalKind::kGather; }
  /// Local peers that read or write my memory do it in their programs; I must know of it. They
  /// never read kStaging.
  void note_peers(const Transfer& t, Area read, bool writes) {
    if (!is_local(t)) return;
    if (t.from == me_) noted(me_, t.chunk, read, t.to);
    if (writes && t.to == me_) {
      noted(me_, t.chunk, area_of(schedule_, me_, t.chunk, false), t.from);
    }
  }

  /// Whether ranks of this host wait for each other must not depend on what this rank did: all
  /// decide alike.
  void barrier() {
    if (!synchronized_) program_.steps.push_back({.kind = Instruction::Kind::kSync});
    synchronized_ = true;
  }

  /// Rounds i and i+1 of this host are "everybody reduces a chunk of its own", then "others copy
  /// these chunks", with no transport to other hosts and no other reader of those chunks: one pass
  /// does both.
  bool fusible(std::size_t i) const {
    if (i + 1 >= schedule_.rounds.size()) return false;
    std::map<ChunkId, Rank> reducer;
    bool any = false;
    for (const Transfer& t : schedule_.rounds[i]) {
      if (!here(t.from) && !here(t.to)) continue;
      if (!is_local(t) || t.how != plan::ReceiveOp::kReduce) return false;
      const auto [it, fresh] = reducer.emplace(t.chunk, t.to);
      if (!fresh && it->second != t.to) return false;
      any = true;
    }
    for (const Transfer& t : schedule_.rounds[i + 1]) {
      if (!here(t.from) && !here(t.to)) continue;
      if (!is_local(t) || t.how != plan::ReceiveOp::kCopy) return false;
      const auto it = reducer.find(t.chunk);
      if (it == reducer.end() || it->second != t.from) return false;
    }
    return any;
  }

  /// Whether I, or the goal, need what I hold of the chunk after round `done`.
  bool needed_after(std::size_t done, ChunkId chunk) const {
    const auto goal = plan::only_target(schedule_, chunk);
    if (!goal || *goal == me_) return true;
    const std::span<const Round> rest = std::span(schedule_.rounds).subspan(done + 1);
    return std::any_of(rest.begin(), rest.end(), [&](const Round& round) {
      return std::any_of(round.begin(), round.end(), [&](const Transfer& t) {
        const bool reduced_into = t.to == me_ && t.how == plan::ReceiveOp::kReduce;
        return t.chunk == chunk && (t.from == me_ || reduced_into);
      });
    });
  }

  void fused_rounds(std::size_t i) {
    const Round& reduces = schedule_.rounds[i];
    const Round& copies = schedule_.rounds[i + 1];
    barrier();
    std::vector<Instruction> steps = reductions_into_me(reduces);
    for (const Transfer& t : reduces)
      note_peers(t, area_of(schedule_, t.from, t.chunk, is_raw(t.from, t.chunk)), false);
    for (const Transfer& t : copies) note_peers(t, Area::kStaging, true);
    for (const Round* round : {&reduces, &copies}) written_by(*round);
    for (Instruction& step : steps) {
      if (!needed_after(i + 1, step.chunk)) step.destinations.clear();
      for (const Transfer& t : copies) {
        if (t.from == me_ && t.chunk == step.chunk) {
          step.destinations.push_back(target(t.to, t.chunk));
        }
      }
      std::sort(step.destinations.begin(), step.destinations.end(),
                [](const Place& a, const Place& b) { return a.local < b.local; });
      program_.steps.push_back(std::move(step));
    }
    synchronized_ = false;
    barrier();
  }

  void plain_round(const Round& round) {
    const bool local_moves =
        std::any_of(round.begin(), round.end(), [&](const Transfer& t) { return is_local(t); });
    if (local_moves) barrier();
    if (scale_for_wire(round) && local_moves) {  // peers read what was scaled
      synchronized_ = false;
      barrier();
    }
    exchange(round);
    for (const Transfer& t : round) {
      const Area read = area_of(schedule_, t.from, t.chunk, is_raw(t.from, t.chunk));
      note_peers(t, sender_copies() ? Area::kStaging : read, sender_copies());
    }
    std::vector<Instruction> steps = reductions_into_me(round);
    const bool staged = local_exchange(round);
    std::vector<Instruction> unstage;
    for (Instruction& step : steps) {
      if (staged) {
        const Place stage{local(me_), Area::kStaging};
        unstage.push_back({.kind = Instruction::Kind::kCopy,
                           .chunk = step.chunk,
                           .sources = {{.place = stage}},
                           .destinations = step.destinations});
        step.destinations = {stage};
      }
      program_.steps.push_back(std::move(step));
    }
    for (const Transfer& t : round) {
      const Rank copies = sender_copies() ? t.from : t.to;
      if (copies != me_ || !is_local(t) || t.how != plan::ReceiveOp::kCopy) continue;
      program_.steps.push_back({.kind = Instruction::Kind::kCopy,
                                .chunk = t.chunk,
                                .sources = {{.place = source(t.from, t.chunk)}},
                                .destinations = {target(t.to, t.chunk)}});
    }
    if (staged) {
      synchronized_ = false;
      barrier();
      for (Instruction& step : unstage) program_.steps.push_back(std::move(step));
    }
    written_by(round);
    for (const Transfer& t : round) {
      if (here(t.from) || here(t.to)) synchronized_ = false;
    }
    if (local_moves) barrier();
  }

  void written_by(const Round& round) {
    for (const Transfer& t : round) {
      if (here(t.to)) written_.insert({t.to, t.chunk});
    }
  }

  /// Some rank of this host reduces into a chunk that another one reads in the same round.
  bool local_exchange(const Round& round) const {
    std::set<std::pair<Rank, ChunkId>> read;
    for (const Transfer& t : round) {
      if (is_local(t)) read.insert({t.from, t.chunk});
    }
    return std::any_of(round.begin(), round.end(), [&](const Transfer& t) {
      return here(t.to) && t.how == plan::ReceiveOp::kReduce && read.contains({t.to, t.chunk});
    });
  }

  /// One step per chunk that I reduce in this round, operands in the order of their ranks.
  std::vector<Instruction> reductions_into_me(const Round& round) {
    std::map<ChunkId, std::vector<std::pair<Rank, Source>>> operands;
    int received = 0;
    for (const Transfer& t : round) {
      if (t.to != me_) continue;
      const bool reduces = t.how == plan::ReceiveOp::kReduce;
      if (is_local(t) && reduces) {
        operands[t.chunk].push_back(
            {t.from, {.place = source(t.from, t.chunk), .raw = is_raw(t.from, t.chunk)}});
      } else if (!is_local(t)) {
        if (reduces) operands[t.chunk].push_back({t.from, {.received = received}});
        ++received;
      }
    }
    std::vector<Instruction> steps;
    for (auto& [chunk, terms] : operands) {
      terms.push_back({me_, {.place = source(me_, chunk), .raw = is_raw(me_, chunk)}});
      std::sort(terms.begin(), terms.end(),
                [](const auto& a, const auto& b) { return a.first < b.first; });
      Instruction step{
          .kind = Instruction::Kind::kReduce, .chunk = chunk, .destinations = {target(me_, chunk)}};
      for (const auto& [rank, term] : terms) step.sources.push_back(term);
      step.overlaps = overlaps(step, round);
      steps.push_back(std::move(step));
    }
    return steps;
  }

  bool overlaps(const Instruction& step, const Round& round) const {
    const auto come = std::count_if(step.sources.begin(), step.sources.end(),
                                    [](const Source& s) { return s.received >= 0; });
    const bool own = std::all_of(step.sources.begin(), step.sources.end(), [&](const Source& s) {
      return s.received >= 0 || s.place.local == local(me_);
    });
    const bool sent = std::any_of(round.begin(), round.end(), [&](const Transfer& t) {
      return t.from == me_ && t.chunk == step.chunk;
    });
    return come == 1 && own && !sent;
  }

  /// What goes to other hosts, or is combined with what comes from there, must already be scaled.
  /// Whether any rank of this host had to.
  bool scale_for_wire(const Round& round) {
    if (!plan::reduces(schedule_.goal.kind)) return false;
    bool any = false;
    const auto scale = [&](Rank r, ChunkId chunk) {
      if (!here(r) || !is_raw(r, chunk)) return;
      if (r == me_) {
        program_.steps.push_back({.kind = Instruction::Kind::kReduce,
                                  .chunk = chunk,
                                  .sources = {{.place = source(me_, chunk), .raw = true}},
                                  .destinations = {target(me_, chunk)}});
      }
      written_.insert({r, chunk});
      any = true;
    };
    for (const Transfer& t : round) {
      if (is_local(t)) continue;
      scale(t.from, t.chunk);
      if (t.how == plan::ReceiveOp::kReduce) scale(t.to, t.chunk);
    }
    return any;
  }

  void exchange(const Round& round) {
    Instruction step{.kind = Instruction::Kind::kExchange};
    for (const Transfer& t : round) {
      if (is_local(t)) continue;
      if (t.from == me_) {
        step.sends.push_back({t.to, t.chunk, source(me_, t.chunk).area, plan::ReceiveOp::kCopy});
      }
      if (t.to == me_) {
        step.receives.push_back({t.from, t.chunk, target(me_, t.chunk).area, t.how});
      }
    }
    if (!step.sends.empty() || !step.receives.empty()) program_.steps.push_back(std::move(step));
  }

  /// A chunk that is mine from the beginning and that nobody sent me: from `in` to `out`. A copy is
  /// before the last barrier, because others are at work until then. A term is scaled after it,
  /// because until then others read it as it was.
  void keep_own_input() {
    const bool scales = plan::reduces(schedule_.goal.kind);
    const bool ends_in_barrier =
        !program_.steps.empty() && program_.steps.back().kind == Instruction::Kind::kSync;
    if (ends_in_barrier && !scales) program_.steps.pop_back();
    for (ChunkId c = 0; c < schedule_.chunks; ++c) {
      const auto from = plan::only_source(schedule_, c);
      const auto to = plan::only_target(schedule_, c);
      if ((from && *from != me_) || (to && *to != me_) || !is_raw(me_, c)) continue;
      program_.steps.push_back(
          {.kind = scales ? Instruction::Kind::kReduce : Instruction::Kind::kCopy,
           .chunk = c,
           .sources = {{.place = source(me_, c), .raw = true}},
           .destinations = {target(me_, c)}});
    }
    if (ends_in_barrier && !scales) program_.steps.push_back({.kind = Instruction::Kind::kSync});
  }

  void find_unshared() {
    if (std::ranges::any_of(used_here_, [&](ChunkId c) { return used_by_peers_.contains(c); }))
      return;
    for (ChunkId c = 0; c < schedule_.chunks; ++c) {
      program_.unshared.push_back(!used_by_peers_.contains(c));
    }
  }

  const Schedule& schedule_;
  const Rank me_;
  const HostMap& hosts_;
  Program program_;
  std::set<ChunkId> used_here_, used_by_peers_;  // of this rank's kOut
  bool synchronized_ = true;  // nobody of this host has done anything since the last barrier
  std::set<std::pair<Rank, ChunkId>> written_;
};

}  // namespace

Area area_of(const Schedule& s, Rank r, ChunkId chunk, bool raw) {
  const bool root = plan::has_root(s.goal.kind) && s.goal.root == r;
  switch (s.goal.kind) {
    case GoalKind::kAllReduce:
    case GoalKind::kReduce:
    case GoalKind::kBroadcast:
    case GoalKind::kScan: return Area::kOut;
    case GoalKind::kReduceScatter:
      return !raw && plan::owner(s, chunk) == r ? Area::kOut : Area::kIn;
    case GoalKind::kAllGather: return raw && plan::owner(s, chunk) == r ? Area::kIn : Area::kOut;
    case GoalKind::kGather:
      if (raw && plan::owner(s, chunk) == r) return Area::kIn;
      return root ? Area::kOut : Area::kScratch;
    case GoalKind::kScatter:
      if (raw && root) return Area::kIn;
      return plan::owner(s, chunk) == r ? Area::kOut : Area::kScratch;
    case GoalKind::kAllToAll:
      if (raw && plan::sender(s, chunk) == r) return Area::kIn;
      return plan::addressee(s, chunk) == r ? Area::kOut : Area::kScratch;
  }
  return Area::kOut;
}

HostMap HostMap::of(const std::vector<int>& ranks_per_host) {
  HostMap map;
  for (std::size_t h = 0; h < ranks_per_host.size(); ++h) {
    for (int l = 0; l < ranks_per_host[h]; ++l) {
      map.host.push_back(static_cast<int>(h));
      map.local.push_back(l);
    }
  }
  return map;
}

Program compile(const Schedule& schedule, Rank me, const HostMap& hosts) {
  return Compiler(schedule, me, hosts).run();
}

Program compile_scan(int ranks, Rank me, bool exclusive) {
  Program program{.chunks = ranks, .shares_out = ranks > 1, .exclusive = exclusive};
  Instruction step{.kind = Instruction::Kind::kPrefix, .chunk = me};
  for (int r = 0; r < ranks; ++r) {
    step.sources.push_back({.place = {r, Area::kOut}});
    step.destinations.push_back({r, Area::kOut});
  }
  program.steps = {std::move(step), {.kind = Instruction::Kind::kSync}};
  program.unshared.assign(static_cast<std::size_t>(ranks), false);
  program.unshared[static_cast<std::size_t>(me)] = true;
  return program;
}

}  // namespace stormo::comm
