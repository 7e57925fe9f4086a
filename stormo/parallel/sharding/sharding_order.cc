#include <stormo/parallel/sharding/sharding_order.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace stormo::parallel {

ShardingOrder::ShardingOrder(const Sharding& how, const plan::StepPlan& replicas,
                             ShardActions::Emit emit)
    : how_(how), actions_(how, replicas, std::move(emit)) {
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
}

bool ShardingOrder::trains(int segment) const {
  return std::ranges::any_of(at(segment).uses, [this](int used) { return at(used).trains; });
}

void ShardingOrder::gather(int s) {
  if (at(s).whole || at(s).own.size() == 0) return;
  at(s).whole = true;
  actions_.gather(at(s).own);
}

void ShardingOrder::release(int s) {
  if (how_.stage < 3 || !at(s).whole) return;
  at(s).whole = false;
  actions_.reshard(at(s).own);
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
  actions_.forget_reductions();
  consumed_.clear();  // of a pass that ended early
  for (Segment& s : segments_) s.done = false;
  reduces_ = reduces;
  if (reduces_) actions_.sum_weights();
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
  if (reduces_ && at(s).trains) actions_.reduce(at(s).own);
  release(s);
}

void ShardingOrder::end_pass() {
  complete_after(-2);  // all
  actions_.drain();
  for (int s = 0; s < size(); ++s) release(s);
  for (const std::int64_t number : consumed_) calls_.erase(number);
  if (!reduces_) return;
  actions_.find_unused();
  set_whole(false, /*frozen=*/false);  // an update follows
}

}  // namespace stormo::parallel
