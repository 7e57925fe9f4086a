#include <stormo/parallel/sharding/sharding_order.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

namespace stormo::parallel {

using plan::Action;
using plan::ActionKind;

ShardingOrder::ShardingOrder(const Sharding& how, const plan::StepPlan& replicas, Emit emit)
    : how_(how), emit_(std::move(emit)) {
  std::vector<int> owner;  // by parameter
  for (const std::vector<int>& read : parameters_read(replicas.model)) {
    const int s = size();
    const auto& own = replicas.model.segments[segments_.size()].parameters;
    owner.resize(owner.size() + own.size(), s);
    Segment segment;
    for (const int p : read) segment.uses.push_back(owner[static_cast<std::size_t>(p)]);
    const auto repeated = std::ranges::unique(segment.uses);
    segment.uses.erase(repeated.begin(), repeated.end());
    segment.own = parameters_of(replicas.model, {s, s});
    segment.trains = std::ranges::any_of(own, &plan::ParameterShape::trainable);
    // what is never updated is not cut, unless it is dropped after use
    segment.whole = how_.stage < 3 && !segment.trains;
    segments_.push_back(std::move(segment));
    for (const int used : segments_.back().uses) at(used).last_user = s;
  }
  std::ranges::copy_if(replicas.actions, std::back_inserter(averages_), [](const Action& a) {
    return places(a, plan::Value::kGradients, plan::Placement::kReplicate);
  });
}

bool ShardingOrder::trains(int segment) const {
  return std::ranges::any_of(at(segment).uses, [this](int used) { return at(used).trains; });
}

void ShardingOrder::emit(ActionKind kind, int segment, bool asynchronous) {
  Action a{.kind = kind, .range = at(segment).own, .asynchronous = asynchronous};
  if (kind != ActionKind::kReleaseGradients) a.axes = {kShardAxis};
  emit_(a);
}

void ShardingOrder::gather(int s) {
  if (at(s).whole || at(s).own.size() == 0) return;
  at(s).whole = true;
  emit(ActionKind::kAllGather, s, asynchronous());
}

void ShardingOrder::release(int s) {
  if (how_.stage < 3 || !at(s).whole) return;
  at(s).whole = false;
  emit(ActionKind::kReshard, s, false);
}

void ShardingOrder::set_whole(bool whole, bool frozen) {
  for (Segment& s : segments_) {
    if (frozen || s.trains) s.whole = whole;
  }
}

void ShardingOrder::before_forward(int segment) {
  for (const int used : at(segment).uses) gather(used);
  for (int next = segment + 1; next <= segment + how_.prefetch && next < size(); ++next) {
    gather(next);
  }
}

ShardingOrder::Call ShardingOrder::after_forward(int segment, bool recorded) {
  Call call;
  if (recorded) {
    std::erase_if(calls_, [](const auto& each) { return each.second.call.expired(); });
    call = std::make_shared<const Forward>(next_call_++, segment);
    calls_[call->number] = {segment, call};
  }
  if (recorded && !how_.reshard_after_forward) return call;
  for (const int used : at(segment).uses) {
    if (at(used).last_user <= segment) release(used);
  }
  return call;
}

void ShardingOrder::begin_pass(bool reduces) {
  reducing_.clear();  // of a pass that ended early
  consumed_.clear();
  for (Segment& s : segments_) s.done = false;
  reduces_ = reduces;
  if (reduces_) emit_({.kind = ActionKind::kSumWeights});
}

void ShardingOrder::before_backward(const Call& call) {
  complete_after(call->number);
  consumed_.push_back(call->number);
  for (const int used : at(call->segment).uses) gather(used);
  auto next = calls_.lower_bound(call->number);
  for (int i = 0; i < how_.prefetch && next != calls_.begin(); ++i) {
    --next;
    for (const int used : at(next->second.segment).uses) gather(used);
  }
}

/// By segment: the number of the first forward that reads its parameters; -1 without one.
std::vector<std::int64_t> ShardingOrder::first_uses() const {
  std::vector<std::int64_t> first(segments_.size(), -1);
  for (auto each = calls_.rbegin(); each != calls_.rend(); ++each) {
    for (const int used : at(each->second.segment).uses) {
      first[static_cast<std::size_t>(used)] = each->first;
    }
  }
  return first;
}

/// Completes the segments that no forward up to this one reads, the latest first. Those that no
/// recorded forward reads come when the pass ends.
void ShardingOrder::complete_after(std::int64_t number) {
  const std::vector<std::int64_t> first = first_uses();
  std::vector<std::pair<std::int64_t, int>> complete_now;
  for (int s = 0; s < size(); ++s) {
    const std::int64_t use = first[static_cast<std::size_t>(s)];
    if (use > number && !at(s).done) complete_now.emplace_back(use, s);
  }
  std::ranges::sort(complete_now, std::greater());
  for (const auto& [use, s] : complete_now) complete(s);
}

void ShardingOrder::complete(int s) {
  at(s).done = true;
  if (reduces_ && at(s).trains) {
    emit(ActionKind::kReduceScatter, s, asynchronous());
    at(s).held = how_.stage == 1;
    reducing_.push_back(s);
    if (reducing_.size() > static_cast<std::size_t>(how_.prefetch)) drain();
  }
  release(s);
}

/// What follows the oldest reduction: its terms go, and its outcome is a term of the replicas'.
void ShardingOrder::drain() {
  const int s = reducing_.front();
  reducing_.pop_front();
  if (how_.stage > 1) emit(ActionKind::kReleaseGradients, s, false);
  for (const Action& average : averages_) {
    const plan::Range own = at(s).own;
    if (average.range.first > own.first || average.range.last < own.last) continue;
    emit_(
        {.kind = ActionKind::kAllReduce, .range = own, .axes = average.axes, .asynchronous = true});
  }
}

void ShardingOrder::end_pass() {
  complete_after(-2);  // all
  while (!reducing_.empty()) drain();
  for (int s = 0; s < size(); ++s) release(s);
  for (const std::int64_t number : consumed_) calls_.erase(number);
  if (!reduces_) return;
  emit_({.kind = ActionKind::kFindUnused});
  set_whole(false, /*frozen=*/false);  // an update follows
}

// Stage 1 has its part of each gradient among the terms, until it has been used.
void ShardingOrder::after_update() {
  for (int s = 0; s < size(); ++s) {
    if (std::exchange(at(s).held, false)) emit(ActionKind::kReleaseGradients, s, false);
  }
}

}  // namespace stormo::parallel
