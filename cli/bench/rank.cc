#include <cli/bench/rank.h>

#include <new>

#include <bench/measure.h>
#include <cli/bench/probe.h>
#include <cli/bench/report.h>
#include <cli/bench/table.h>
#include <cli/engine.h>
#include <stormo/comm/communicator.h>

namespace stormo::cli {
namespace {

using bench::Operation;
using comm::ReduceOp;

constexpr std::align_val_t kPage{4096};

/// Stormo under measurement.
class StormoEngine : public bench::Engine {
 public:
  StormoEngine(comm::Communicator& world, bool private_buffers)
      : world_(world), private_(private_buffers) {}
  int rank() const override { return world_.rank(); }
  int size() const override { return world_.size(); }
  bool one_host() const override { return world_.cross_size() == 1; }
  std::byte* allocate(std::size_t bytes) override;
  void deallocate(std::byte* memory) override;
  Status run(bench::Operation operation, const bench::Operands& operands) override;
  Status barrier() override { return world_.barrier(); }
  Status largest(std::span<double> values) override {
    return world_.all_reduce(values, ReduceOp::kMax);
  }
  Status total(std::span<double> values) override {
    return world_.all_reduce(values, ReduceOp::kSum);
  }

 private:
  comm::Communicator& world_;
  bool private_;
};

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

/// The builder that Stormo runs for an operation on `bytes` bytes; empty for a barrier.
std::string algorithm_of(const comm::Communicator& world, Operation operation,
                         std::uint64_t bytes) {
  // an operation is called as its goal; a barrier has none
  for (const plan::GoalKind goal : plan::kGoalKinds)
    if (to_string(goal) == bench::facts_of(operation).name) return world.algorithm(goal, bytes);
  return {};
}

Result<bench::Measurement> measure_size(comm::Communicator& world, StormoEngine& engine,
                                        const BenchOptions& options, std::uint64_t bytes) {
  const bench::OperationFacts& facts = bench::facts_of(options.operation);
  STORMO_ASSIGN_OR_RETURN(
      bench::Measurement m,
      bench::measure(engine, options.operation, bytes,
                     {.dtype = options.dtype, .seconds = options.seconds, .pause = options.pause}));
  m.hosts = world.cross_size();
  m.buffers = options.private_buffers ? "private" : "arena";
  m.algorithm = algorithm_of(world, options.operation, bytes);
  m.transport = m.algorithm == "mpi"      ? "mpi"
                : world.cross_size() == 1 ? "shm"
                : world.local_size() > 1  ? "shm+tcp"
                                          : "tcp";
  if (engine.one_host() && world.size() > 1) {
    STORMO_ASSIGN_OR_RETURN(const double probe,
                            probe_memory(world, engine, facts, bytes, options.seconds / 3));
    m.roofline = probe / m.p50_s;
  }
  return m;
}

}  // namespace

Result<bool> run_bench_rank(const transport::Rendezvous& place, const std::string& engine_name,
                            const BenchOptions& options, bool json) {
  STORMO_ASSIGN_OR_RETURN(const auto world, join_world(engine_name, place));
  StormoEngine engine(*world, options.private_buffers);
  const std::string heading =
      json ? "" : bench_heading(options, world->size(), world->cross_size()) + bench_columns();
  const auto measure = [&](std::uint64_t bytes) -> Result<Report> {
    STORMO_ASSIGN_OR_RETURN(const auto m, measure_size(*world, engine, options, bytes));
    return Report{json ? to_json(m) : bench_line(m), m.verified};
  };
  STORMO_ASSIGN_OR_RETURN(
      const bool verified,
      print_each<std::uint64_t>(world->rank() == 0, heading, options.bytes, measure));
  STORMO_RETURN_IF_ERROR(world->finalize(Deadline::never()));
  return verified;
}

}  // namespace stormo::cli
