#include <stormo/protocol/elastic/next_record.h>

#include <algorithm>
#include <numeric>

namespace stormo::protocol {
namespace {

// Those outside talk to members only.
bool hear_each_other(const Survivor& a, const Survivor& b) {
  if (!a.is_member && !b.is_member) return true;
  return contains(a.heard, b.entry.id) && contains(b.heard, a.entry.id);
}

/// The hash that most have that have committed `step`.
std::uint64_t usual_hash(std::span<const Survivor> survivors, std::uint64_t step) {
  std::uint64_t usual = 0;
  std::ptrdiff_t most = 0;
  for (const Survivor& s : survivors) {
    if (!s.held.is_whole || s.held.step != step) continue;
    const std::ptrdiff_t equal = std::ranges::count_if(survivors, [&](const Survivor& other) {
      return other.held.is_whole && other.held.step == step &&
             other.held.state_hash == s.held.state_hash;
    });
    if (equal > most) {
      most = equal;
      usual = s.held.state_hash;
    }
  }
  return usual;
}

bool has_prepared(const HeldState& held, std::uint64_t step, std::uint64_t hash) {
  return held.is_whole && held.step + 1 == step && held.prepared_step == step &&
         held.prepared_hash == hash;
}

}  // namespace

ElasticEntry entry_of(const MemberStatus& candidate) {
  return {.id = candidate.from, .address = candidate.address, .shares = candidate.shares};
}

void insert_on_host(const ElasticEntry& entry, std::vector<ElasticEntry>& members) {
  const auto last = std::find_if(members.rbegin(), members.rend(), [&](const ElasticEntry& m) {
    return host_of(m.id.identity) == host_of(entry.id.identity);
  });
  members.insert(last == members.rend() ? members.end() : last.base(), entry);
}

std::vector<std::size_t> mutual_set(std::span<const Survivor> all) {
  std::vector<std::ptrdiff_t> links(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    links[i] = std::ranges::count_if(
        all, [&](const Survivor& other) { return hear_each_other(all[i], other); });
  }
  std::vector<std::size_t> order(all.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    if (all[a].is_member != all[b].is_member) return all[a].is_member;
    return links[a] > links[b];
  });
  std::vector<std::size_t> chosen;
  for (const std::size_t i : order) {
    const bool fits =
        std::ranges::all_of(chosen, [&](std::size_t j) { return hear_each_other(all[i], all[j]); });
    if (fits) chosen.push_back(i);
  }
  std::ranges::sort(chosen);
  return chosen;
}

std::optional<Base> find_base(std::span<const Survivor> survivors) {
  std::vector<const HeldState*> whole;
  // what members outside have may be of another lineage: it decides nothing
  for (const Survivor& s : survivors) {
    if (s.is_member && s.held.is_whole) whole.push_back(&s.held);
  }
  if (whole.empty()) return {};
  const HeldState& latest = **std::ranges::max_element(whole, {}, &HeldState::step);
  Base base{.step = latest.step, .state_hash = 0, .holds = std::vector<bool>(survivors.size())};
  std::uint64_t gradient_hash = latest.gradient_hash;
  const HeldState& first = *whole.front();
  const bool all_prepared = std::ranges::all_of(whole, [&](const HeldState* held) {
    return has_prepared(*held, latest.step + 1, first.prepared_hash);
  });
  if (all_prepared) {
    ++base.step;
    gradient_hash = first.prepared_hash;
  } else {
    std::vector<Survivor> members;
    std::ranges::copy_if(survivors, std::back_inserter(members), &Survivor::is_member);
    base.state_hash = usual_hash(members, base.step);
  }
  for (std::size_t i = 0; i < survivors.size(); ++i) {
    const HeldState& held = survivors[i].held;
    const bool has_state = held.is_whole && !all_prepared && held.step == base.step &&
                           held.state_hash == base.state_hash;
    const bool has_gradient =
        survivors[i].is_member && has_prepared(held, base.step, gradient_hash);
    base.holds[i] = has_state || has_gradient;
  }
  return base;
}

std::optional<ElasticRecord> next_record(const ElasticRecord& present,
                                         std::span<const Survivor> survivors) {
  const std::optional<Base> base = find_base(survivors);
  if (!base) return {};
  const auto left = std::ranges::count_if(survivors, &Survivor::is_member);
  const bool is_complete = left == std::ssize(present.members);
  bool others_have_it = false;
  for (std::size_t i = 0; i < survivors.size(); ++i) {
    others_have_it |= base->holds[i] && !survivors[i].leaves;
  }
  ElasticRecord next{.epoch = present.epoch + 1,
                     .base_step = base->step,
                     .state_hash = base->state_hash,
                     .plan_hash = present.plan_hash};
  for (std::size_t i = 0; i < survivors.size(); ++i) {
    if (survivors[i].leaves && others_have_it && is_complete) continue;
    insert_on_host(survivors[i].entry, next.members);
    if (base->holds[i]) next.donors.push_back(survivors[i].entry.id.identity);
  }
  return next;
}

}  // namespace stormo::protocol
