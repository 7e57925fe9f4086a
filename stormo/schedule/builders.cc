#include <stormo/schedule/builders.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <tuple>
#include <vector>

#include <stormo/base/units.h>
#include <stormo/plan/limits.h>
#include <stormo/schedule/builder_rows.h>

namespace stormo::schedule {
namespace {

std::vector<Builder> sorted_rows() {
  std::vector<Builder> rows;
  for (const auto part : {reducing_builders(), copying_builders()}) {
    std::ranges::copy(part, std::back_inserter(rows));
  }
  std::ranges::sort(rows, {},
                    [](const Builder& b) { return std::pair(to_string(b.goal), b.name); });
  return rows;
}

}  // namespace

Result<plan::Schedule> Builder::build(int ranks, int hosts, Rank root, int pieces) const {
  const auto bad = [&](std::string what) {
    return invalid_argument(std::string(name) + ": " + std::move(what));
  };
  if (ranks < 1 || ranks > plan::kMaxRanks) {
    return bad(std::to_string(ranks) + " ranks; give 1 to " + std::to_string(plan::kMaxRanks));
  }
  if (takes_hosts && (hosts < 1 || ranks % hosts != 0)) {
    return bad(std::to_string(ranks) + " ranks cannot be spread evenly over " +
               std::to_string(hosts) + " hosts; give a number of hosts that divides the ranks");
  }
  if (takes_root && (root < 0 || root >= ranks)) {
    return bad("root " + std::to_string(root) + " is not a rank; give 0 to " +
               std::to_string(ranks - 1));
  }
  if (takes_pieces && pieces < 1) {
    return bad(std::to_string(pieces) + " pieces; give 1 or more");
  }
  const Shape shape{ranks, takes_hosts ? hosts : 1, takes_root ? root : 0,
                    takes_pieces ? pieces : 1};
  const auto too_many = [&](std::int64_t count, const char* what, std::int64_t limit) {
    return bad(std::to_string(ranks) + " ranks need " + std::to_string(count) + " " + what +
               ", more than the " + std::to_string(limit) + " that one plan may hold; use fewer " +
               (shape.pieces > 1 ? "ranks or pieces, or another algorithm"
                                 : "ranks or another algorithm"));
  };
  if (const auto chunks = num_chunks(shape); chunks > plan::kMaxChunks) {
    return too_many(chunks, "chunks", plan::kMaxChunks);
  }
  if (const auto transfers = num_transfers(shape); transfers > plan::kMaxTransfers) {
    return too_many(transfers, "transfers", plan::kMaxTransfers);
  }
  return make(shape);
}

std::span<const Builder> builders() {
  static const std::vector<Builder> kBuilders = sorted_rows();
  return kBuilders;
}

Result<const Builder*> find_builder(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Builder& b : builders()) {
    if (b.name == name) return &b;
    names.push_back(b.name);
  }
  std::string message = "no algorithm is called '" + std::string(name) + "'";
  if (const std::string_view near = nearest_match(name, names); !near.empty()) {
    message += "; did you mean '" + std::string(near) + "'?";
  } else {
    message += "; 'stormo plan list' prints all names";
  }
  return Status(Code::kNotFound, std::move(message));
}

}  // namespace stormo::schedule
