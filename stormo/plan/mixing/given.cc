// Topologies that somebody has made.
#include <stormo/plan/mixing/given.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include <stormo/base/index.h>
#include <stormo/base/text.h>

namespace stormo::plan {
namespace {

constexpr std::string_view kEdges = "edges", kWeights = "weights";

/// "0.25" or "1/3".
std::optional<double> weight_in(std::string_view text) {
  const std::size_t slash = text.find('/');
  const std::optional<double> above = number_in<double>(text.substr(0, slash));
  if (slash == std::string_view::npos || !above) return above;
  const std::optional<double> below = number_in<double>(text.substr(slash + 1));
  if (!below || *below == 0) return {};
  return *above / *below;
}

Result<Mixing> of_edges(std::string_view text, int ranks) {
  std::vector<std::pair<Rank, Rank>> edges;
  for (const std::string_view edge : split(text, ',')) {
    const std::size_t dash = edge.find('-');
    const auto a = number_in<int>(edge.substr(0, dash));
    const auto b =
        dash == std::string_view::npos ? std::nullopt : number_in<int>(edge.substr(dash + 1));
    if (!a || !b || *a < 0 || *b < 0) {
      return invalid_argument("'" + std::string(edge) + "' is no edge; write two ranks, as 0-1");
    }
    if (std::max(*a, *b) >= ranks) {
      return invalid_argument("edge " + std::string(edge) + " names rank " +
                              std::to_string(std::max(*a, *b)) + ", and there are the ranks 0 to " +
                              std::to_string(ranks - 1));
    }
    if (*a == *b) {
      return invalid_argument("edge " + std::string(edge) +
                              " joins a rank with itself, which has its own values anyway");
    }
    edges.emplace_back(*a, *b);
  }
  return metropolis(ranks, edges);
}

Result<Mixing> of_weights(std::string_view text, int ranks) {
  const std::vector<std::string_view> rows = split(text, ';');
  if (std::ssize(rows) != ranks) {
    return invalid_argument("the matrix has " + std::to_string(rows.size()) +
                            " rows, and there are " + std::to_string(ranks) + " ranks");
  }
  MixingMatrix w(at(ranks));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::vector<std::string_view> row = split(rows[i], ',');
    if (row.size() != rows.size()) {
      return invalid_argument("row " + std::to_string(i) + " has " + std::to_string(row.size()) +
                              " weights, and there are " + std::to_string(ranks) + " ranks");
    }
    for (std::size_t j = 0; j < row.size(); ++j) {
      const std::optional<double> weight = weight_in(row[j]);
      if (!weight || !std::isfinite(*weight)) {
        return invalid_argument("row " + std::to_string(i) + ": '" + std::string(row[j]) +
                                "' is no weight; write 0.25 or 1/4");
      }
      if (*weight != 0) w[i].push_back({static_cast<Rank>(j), *weight});
    }
  }
  Mixing out;
  out.rounds.push_back(std::move(w));
  return out;
}

/// The words of a line, without a comment.
std::vector<std::string> words_of(std::string_view line) {
  std::vector<std::string> out;
  bool inside = false;
  for (const char c : line.substr(0, line.find('#'))) {
    const bool blank = c == ' ' || c == '\t' || c == '\r';
    if (!blank && !inside) out.emplace_back();
    if (!blank) out.back() += c;
    inside = !blank;
  }
  return out;
}

}  // namespace

bool is_given(std::string_view topology) {
  const std::string_view kind = topology.substr(0, topology.find(':'));
  return kind.size() < topology.size() && (kind == kEdges || kind == kWeights);
}

Result<Mixing> given_mixing(std::string_view topology, int ranks) {
  const std::size_t colon = topology.find(':');
  const std::string_view text = topology.substr(colon + 1);
  if (topology.size() > kMaxTopologyBytes) {
    return invalid_argument("it is longer than " + std::to_string(kMaxTopologyBytes) + " bytes");
  }
  return topology.starts_with(kEdges) ? of_edges(text, ranks) : of_weights(text, ranks);
}

Result<std::string> topology_of_text(std::string_view text) {
  std::string kind, out;
  std::size_t number = 0;
  for (const std::string_view line : split(text, '\n')) {
    ++number;
    const std::vector<std::string> words = words_of(line);
    if (words.empty()) continue;
    const auto wrong = [&](const std::string& why) {
      return invalid_argument("line " + std::to_string(number) + ": " + why);
    };
    if (kind.empty()) {
      if (words.size() != 1 || (words[0] != kEdges && words[0] != kWeights)) {
        return wrong("expected 'edges' or 'weights', the kind of what follows");
      }
      kind = words[0];
      continue;
    }
    const bool edges = kind == kEdges;
    if (edges && words.size() != 2) return wrong("expected an edge, which is two ranks, as 0 1");
    if (!out.empty()) out += edges ? ',' : ';';
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (i > 0) out += edges ? '-' : ',';
      out += words[i];
    }
  }
  if (out.empty()) {
    return invalid_argument("it has no edges or weights; begin with a line 'edges' or 'weights'");
  }
  return kind + ":" + out;
}

}  // namespace stormo::plan
