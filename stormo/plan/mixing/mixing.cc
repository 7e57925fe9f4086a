#include <stormo/plan/mixing/mixing.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include <stormo/base/index.h>
#include <stormo/base/requirements.h>
#include <stormo/plan/mixing/given.h>

namespace stormo::plan {
namespace {

constexpr double kTolerance = 1e-9;  // of a sum of weights
constexpr std::size_t kShown = 8;    // ranks of a list in a message

std::string decimal(double number) {
  std::string text = std::to_string(number);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text;
}

void check_sums(const MixingMatrix& w, Requirements& require) {
  std::vector<double> columns(w.size());
  for (std::size_t i = 0; i < w.size(); ++i) {
    double row = 0;
    for (const MixingTerm& t : w[i]) {
      row += t.weight;
      columns[at(t.from)] += t.weight;
      require(t.weight >= 0 && std::isfinite(t.weight), "row " + std::to_string(i) +
                                                            " has the weight " + decimal(t.weight) +
                                                            ": give weights of at least 0");
    }
    require(std::abs(row - 1) <= kTolerance,
            "row " + std::to_string(i) + " adds up to " + decimal(row) + ", not 1");
  }
  for (std::size_t j = 0; j < columns.size(); ++j) {
    require(
        std::abs(columns[j] - 1) <= kTolerance,
        "column " + std::to_string(j) + " adds up to " + decimal(columns[j]) +
            ", not 1, so that the mean of all ranks would move; 'edges' gives weights that fit");
  }
}

bool keeps_some(const MixingMatrix& w) {
  for (std::size_t i = 0; i < w.size(); ++i) {
    const auto own = std::ranges::find(w[i], static_cast<Rank>(i), &MixingTerm::from);
    if (own != w[i].end() && own->weight > 0) return true;
  }
  return false;
}

/// Ranks between which there is a way, by the first of them. Where rows and columns add up to 1
/// the direction of a way makes no difference.
std::vector<std::vector<Rank>> components(const Mixing& mixing) {
  std::vector<Rank> root(at(mixing.ranks()));
  std::iota(root.begin(), root.end(), 0);
  const auto find = [&root](Rank r) {
    while (root[at(r)] != r) r = root[at(r)] = root[at(root[at(r)])];
    return r;
  };
  for (const MixingMatrix& w : mixing.rounds) {
    for (Rank i = 0; i < mixing.ranks(); ++i) {
      for (const MixingTerm& t : w[at(i)]) {
        if (t.weight == 0) continue;
        const Rank a = find(i), b = find(t.from);
        root[at(std::max(a, b))] = std::min(a, b);
      }
    }
  }
  std::vector<std::vector<Rank>> all(root.size());
  for (Rank r = 0; r < mixing.ranks(); ++r) all[at(find(r))].push_back(r);
  std::erase_if(all, [](const std::vector<Rank>& ranks) { return ranks.empty(); });
  return all;
}

std::string text_of(const std::vector<Rank>& ranks) {
  std::string out;
  for (std::size_t i = 0; i < std::min(ranks.size(), kShown); ++i) {
    out += (i == 0 ? "" : ",") + std::to_string(ranks[i]);
  }
  return ranks.size() > kShown ? out + ",..." : out;
}

std::string known_names() {
  std::string out;
  for (const MixingTopology& t : mixing_topologies()) out += std::string(t.name) + ", ";
  return out;
}

}  // namespace

std::vector<Rank> senders_to(const MixingMatrix& w, Rank rank) {
  std::vector<Rank> out;
  for (const MixingTerm& t : w[at(rank)]) {
    if (t.from != rank) out.push_back(t.from);
  }
  return out;
}

std::vector<Rank> receivers_of(const MixingMatrix& w, Rank rank) {
  std::vector<Rank> out;
  for (std::size_t i = 0; i < w.size(); ++i) {
    const auto to = static_cast<Rank>(i);
    if (to != rank && std::ranges::count(w[i], rank, &MixingTerm::from) > 0) out.push_back(to);
  }
  return out;
}

Mixing metropolis(int ranks, std::span<const std::pair<Rank, Rank>> edges) {
  std::vector<std::vector<Rank>> joined(at(ranks));
  for (const auto& [a, b] : edges) {
    joined[at(a)].push_back(b);
    joined[at(b)].push_back(a);
  }
  for (std::vector<Rank>& of : joined) {
    std::ranges::sort(of);
    of.erase(std::ranges::unique(of).begin(), of.end());
  }
  MixingMatrix w(at(ranks));
  for (Rank i = 0; i < ranks; ++i) {
    double own = 1;
    for (const Rank j : joined[at(i)]) {
      const std::size_t degree = std::max(joined[at(i)].size(), joined[at(j)].size());
      w[at(i)].push_back({j, 1 / (1 + static_cast<double>(degree))});
      own -= w[at(i)].back().weight;
    }
    w[at(i)].push_back({i, own});
    std::ranges::sort(w[at(i)], {}, &MixingTerm::from);
  }
  Mixing out;
  out.rounds.push_back(std::move(w));
  return out;
}

Mixing circulant(int ranks, std::span<const std::vector<int>> offsets_of_rounds) {
  Mixing out;
  for (const std::vector<int>& offsets : offsets_of_rounds) {
    const double weight = 1 / (1 + static_cast<double>(offsets.size()));
    MixingMatrix& w = out.rounds.emplace_back(at(ranks));
    for (Rank i = 0; i < ranks; ++i) {
      w[at(i)].push_back({i, weight});
      for (const int offset : offsets) {
        w[at(i)].push_back({(i + ranks - offset % ranks) % ranks, weight});
      }
      std::ranges::sort(w[at(i)], {}, &MixingTerm::from);
    }
  }
  return out;
}

Status check(const Mixing& mixing) {
  Requirements require;
  for (const MixingMatrix& w : mixing.rounds) check_sums(w, require);
  require(mixing.rounds.size() > 1 || keeps_some(mixing.rounds.front()),
          "no rank keeps a part of its own values, so that ranks may change places for ever: give "
          "one rank at least a weight of its own");
  const std::vector<std::vector<Rank>> parts = components(mixing);
  if (parts.size() > 1) {
    std::string all;
    for (std::size_t i = 0; i < std::min(parts.size(), kShown); ++i) {
      all += (i == 0 ? "{" : ", {") + text_of(parts[i]) + "}";
    }
    require(false, "there is no way between the ranks " + all +
                       (parts.size() > kShown ? ", ...: join them" : ": join them"));
  }
  return require.status();
}

Result<Mixing> mixing_of(std::string_view topology, int ranks) {
  const auto wrong = [&](const std::string& why) {
    return invalid_argument("topology '" + std::string(topology.substr(0, topology.find(':'))) +
                            "': " + why);
  };
  const auto all = mixing_topologies();
  const auto row = std::ranges::find(all, topology, &MixingTopology::name);
  const bool known = row != all.end() || is_given(topology);
  if (known && ranks == 1) return Mixing{.rounds = {MixingMatrix{{MixingTerm{0, 1}}}}};
  if (row != all.end()) {
    Result<Mixing> made = row->make(ranks);
    if (!made.ok()) return wrong(made.status().message());
    return made;
  }
  if (!known) {
    return wrong("there is none of this name, but " + known_names() +
                 "edges:0-1,1-2 and weights:0.5,0.5;0.5,0.5, or a file of edges or weights; pairs "
                 "is gossip without steps in common");
  }
  Result<Mixing> given = given_mixing(topology, ranks);
  if (!given.ok()) return wrong(given.status().message());
  const Status checked = check(*given);
  if (!checked.ok()) return wrong(checked.message());
  return given;
}

}  // namespace stormo::plan
