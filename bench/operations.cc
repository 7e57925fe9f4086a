#include <bench/operations.h>

#include <algorithm>

namespace stormo::bench {
namespace {

std::uint64_t elements_of(Share share, const Shape& shape) {
  return share == Share::kWhole ? shape.whole : share == Share::kPart ? shape.part : 0;
}

}  // namespace

const OperationFacts& facts_of(Operation operation) {
  return kOperations[static_cast<std::size_t>(operation)];
}

const OperationFacts* find_operation(std::string_view name) {
  const auto* found =
      std::find_if(kOperations.begin(), kOperations.end(), [&](auto& f) { return f.name == name; });
  return found == kOperations.end() ? nullptr : found;
}

bool has_parts(const OperationFacts& facts) {
  return facts.root_in != facts.root_out || facts.operation == Operation::kAllToAll;
}

double bus_factor(Operation operation, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  switch (operation) {
    case Operation::kAllReduce: return 2 * others;
    case Operation::kAllGather:
    case Operation::kReduceScatter:
    case Operation::kGather:
    case Operation::kScatter:
    case Operation::kAllToAll: return others;
    case Operation::kReduce:
    case Operation::kBroadcast:
    case Operation::kScan: return 1;
    case Operation::kBarrier: return 0;
  }
  return 0;
}

Shape shape_of(const OperationFacts& facts, std::uint64_t elements, int ranks, int rank) {
  Shape shape;
  const auto n = static_cast<std::uint64_t>(ranks);
  shape.part = (elements + n - 1) / n;
  shape.whole = has_parts(facts) ? shape.part * n : elements;
  shape.in = elements_of(rank == 0 ? facts.root_in : facts.in, shape);
  shape.out = elements_of(rank == 0 ? facts.root_out : facts.out, shape);
  return shape;
}

std::vector<Segment> expected_output(const OperationFacts& facts, const Shape& shape, int ranks,
                                     int rank) {
  const auto r = static_cast<std::uint64_t>(rank);
  if (shape.out == 0) return {};
  switch (facts.operation) {
    case Operation::kAllReduce:
    case Operation::kReduce: return {{0, ranks - 1, 0, shape.out}};
    case Operation::kReduceScatter: return {{0, ranks - 1, r * shape.part, shape.out}};
    case Operation::kScan: return {{0, rank, 0, shape.out}};
    case Operation::kBroadcast: return {{0, 0, 0, shape.out}};
    case Operation::kScatter: return {{0, 0, r * shape.part, shape.out}};
    case Operation::kAllGather:
    case Operation::kGather:
    case Operation::kAllToAll: break;
    case Operation::kBarrier: return {};
  }
  std::vector<Segment> parts;
  const bool all_to_all = facts.operation == Operation::kAllToAll;
  for (int s = 0; s < ranks; ++s)
    parts.push_back({s, s, all_to_all ? r * shape.part : 0, shape.part});
  return parts;
}

}  // namespace stormo::bench
