#include <cli/bench/engine.h>

#include <new>

namespace stormo::cli {

using bench::Operation;
using comm::ReduceOp;

namespace {

constexpr std::align_val_t kPage{4096};

}  // namespace

std::byte* StormoEngine::allocate(std::size_t bytes) {
  void* memory =
      private_ ? ::operator new(bytes, kPage, std::nothrow) : world_.arena().allocate(bytes);
  return static_cast<std::byte*>(memory);
}

void StormoEngine::deallocate(std::byte* memory) {
  if (private_)
    ::operator delete(memory, kPage);
  else
    world_.arena().deallocate(memory);
}

Status StormoEngine::run(Operation operation, const bench::Operands& o) {
  const auto count = [](std::uint64_t n) { return static_cast<std::int64_t>(n); };
  const comm::Buffer whole{o.out, count(o.shape.whole), o.dtype};
  const comm::Buffer in{o.in, count(o.shape.in), o.dtype};
  const comm::Buffer out{o.out, count(o.shape.out), o.dtype};
  switch (operation) {
    case Operation::kAllReduce: return world_.all_reduce(whole, ReduceOp::kSum);
    case Operation::kReduce: return world_.reduce(whole, ReduceOp::kSum, 0);
    case Operation::kBroadcast: return world_.broadcast(whole, 0);
    case Operation::kAllGather: return world_.all_gather(in, out);
    case Operation::kReduceScatter: return world_.reduce_scatter(in, out, ReduceOp::kSum);
    case Operation::kGather: return world_.gather(in, out, 0);
    case Operation::kScatter: return world_.scatter(in, out, 0);
    case Operation::kAllToAll: return world_.all_to_all(in, out);
    case Operation::kScan: return world_.scan(whole, ReduceOp::kSum);
    case Operation::kBarrier: return world_.barrier();
  }
  return {};
}

std::string algorithm_of(const comm::Communicator& world, Operation operation,
                         std::uint64_t bytes) {
  // an operation is called as its goal; a barrier has none
  for (const plan::GoalKind goal : plan::kGoalKinds)
    if (to_string(goal) == bench::facts_of(operation).name) return world.algorithm(goal, bytes);
  return {};
}

}  // namespace stormo::cli
