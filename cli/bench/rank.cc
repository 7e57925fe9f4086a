#include <cli/bench/rank.h>

#include <bench/measure.h>
#include <cli/bench/engine.h>
#include <cli/bench/probe.h>
#include <cli/bench/report.h>
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
