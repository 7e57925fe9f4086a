#include <cli/bench/rank.h>

#include <fmt/format.h>

#include <cstdio>

#include <bench/measure.h>
#include <cli/bench/engine.h>
#include <cli/bench/probe.h>
#include <cli/bench/table.h>
#include <cli/engine.h>
#include <stormo/comm/communicator.h>

namespace stormo::cli {
namespace {

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
  const auto print = [&](const std::string& text) {
    if (world->rank() != 0) return;
    fmt::print("{}\n", text);
    std::fflush(stdout);
  };
  if (!json) print(bench_heading(options, world->size(), world->cross_size()) + bench_columns());
  bool verified = true;
  for (const std::uint64_t bytes : options.bytes) {
    STORMO_ASSIGN_OR_RETURN(const auto m, measure_size(*world, engine, options, bytes));
    verified = verified && m.verified;
    print(json ? to_json(m) : bench_line(m));
  }
  STORMO_RETURN_IF_ERROR(world->finalize(Deadline::never()));
  return verified;
}

}  // namespace stormo::cli
