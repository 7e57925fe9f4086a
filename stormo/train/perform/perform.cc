#include <stormo/train/perform/perform.h>

#include <cstddef>
#include <string>
#include <vector>

#include <stormo/base/check.h>
#include <stormo/comm/operation/operation.h>

namespace stormo::train {
namespace {

comm::ReduceOp op_of(analysis::Combine combine) {
  switch (combine) {
    case analysis::Combine::kWeightedAverage: return comm::ReduceOp::kWeightedAverage;
    case analysis::Combine::kMax: return comm::ReduceOp::kMax;
    case analysis::Combine::kSum: break;
  }
  return comm::ReduceOp::kSum;
}

comm::Request request_at(const analysis::Collective& what, const Operands& where) {
  comm::Request out = request_of(what);
  out.in = where.in;
  out.out = where.out;
  out.encoding = where.encoding;
  return out;
}

}  // namespace

comm::Request request_of(const analysis::Collective& what) {
  comm::Request out{.kind = comm::kind_of(what.goal)};
  out.reduction = op_of(what.combine);
  out.root = what.root;
  out.algorithm = what.algorithm;
  return out;
}

Status perform_transfer(comm::Communicator& ranks, const analysis::Collective& what,
                        const Operands& where) {
  STORMO_CHECK(!what.of_neighbours, "neighbours send messages");
  return ranks.run(request_at(what, where), Deadline::never());
}

comm::Work start_transfer(comm::Communicator& ranks, const analysis::Collective& what,
                          const Operands& where) {
  STORMO_CHECK(!what.of_neighbours, "neighbours send messages");
  return ranks.submit(request_at(what, where));
}

std::vector<comm::Work> start_messages(comm::Communicator& ranks, const analysis::Collective& what,
                                       std::uint32_t tag, const NeighbourOperands& where) {
  STORMO_CHECK(what.of_neighbours, "a collective is no message");
  std::vector<comm::Work> out;
  for (std::size_t i = 0; i < where.from.size(); ++i) {
    out.push_back(ranks.recv_async(where.theirs[i], where.from[i], tag));
  }
  for (const Rank to : where.to) out.push_back(ranks.send_async(where.own, to, tag));
  return out;
}

Status add_up(comm::Communicator& ranks, std::span<double> numbers, std::string_view algorithm) {
  const comm::Buffer all = numbers;
  return ranks.run({.kind = comm::OperationKind::kAllReduce,
                    .in = {&all, 1},
                    .out = {&all, 1},
                    .reduction = comm::ReduceOp::kSum,
                    .algorithm = algorithm},
                   Deadline::never());
}

Status find_largest(comm::Communicator& ranks, comm::Buffer numbers) {
  return ranks.all_reduce(numbers, comm::ReduceOp::kMax);
}

Status check_elements(const analysis::Collective& what, std::int64_t elements, DType dtype) {
  if (what.elements == elements && what.dtype == dtype) return {};
  const auto text = [](std::int64_t n, DType type) {
    return std::to_string(n) + " elements of " + std::string(to_string(type));
  };
  return Status(Code::kBadPlan, "the plan sends " + text(what.elements, what.dtype) +
                                    ", but there are " + text(elements, dtype));
}

}  // namespace stormo::train
