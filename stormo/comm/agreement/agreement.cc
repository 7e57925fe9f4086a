#include <stormo/comm/agreement/agreement.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include <stormo/base/printable.h>
#include <stormo/base/rng.h>
#include <stormo/transport/call/fields.h>

namespace stormo::comm {

void fields(auto& visit, transport::Like<Fact> auto& fact) {
  visit("fact", fact.field, fact.value);
}

namespace {

constexpr std::size_t kShownRanks = 8;
constexpr std::size_t kShownRows = 20;
constexpr std::size_t kShownBytes = 60;  // of a value
constexpr const char* kAbsent = "(nothing)";

using Row = std::array<std::string, 5>;

/// What a rank says of itself.
struct Statement {
  std::string host;
  std::vector<Fact> facts;
  bool ok = true;
  std::string problem;
};
void fields(auto& visit, transport::Like<Statement> auto& s) {
  visit("statement of a rank", s.host, s.facts, s.ok, s.problem);
}

/// One line of bounded length; paths and names may hold any byte.
std::string shown(std::string_view value) {
  std::string text = printable_line(value);
  if (text.size() <= kShownBytes) return text;
  text.resize(kShownBytes);
  while (!text.empty() && (static_cast<unsigned char>(text.back()) & 0x80) != 0) text.pop_back();
  return text + "...";
}

std::string name_of(const RankFacts& r) { return fmt::format("rank {} (host {})", r.rank, r.host); }

/// A line for each rank that something stops.
std::string problems_of(const RankFacts& reference, std::span<const RankFacts> others) {
  std::string text;
  const auto add = [&text](const RankFacts& r) {
    if (r.problem.ok()) return;
    text += fmt::format("{}{}: {}", text.empty() ? "" : "\n", name_of(r), r.problem.message());
  };
  add(reference);
  for (const RankFacts& r : others) add(r);
  return text;
}

void add_rows(const RankFacts& reference, const RankFacts& other, std::vector<Row>& rows) {
  std::map<std::string_view, std::string_view> theirs;
  for (const Fact& f : other.facts) theirs.emplace(f.field, f.value);
  const auto add = [&](const std::string& field, std::string_view has, std::string_view wanted) {
    rows.push_back(
        {std::to_string(other.rank), other.host, shown(field), shown(has), shown(wanted)});
  };
  for (const Fact& f : reference.facts) {
    const auto found = theirs.find(f.field);
    if (found == theirs.end()) {
      add(f.field, kAbsent, f.value);
    } else {
      if (found->second != f.value) add(f.field, found->second, f.value);
      theirs.erase(found);
    }
  }
  for (const Fact& f : other.facts) {
    if (theirs.contains(f.field)) add(f.field, f.value, kAbsent);
  }
}

std::string table_of(const std::vector<Row>& rows, const std::string& reference_name) {
  const std::size_t count = std::min(rows.size(), kShownRows);
  std::vector<Row> lines = {{"rank", "host", "field", "has", reference_name}};
  lines.insert(lines.end(), rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(count));
  std::array<std::size_t, 4> width{};  // the last column is not filled up
  for (const Row& line : lines) {
    for (std::size_t i = 0; i < width.size(); ++i) width[i] = std::max(width[i], line[i].size());
  }
  std::string text;
  for (const Row& line : lines) {
    text += "\n ";
    for (std::size_t i = 0; i < width.size(); ++i) {
      text += fmt::format(" {:<{}} ", line[i], width[i]);
    }
    text += " " + line.back();
  }
  if (rows.size() > count) text += fmt::format("\n  and {} more differences", rows.size() - count);
  return text;
}

/// What `ranks` have said, the same on every rank.
Result<std::vector<RankFacts>> hear(Communicator& world, const RankFacts& mine,
                                    std::span<const Rank> ranks) {
  const std::string own = transport::encode(
      Statement{mine.host, mine.facts, mine.problem.ok(), mine.problem.message()});
  std::vector<RankFacts> heard;
  for (const Rank rank : ranks) {
    std::string text = own;
    auto length = static_cast<std::int64_t>(text.size());
    STORMO_RETURN_IF_ERROR(world.broadcast(Buffer{&length, 1, DType::kInt64}, rank));
    text.resize(static_cast<std::size_t>(length));
    STORMO_RETURN_IF_ERROR(world.broadcast(Buffer{text.data(), length, DType::kUInt8}, rank));
    auto decoded = transport::decode<Statement>("agreement", text);
    if (!decoded.ok()) return decoded.status().within(fmt::format("rank {}", rank));
    Statement said = *std::move(decoded);
    heard.push_back({.rank = rank, .host = std::move(said.host), .facts = std::move(said.facts)});
    if (!said.ok) heard.back().problem = Status(Code::kRefused, said.problem);
  }
  return heard;
}

Rank first_that_agrees(const Verdict& verdict) {
  Rank rank = 0;
  for (const Rank r : verdict.differing) rank += r == rank ? 1 : 0;
  return rank;
}

Status disagreement(Communicator& world, const RankFacts& mine, const Verdict& verdict) {
  const Rank reference = first_that_agrees(verdict);
  std::vector<Rank> ranks = {reference};
  const std::size_t count = std::min(verdict.differing.size(), kShownRanks);
  ranks.insert(ranks.end(), verdict.differing.begin(),
               verdict.differing.begin() + static_cast<std::ptrdiff_t>(count));
  STORMO_ASSIGN_OR_RETURN(const std::vector<RankFacts> heard, hear(world, mine, ranks));
  const std::string name =
      verdict.majority ? "most ranks have" : fmt::format("rank {} has", reference);
  const Status status = compare_facts(heard.front(), name, std::span(heard).subspan(1));
  if (verdict.differing.size() == count) return status;
  return Status(status.code(), fmt::format("{}\n  and {} more ranks differ", status.message(),
                                           verdict.differing.size() - count));
}

}  // namespace

Verdict majority_vote(std::span<const std::int64_t> hashes) {
  Verdict verdict;
  std::int64_t right = hashes.front();
  const auto votes = [&](std::int64_t h) { return std::count(hashes.begin(), hashes.end(), h); };
  const auto half = static_cast<std::ptrdiff_t>(hashes.size() / 2);
  const auto found =
      std::find_if(hashes.begin(), hashes.end(), [&](std::int64_t h) { return votes(h) > half; });
  verdict.majority = found != hashes.end();
  if (verdict.majority) right = *found;
  for (std::size_t r = 0; r < hashes.size(); ++r) {
    if (hashes[r] != right) verdict.differing.push_back(static_cast<Rank>(r));
  }
  return verdict;
}

Status compare_facts(const RankFacts& reference, const std::string& reference_name,
                     std::span<const RankFacts> others) {
  if (std::string problems = problems_of(reference, others); !problems.empty()) {
    return Status(Code::kRefused, std::move(problems));
  }
  std::vector<Row> rows;
  for (const RankFacts& other : others) add_rows(reference, other, rows);
  if (rows.empty()) return {};
  return Status(Code::kRefused,
                "the ranks disagree, so nothing was started; give all of them the same recipe, "
                "data, model and versions (docs/recipes.md says what may differ)" +
                    table_of(rows, reference_name));
}

Status check_agreement(Communicator& world, std::vector<Fact> facts, const Status& problem) {
  if (world.size() == 1) return problem;
  const RankFacts mine{world.rank(), world.host(), std::move(facts), problem};
  const Statement compared{
      .host = {}, .facts = mine.facts, .ok = problem.ok(), .problem = problem.message()};
  auto hash = static_cast<std::int64_t>(fnv1a(transport::encode(compared)));
  std::vector<std::int64_t> all(static_cast<std::size_t>(world.size()));
  STORMO_RETURN_IF_ERROR(world.all_gather(Buffer{&hash, 1, DType::kInt64}, all));
  const Verdict verdict = majority_vote(all);
  if (verdict.differing.empty()) {
    return problem.ok() ? Status() : Status(Code::kRefused, problem.message());
  }
  const Status status = disagreement(world, mine, verdict);
  // Whoever fails the group from here on leaves nobody without the verdict.
  (void)world.barrier();
  return status;
}

}  // namespace stormo::comm
