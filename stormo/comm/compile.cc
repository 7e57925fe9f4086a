#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <stormo/comm/program.h>

namespace stormo::comm {
namespace {

using plan::ChunkId;
using plan::Round;
using plan::Schedule;
using plan::Transfer;

/// Keeps the state of a compilation: which copies of which chunk are still a rank's own input.
class Compiler {
 public:
  Compiler(const Schedule& schedule, Rank me, const HostMap& hosts)
      : schedule_(schedule), me_(me), hosts_(hosts) {}

  Program run() {
    Program program;
    program.chunks = schedule_.chunks;
    steps_ = &program.steps;
    for (std::size_t i = 0; i < schedule_.rounds.size(); ++i) {
      if (fusible(i)) {
        fused_rounds(schedule_.rounds[i], schedule_.rounds[i + 1]);
        ++i;
      } else {
        plain_round(schedule_.rounds[i]);
      }
    }
    return program;
  }

 private:
  int my_host() const { return hosts_.host[index(me_)]; }
  static std::size_t index(Rank r) { return static_cast<std::size_t>(r); }
  int local(Rank r) const { return hosts_.local[index(r)]; }
  bool here(Rank r) const { return hosts_.host[index(r)] == my_host(); }
  bool is_local(const Transfer& t) const { return here(t.from) && here(t.to); }
  bool is_raw(Rank r, ChunkId c) const { return !combined_.contains({r, c}); }

  /// Whether ranks of this host meet must not depend on what this rank did: all decide alike.
  void meet() {
    if (!met_) steps_->push_back({.kind = Step::Kind::kSync});
    met_ = true;
  }

  /// Rounds i and i+1 of this host are "everybody reduces a chunk of its own", then "everybody
  /// copies these chunks", with no wire and no other reader of those chunks: one pass does both.
  bool fusible(std::size_t i) const {
    if (i + 1 >= schedule_.rounds.size()) return false;
    std::map<ChunkId, Rank> reducer;
    bool any = false;
    for (const Transfer& t : schedule_.rounds[i]) {
      if (!here(t.from) && !here(t.to)) continue;
      if (!is_local(t) || t.how != plan::Combine::kReduce) return false;
      const auto [it, fresh] = reducer.emplace(t.chunk, t.to);
      if (!fresh && it->second != t.to) return false;
      any = true;
    }
    for (const Transfer& t : schedule_.rounds[i + 1]) {
      if (!here(t.from) && !here(t.to)) continue;
      if (!is_local(t) || t.how != plan::Combine::kCopy) return false;
      const auto it = reducer.find(t.chunk);
      if (it == reducer.end() || it->second != t.from) return false;
    }
    return any;
  }

  void fused_rounds(const Round& reduces, const Round& copies) {
    meet();
    for (Step step : reductions_into_me(reduces)) {
      for (const Transfer& t : copies) {
        if (t.from == me_ && t.chunk == step.chunk) step.destinations.push_back(local(t.to));
      }
      std::sort(step.destinations.begin(), step.destinations.end());
      steps_->push_back(std::move(step));
    }
    met_ = false;
    meet();
    for (const Round* round : {&reduces, &copies}) {
      for (const Transfer& t : *round) {
        if (is_local(t)) combined_.insert({t.to, t.chunk});
      }
    }
  }

  void plain_round(const Round& round) {
    const bool local_moves =
        std::any_of(round.begin(), round.end(), [&](const Transfer& t) { return is_local(t); });
    if (local_moves) meet();
    scale_for_wire(round);
    for (Step& step : reductions_into_me(round)) steps_->push_back(std::move(step));
    for (const Transfer& t : round) {
      if (t.to == me_ && is_local(t) && t.how == plan::Combine::kCopy) {
        steps_->push_back(
            {.kind = Step::Kind::kPull, .chunk = t.chunk, .sources = {local(t.from)}});
      }
    }
    exchange(round);
    for (const Transfer& t : round) {
      if (here(t.to)) combined_.insert({t.to, t.chunk});
      if (here(t.from) || here(t.to)) met_ = false;
    }
    if (local_moves) meet();
  }

  std::vector<Step> reductions_into_me(const Round& round) const {
    std::map<ChunkId, std::vector<Rank>> sources;
    for (const Transfer& t : round) {
      if (t.to == me_ && is_local(t) && t.how == plan::Combine::kReduce) {
        sources[t.chunk].push_back(t.from);
      }
    }
    std::vector<Step> steps;
    for (auto& [chunk, ranks] : sources) {
      ranks.push_back(me_);
      std::sort(ranks.begin(), ranks.end());
      Step step{.kind = Step::Kind::kReduce, .chunk = chunk, .destinations = {local(me_)}};
      for (const Rank r : ranks) {
        step.sources.push_back(local(r));
        step.raw.push_back(is_raw(r, chunk));
      }
      steps.push_back(std::move(step));
    }
    return steps;
  }

  /// What goes to the wire, or is combined with what comes from it, must already be scaled.
  void scale_for_wire(const Round& round) {
    if (!plan::reduces(schedule_.goal.kind)) return;
    const auto scale = [&](Rank r, ChunkId chunk) {
      if (!here(r) || !combined_.insert({r, chunk}).second || r != me_) return;
      steps_->push_back({.kind = Step::Kind::kScale, .chunk = chunk});
    };
    for (const Transfer& t : round) {
      if (is_local(t)) continue;
      scale(t.from, t.chunk);
      if (t.how == plan::Combine::kReduce) scale(t.to, t.chunk);
    }
  }

  void exchange(const Round& round) {
    Step step{.kind = Step::Kind::kExchange};
    for (const Transfer& t : round) {
      if (is_local(t)) continue;
      if (t.from == me_) step.sends.push_back({t.to, t.chunk, plan::Combine::kCopy});
      if (t.to == me_) step.receives.push_back({t.from, t.chunk, t.how});
    }
    if (!step.sends.empty() || !step.receives.empty()) steps_->push_back(std::move(step));
  }

  const Schedule& schedule_;
  const Rank me_;
  const HostMap& hosts_;
  std::vector<Step>* steps_ = nullptr;
  bool met_ = true;  // nobody of this host has done anything since the last meeting
  std::set<std::pair<Rank, ChunkId>> combined_;
};

}  // namespace

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

std::vector<Rank> HostMap::ranks_of(int wanted) const {
  std::vector<Rank> ranks;
  for (std::size_t r = 0; r < host.size(); ++r) {
    if (host[r] == wanted) ranks.push_back(static_cast<Rank>(r));
  }
  return ranks;
}

Program compile(const plan::Schedule& schedule, Rank me, const HostMap& hosts) {
  return Compiler(schedule, me, hosts).run();
}

}  // namespace stormo::comm
