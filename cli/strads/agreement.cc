#include <cli/strads/agreement.h>

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <utility>
#include <vector>

#include <stormo/base/printable.h>
#include <stormo/base/rng.h>
#include <stormo/checkpoint/exchange.h>

namespace stormo::cli {
namespace {

constexpr std::size_t kShownRanks = 8;

/// What one rank says.
struct Said {
  std::string who;  // "rank 1 (host beta)"
  Result<std::string> facts;
};

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// "rank 1 (host beta) has --depth 2, rank 0 (host alpha) --depth 0": a line for each difference.
std::vector<std::string> differences(const Said& reference, const Said& other) {
  std::vector<std::string> theirs = lines_of(*other.facts), expected = lines_of(*reference.facts);
  const std::size_t size = std::max(theirs.size(), expected.size());
  theirs.resize(size, "(nothing)");
  expected.resize(size, "(nothing)");
  std::vector<std::string> out;
  for (std::size_t i = 0; i < size; ++i) {
    if (theirs[i] == expected[i]) continue;
    out.push_back(
        fmt::format("{} has {}, {} {}", other.who, theirs[i], reference.who, expected[i]));
  }
  return out;
}

/// Why ranks that have said different things cannot go on.
std::string verdict_of(const std::vector<Said>& all) {
  std::vector<std::string> problems, different;
  for (const Said& said : all) {
    if (!said.facts.ok()) problems.push_back(said.who + ": " + said.facts.status().message());
  }
  for (std::size_t r = 1; problems.empty() && r < all.size(); ++r) {
    const std::vector<std::string> lines = differences(all[0], all[r]);
    different.insert(different.end(), lines.begin(), lines.end());
  }
  const bool differs = problems.empty();
  std::vector<std::string>& lines = differs ? different : problems;
  std::string text = differs ? "ranks have different options or data, so nothing was started; give "
                               "all of them the same"
                             : "";
  for (std::size_t i = 0; i < std::min(lines.size(), kShownRanks); ++i) {
    text += (text.empty() ? "" : differs ? "\n  " : "\n") + lines[i];
  }
  if (lines.size() > kShownRanks) {
    text += fmt::format("\n  and {} more", lines.size() - kShownRanks);
  }
  return text;
}

}  // namespace

Status agree_on(comm::Communicator& world, const Result<std::string>& facts) {
  if (world.size() == 1) return facts.status();
  const std::string mine = checkpoint::encode_outcome(facts);
  auto hash = static_cast<std::int64_t>(fnv1a(mine));
  std::vector<std::int64_t> hashes(static_cast<std::size_t>(world.size()));
  STORMO_RETURN_IF_ERROR(world.all_gather(comm::Buffer{&hash, 1, DType::kInt64}, hashes));
  if (std::ranges::all_of(hashes, [&](std::int64_t h) { return h == hashes[0]; })) {
    return facts.status();
  }
  STORMO_ASSIGN_OR_RETURN(const auto hosts, checkpoint::gather_texts(world, world.host()));
  STORMO_ASSIGN_OR_RETURN(const auto texts, checkpoint::gather_texts(world, mine));
  std::vector<Said> all;
  for (std::size_t r = 0; r < texts.size(); ++r) {  // on rank 0
    all.push_back({fmt::format("rank {} (host {})", r, printable_line(hosts[r])),
                   checkpoint::decode_outcome(texts[r])});
  }
  std::string verdict = all.empty() ? "" : verdict_of(all);
  STORMO_RETURN_IF_ERROR(checkpoint::broadcast_text(world, verdict));
  return Status(Code::kRefused, std::move(verdict));
}

}  // namespace stormo::cli
