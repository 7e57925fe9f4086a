#include <cli/strads/agreement.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>
#include <utility>
#include <vector>

#include <stormo/base/printable.h>
#include <stormo/base/rng.h>
#include <stormo/checkpoint/exchange.h>

namespace stormo::cli {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// Why ranks that have said different things cannot go on: a line for each problem, else for each
/// difference, "rank 1 (host beta) has --depth 2, rank 0 (host alpha) --depth 0".
std::string verdict_of(const std::vector<std::string>& who,
                       const std::vector<Result<std::string>>& said) {
  constexpr std::size_t kShown = 8;
  std::vector<std::string> lines;
  for (std::size_t r = 0; r < said.size(); ++r) {
    if (!said[r].ok()) lines.push_back(who[r] + ": " + said[r].status().message());
  }
  const bool differ = lines.empty();
  for (std::size_t r = 1; differ && r < said.size(); ++r) {
    std::vector<std::string> theirs = lines_of(*said[r]), expected = lines_of(*said[0]);
    const std::size_t size = std::max(theirs.size(), expected.size());
    theirs.resize(size, "(nothing)");
    expected.resize(size, "(nothing)");
    for (std::size_t i = 0; i < size; ++i) {
      if (theirs[i] == expected[i]) continue;
      lines.push_back(fmt::format("{} has {}, {} {}", who[r], theirs[i], who[0], expected[i]));
    }
  }
  if (lines.size() > kShown) {
    const std::size_t more = lines.size() - kShown;
    lines.resize(kShown);
    lines.push_back(fmt::format("{}and {} more", differ ? "" : "  ", more));
  }
  if (!differ) return fmt::format("{}", fmt::join(lines, "\n"));
  return fmt::format(
      "ranks have different options or data, so nothing was started; give all of them the same\n  "
      "{}",
      fmt::join(lines, "\n  "));
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
  std::vector<std::string> who;
  std::vector<Result<std::string>> said;
  for (std::size_t r = 0; r < texts.size(); ++r) {  // on rank 0
    who.push_back(fmt::format("rank {} (host {})", r, printable_line(hosts[r])));
    said.push_back(checkpoint::decode_outcome(texts[r]));
  }
  std::string verdict = who.empty() ? "" : verdict_of(who, said);
  STORMO_RETURN_IF_ERROR(checkpoint::broadcast_text(world, verdict));
  return Status(Code::kRefused, std::move(verdict));
}

}  // namespace stormo::cli
