#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <memory>
#include <utility>

#include <cli/engine.h>
#include <cli/strads/loop.h>
#include <cli/strads/programs.h>
#include <stormo/strads/lasso.h>
#include <stormo/strads/npy_values.h>

namespace stormo::cli {
namespace {

using strads::Lasso;
using strads::LassoProblem;

Result<LassoProblem> read_problem(const LassoArguments& a) {
  STORMO_ASSIGN_OR_RETURN(const strads::NpyValues x, strads::read_npy(a.x));
  STORMO_ASSIGN_OR_RETURN(strads::NpyValues y, strads::read_npy(a.y));
  const auto rows = static_cast<std::size_t>(x.shape[0]);
  const auto columns = static_cast<std::size_t>(x.shape[1]);
  const auto finite = [](double value) { return std::isfinite(value); };
  if (!std::ranges::all_of(x.values, finite) || !std::ranges::all_of(y.values, finite)) {
    return invalid_argument("--x and --y: a value is no finite number");
  }
  LassoProblem problem{.x = strads::SparseColumns(x.shape[0]), .y = std::move(y.values)};
  std::vector<strads::SparseColumns::Entry> column;
  for (std::size_t j = 0; j < columns; ++j) {
    column.clear();
    for (std::size_t i = 0; i < rows; ++i) {
      const double value = x.values[i * columns + j];
      if (value != 0) column.push_back({static_cast<std::int32_t>(i), value});
    }
    problem.x.add_column(column);
  }
  return problem;
}

struct Prepared {
  LassoProblem problem;
  std::shared_ptr<const protocol::Conflicts> conflicts;
};

Result<Prepared> prepare(const LassoArguments& a) {
  auto problem =
      a.x.empty() ? Result(strads::make_regression(made_regression(a))) : read_problem(a);
  if (!problem.ok()) return problem.status();
  Prepared out{.problem = std::move(*problem), .conflicts = nullptr};
  out.problem.lambda = a.lambda * strads::largest_lambda(out.problem.x, out.problem.y);
  if (!a.no_check && !a.cyclic) {
    out.conflicts = std::make_shared<const protocol::Conflicts>(
        strads::correlated_columns(out.problem.x, a.threshold));
  }
  return out;
}

StradsLoop loop_of(const LassoArguments& a, std::int64_t columns, int workers) {
  const std::int64_t blocks = a.cyclic ? 1 : a.round;
  return {.rounds = a.rounds,
          .every = a.every.value_or((columns + blocks - 1) / blocks),
          .tolerance = a.tolerance,
          .workers = workers,
          .json = a.common.json};
}

void print_heading(const LassoArguments& a, const Prepared& p, int workers) {
  if (a.common.json) return;
  fmt::print(
      "{} rows, {} columns, {} nonzeros, lambda {:.4g}; {} pairs in conflict; {} worker{}\n\n",
      p.problem.x.rows(), p.problem.x.columns(), p.problem.x.nonzeros(), p.problem.lambda,
      p.conflicts ? p.conflicts->pairs() : 0, workers, workers == 1 ? "" : "s");
}

Status write_out(const LassoArguments& a, const Lasso& lasso) {
  if (a.common.out.empty()) return {};
  const auto& b = lasso.coefficients();
  return strads::write_npy(a.common.out, std::vector{std::ssize(b)}, b);
}

}  // namespace

Result<bool> simulate_lasso(const LassoArguments& a) {
  const int workers = *a.common.virtual_workers;
  STORMO_ASSIGN_OR_RETURN(const Prepared p, prepare(a));
  STORMO_ASSIGN_OR_RETURN(
      protocol::Scheduler scheduler,
      protocol::Scheduler::make(schedule_options(a, p.problem.x.columns(), workers), p.conflicts));
  std::vector<std::unique_ptr<strads::BlockProgram>> programs;
  for (int w = 0; w < workers; ++w) {
    STORMO_ASSIGN_OR_RETURN(auto lasso, Lasso::make(p.problem, w, workers));
    programs.push_back(std::move(lasso));
  }
  const auto& first = dynamic_cast<const Lasso&>(*programs[0]);
  strads::VirtualRoundsRun run(std::move(programs), std::move(scheduler),
                               virtual_cluster(a.common));
  print_heading(a, p, workers);
  StradsLoop loop = loop_of(a, p.problem.x.columns(), workers);
  loop.simulated = &run;
  loop.values_hash = [&]() -> Result<std::uint64_t> { return hash_of(first.coefficients()); };
  STORMO_ASSIGN_OR_RETURN(const bool converges, run_strads_loop(run, loop));
  STORMO_RETURN_IF_ERROR(write_out(a, first));
  return converges;
}

Result<bool> run_lasso_rank(const transport::Rendezvous& place, const LassoArguments& a) {
  STORMO_ASSIGN_OR_RETURN(const auto world, join_world("stormo", place));
  STORMO_ASSIGN_OR_RETURN(Prepared p, prepare(a));
  const int workers = world->size();
  STORMO_ASSIGN_OR_RETURN(
      protocol::Scheduler scheduler,
      protocol::Scheduler::make(schedule_options(a, p.problem.x.columns(), workers), p.conflicts));
  STORMO_ASSIGN_OR_RETURN(const auto lasso, Lasso::make(p.problem, world->rank(), workers));
  StradsLoop loop = loop_of(a, p.problem.x.columns(), workers);
  loop.speaks = world->rank() == 0;
  loop.values_hash = [&]() -> Result<std::uint64_t> { return hash_of(lasso->coefficients()); };
  if (loop.speaks) print_heading(a, p, workers);
  p.problem = {.x = strads::SparseColumns(0), .y = {}};  // from here on only this rank's rows
  strads::RankRounds run(*world, *lasso, std::move(scheduler));
  STORMO_ASSIGN_OR_RETURN(const bool converges, run_strads_loop(run, loop));
  if (loop.speaks) STORMO_RETURN_IF_ERROR(write_out(a, *lasso));
  STORMO_RETURN_IF_ERROR(world->finalize(Deadline::never()));
  return converges;
}

}  // namespace stormo::cli
