#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include <cli/engine.h>
#include <cli/strads/loop.h>
#include <cli/strads/programs.h>
#include <stormo/strads/factorisation.h>
#include <stormo/strads/npy_values.h>
#include <stormo/strads/sparse_columns.h>

namespace stormo::cli {
namespace {

using strads::Factorisation;
using strads::FactorisationProblem;

Result<strads::Ratings> read_ratings(const std::string& path) {
  STORMO_ASSIGN_OR_RETURN(const strads::NpyValues file, strads::read_npy(path));
  strads::Ratings out;
  const auto is_index = [](double value) {
    return value >= 0 && value < std::numeric_limits<std::int32_t>::max() &&
           value == std::floor(value);
  };
  for (std::size_t i = 0; i < file.values.size(); i += 3) {
    const double row = file.values[i], column = file.values[i + 1], value = file.values[i + 2];
    if (!is_index(row) || !is_index(column) || !std::isfinite(value)) {
      return invalid_argument(fmt::format(
          "--ratings: line {} of '{}' is no row, column (whole numbers from 0) and value", i / 3,
          path));
    }
    out.known.push_back({static_cast<std::int32_t>(row), static_cast<std::int32_t>(column), value});
    out.rows = std::max<std::int64_t>(out.rows, out.known.back().row + 1);
    out.columns = std::max<std::int64_t>(out.columns, out.known.back().column + 1);
  }
  return out;
}

Result<FactorisationProblem> prepare(const FactoriseArguments& a) {
  auto ratings =
      a.ratings.empty() ? Result(strads::make_ratings(made_ratings(a))) : read_ratings(a.ratings);
  if (!ratings.ok()) return ratings.status();
  return FactorisationProblem{
      .ratings = std::move(*ratings), .rank = a.rank, .lambda = a.lambda, .seed = a.common.seed};
}

protocol::ScheduleOptions rotation_of(const FactoriseArguments& a, int workers) {
  return {.blocks = 2 * std::int64_t{a.rank},
          .workers = workers,
          .rotation = Factorisation::rotation(a.rank, a.inner)};
}

StradsLoop loop_of(const FactoriseArguments& a, int workers) {
  const std::int64_t pass = 2 * std::int64_t{a.rank} * a.inner;
  return {.rounds = a.passes * pass, .every = pass, .workers = workers, .json = a.common.json};
}

void print_heading(const FactoriseArguments& a, const FactorisationProblem& p, int workers) {
  if (a.common.json) return;
  fmt::print("{} x {}, {} elements known, rank {}, lambda {}; {} worker{}\n\n", p.ratings.rows,
             p.ratings.columns, p.ratings.known.size(), p.rank, p.lambda, workers,
             workers == 1 ? "" : "s");
}

Status write_out(const FactoriseArguments& a, const std::vector<double>& w,
                 const std::vector<double>& h) {
  if (a.common.out.empty()) return {};
  const auto write = [&](const char* name, const std::vector<double>& table) {
    const std::vector<std::int64_t> shape{std::ssize(table) / a.rank, a.rank};
    return strads::write_npy(a.common.out + "/" + name, shape, table);
  };
  STORMO_RETURN_IF_ERROR(write("W.npy", w));
  return write("H.npy", h);
}

/// The rows of all ranks, on rank 0.
Result<std::vector<double>> gather_w(comm::Communicator& world, const Factorisation& mine,
                                     const FactorisationProblem& p) {
  std::vector<double> part = mine.w();
  std::vector<std::int64_t> counts;
  for (int r = 0; r < world.size(); ++r) {
    const strads::Rows rows = strads::rows_of(r, world.size(), p.ratings.rows);
    counts.push_back((rows.end - rows.begin) * p.rank);
  }
  std::vector<double> all(static_cast<std::size_t>(p.ratings.rows * p.rank));
  STORMO_RETURN_IF_ERROR(world.gather(part, all, 0, counts));
  return all;
}

}  // namespace

Result<bool> simulate_factorise(const FactoriseArguments& a) {
  const int workers = *a.common.virtual_workers;
  STORMO_ASSIGN_OR_RETURN(const FactorisationProblem p, prepare(a));
  STORMO_ASSIGN_OR_RETURN(protocol::Scheduler scheduler,
                          protocol::Scheduler::make(rotation_of(a, workers)));
  std::vector<std::unique_ptr<strads::BlockProgram>> programs;
  std::vector<const Factorisation*> parts;
  for (int worker = 0; worker < workers; ++worker) {
    STORMO_ASSIGN_OR_RETURN(auto program, Factorisation::make(p, worker, workers));
    parts.push_back(program.get());
    programs.push_back(std::move(program));
  }
  strads::VirtualRoundsRun run(std::move(programs), std::move(scheduler),
                               virtual_cluster(a.common));
  print_heading(a, p, workers);
  std::vector<double> w;
  StradsLoop loop = loop_of(a, workers);
  loop.simulated = &run;
  loop.values_hash = [&]() -> Result<std::uint64_t> {
    for (const Factorisation* part : parts) {
      const std::vector<double> rows = part->w();
      w.insert(w.end(), rows.begin(), rows.end());
    }
    return hash_of(parts[0]->h(), hash_of(w));
  };
  STORMO_ASSIGN_OR_RETURN(const bool converges, run_strads_loop(run, loop));
  STORMO_RETURN_IF_ERROR(write_out(a, w, parts[0]->h()));
  return converges;
}

Result<bool> run_factorise_rank(const transport::Rendezvous& place, const FactoriseArguments& a) {
  STORMO_ASSIGN_OR_RETURN(const auto world, join_world("stormo", place));
  STORMO_ASSIGN_OR_RETURN(const FactorisationProblem p, prepare(a));
  STORMO_ASSIGN_OR_RETURN(protocol::Scheduler scheduler,
                          protocol::Scheduler::make(rotation_of(a, world->size())));
  STORMO_ASSIGN_OR_RETURN(const auto program, Factorisation::make(p, world->rank(), world->size()));
  std::vector<double> w;
  StradsLoop loop = loop_of(a, world->size());
  loop.speaks = world->rank() == 0;
  loop.values_hash = [&]() -> Result<std::uint64_t> {
    STORMO_ASSIGN_OR_RETURN(w, gather_w(*world, *program, p));
    return hash_of(program->h(), hash_of(w));
  };
  if (loop.speaks) print_heading(a, p, world->size());
  strads::RankRounds run(*world, *program, std::move(scheduler));
  STORMO_ASSIGN_OR_RETURN(const bool converges, run_strads_loop(run, loop));
  if (loop.speaks) STORMO_RETURN_IF_ERROR(write_out(a, w, program->h()));
  STORMO_RETURN_IF_ERROR(world->finalize(Deadline::never()));
  return converges;
}

}  // namespace stormo::cli
