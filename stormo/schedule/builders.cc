#include <stormo/schedule/builders.h>

#include <algorithm>
#include <string>
#include <vector>

#include <stormo/base/units.h>
#include <stormo/plan/limits.h>

namespace stormo::schedule {
Result<plan::Schedule> Builder::build(int ranks, int hosts, Rank root, int pieces) const {
  ScheduleShape shape{.ranks = ranks, .root = root, .pieces = pieces};
  if (takes.hosts && ranks >= 1 && (hosts < 1 || hosts > ranks)) {
    return invalid_argument(std::string(name) + ": " + std::to_string(ranks) +
                            " ranks cannot be on " + std::to_string(hosts) +
                            " hosts; give 1 to as many hosts as ranks");
  }
  if (takes.hosts && ranks >= 1) shape.hosts = spread_over(ranks, hosts);
  return build(shape);
}

Result<plan::Schedule> Builder::build(const ScheduleShape& shape) const {
  const int ranks = shape.ranks;
  const auto bad = [&](std::string what) {
    return invalid_argument(std::string(name) + ": " + std::move(what));
  };
  if (ranks < 1 || ranks > plan::kMaxRanks) {
    return bad(std::to_string(ranks) + " ranks; give 1 to " + std::to_string(plan::kMaxRanks));
  }
  if (takes.even_hosts &&
      std::ranges::adjacent_find(shape.hosts, std::not_equal_to()) != shape.hosts.end()) {
    return bad(std::to_string(ranks) + " ranks cannot be spread evenly over " +
               std::to_string(shape.hosts.size()) + " hosts; it needs as many ranks on every host");
  }
  if (takes.root && (shape.root < 0 || shape.root >= ranks)) {
    return bad("root " + std::to_string(shape.root) + " is not a rank; give 0 to " +
               std::to_string(ranks - 1));
  }
  if (takes.pieces && shape.pieces < 1) {
    return bad(std::to_string(shape.pieces) + " pieces; give 1 or more");
  }
  const ScheduleShape used{.ranks = ranks,
                           .hosts = takes.hosts ? shape.hosts : HostSizes{ranks},
                           .root = takes.root ? shape.root : 0,
                           .pieces = takes.pieces ? shape.pieces : 1};
  const auto too_many = [&](std::int64_t count, const char* what, std::int64_t limit) {
    return bad(
        std::to_string(ranks) + " ranks need " + std::to_string(count) + " " + what +
        ", more than the " + std::to_string(limit) + " that one plan may hold; use fewer " +
        (used.pieces > 1 ? "ranks or pieces, or another algorithm" : "ranks or another algorithm"));
  };
  if (const auto chunks = size.chunks(used); chunks > plan::kMaxChunks) {
    return too_many(chunks, "chunks", plan::kMaxChunks);
  }
  if (const auto transfers = size.transfers(used); transfers > plan::kMaxTransfers) {
    return too_many(transfers, "transfers", plan::kMaxTransfers);
  }
  return make(used);
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
