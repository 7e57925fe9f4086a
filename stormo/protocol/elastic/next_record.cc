#include <stormo/protocol/elastic/next_record.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace stormo::protocol {
namespace {

// Those outside talk to members only.
bool hear_each_other(const Survivor& a, const Survivor& b) {
  if (!a.is_member && !b.is_member) return true;
  return contains(a.heard, b.entry.id) && contains(b.heard, a.entry.id);
}

/// The hash that most of a part have that have committed `step`.
std::uint64_t usual_hash(std::span<const Survivor> survivors, std::uint32_t part,
                         std::uint64_t step) {
  const auto counts = [&](const Survivor& s) {
    return s.is_member && s.entry.part == part && s.held.is_whole && s.held.step == step;
  };
  std::uint64_t usual = 0;
  std::ptrdiff_t most = 0;
  for (const Survivor& s : survivors) {
    if (!counts(s)) continue;
    const std::ptrdiff_t equal = std::ranges::count_if(survivors, [&](const Survivor& other) {
      return counts(other) && other.held.state_hash == s.held.state_hash;
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

/// The hash of the gradient of `step` in a part, as the first one has it that has committed it, or
/// else prepared it.
std::uint64_t gradient_of(std::span<const Survivor> survivors, std::uint32_t part,
                          std::uint64_t step) {
  std::uint64_t prepared = 0;
  for (const Survivor& s : survivors) {
    if (!s.is_member || !s.held.is_whole || s.entry.part != part) continue;
    if (s.held.step == step) return s.held.gradient_hash;
    if (prepared == 0 && s.held.prepared_step == step) prepared = s.held.prepared_hash;
  }
  return prepared;
}

/// The parts of the model of which somebody has the state; of those only who stay.
std::set<std::uint32_t> parts_held(std::span<const Survivor> survivors, const Base& base,
                                   bool only_who_stay) {
  std::set<std::uint32_t> parts;
  for (std::size_t i = 0; i < survivors.size(); ++i) {
    const bool counts = base.holds[i] && !(only_who_stay && survivors[i].leaves);
    if (counts) parts.insert(survivors[i].entry.part);
  }
  return parts;
}

}  // namespace

ElasticEntry entry_of(const MemberStatus& candidate) {
  return {.id = candidate.from,
          .address = candidate.address,
          .shares = candidate.shares,
          .part = candidate.part};
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
  // what members outside have may be of another lineage: it decides nothing
  const auto is_whole = [](const Survivor& s) { return s.is_member && s.held.is_whole; };
  std::optional<std::uint64_t> latest;
  for (const Survivor& s : survivors) {
    if (is_whole(s)) latest = std::max(latest.value_or(0), s.held.step);
  }
  if (!latest) return {};
  std::map<std::uint32_t, std::uint64_t> next, gradients, states;  // by part
  for (const Survivor& s : survivors) {
    if (next.contains(s.entry.part)) continue;
    next[s.entry.part] = gradient_of(survivors, s.entry.part, *latest + 1);
    gradients[s.entry.part] = gradient_of(survivors, s.entry.part, *latest);
    states[s.entry.part] = usual_hash(survivors, s.entry.part, *latest);
  }
  const bool all_prepared = std::ranges::all_of(survivors, [&](const Survivor& s) {
    return !is_whole(s) || has_prepared(s.held, *latest + 1, next[s.entry.part]);
  });
  Base base{.step = *latest, .state_hash = 0, .holds = std::vector<bool>(survivors.size())};
  if (all_prepared) {
    ++base.step;
    gradients = next;
  } else if (states.size() == 1) {
    base.state_hash = states.begin()->second;
  }
  for (std::size_t i = 0; i < survivors.size(); ++i) {
    const HeldState& held = survivors[i].held;
    const std::uint32_t part = survivors[i].entry.part;
    const bool is_usual = states[part] != 0 && held.state_hash == states[part];
    const bool has_state = held.is_whole && !all_prepared && held.step == base.step && is_usual;
    const bool has_gradient =
        survivors[i].is_member && has_prepared(held, base.step, gradients[part]);
    base.holds[i] = has_state || has_gradient;
  }
  return base;
}

std::optional<ElasticRecord> next_record(const ElasticRecord& present,
                                         std::span<const Survivor> survivors) {
  const std::optional<Base> base = find_base(survivors);
  if (!base) return {};
  const std::set<std::uint32_t> held = parts_held(survivors, *base, /*only_who_stay=*/false);
  const bool is_whole = std::ranges::all_of(
      present.members, [&](const ElasticEntry& m) { return held.contains(m.part); });
  if (!is_whole) return {};
  const auto left = std::ranges::count_if(survivors, &Survivor::is_member);
  const bool is_complete = left == std::ssize(present.members);
  const std::set<std::uint32_t> stay = parts_held(survivors, *base, /*only_who_stay=*/true);
  ElasticRecord next{.epoch = present.epoch + 1,
                     .base_step = base->step,
                     .state_hash = base->state_hash,
                     .plan_hash = present.plan_hash};
  for (std::size_t i = 0; i < survivors.size(); ++i) {
    const bool may_leave = is_complete && stay.contains(survivors[i].entry.part);
    if (survivors[i].leaves && may_leave) continue;
    insert_on_host(survivors[i].entry, next.members);
    if (base->holds[i]) next.donors.push_back(survivors[i].entry.id.identity);
  }
  return next;
}

}  // namespace stormo::protocol
