#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include <cli/output_path.h>
#include <cli/strads/run.h>
#include <stormo/launch/process/available_memory.h>
#include <stormo/strads/data_files.h>
#include <stormo/strads/lasso.h>
#include <stormo/strads/made_data.h>
#include <stormo/strads/npy_values.h>

namespace stormo::cli {
namespace {

using strads::Lasso;
using strads::LassoProblem;

constexpr const char* kLassoExamples =
    "  stormo strads lasso --x X.npy --y y.npy --lambda 0.05 --out b.npy -n 4\n"
    "  stormo strads lasso --columns 200 --no-check --no-priority   32 naive updates: diverges\n"
    "  stormo strads lasso --virtual 16 --stragglers 1:10x --depth 2\n"
    "  stormo strads lasso --cyclic                                 one column after the other\n"
    "\n"
    "Minimises |y - X b|^2 / 2 + lambda |b|_1. Every rank has rows of X. A run with --virtual and\n"
    "one with as many ranks have equal updates in equal order, and equal results. Exit codes: 0\n"
    "done; 1 a failure, or the updates diverged; 2 usage or configuration. See docs/strads.md.";

struct LassoArguments {
  StradsArguments common;
  ScheduleArguments schedule;
  std::string x, y;             // .npy files; empty: made data
  strads::MadeRegression made;  // but for nonzeros and seed
  std::optional<std::int64_t> nonzeros;
  double lambda = 0.1;  // of the largest that leaves a coefficient above 0
  std::int64_t rounds = 100'000;
  double tolerance = 1e-6;

  std::int64_t made_nonzeros() const { return nonzeros.value_or(made.rows); }
};

void check_lasso(const LassoArguments& a, std::vector<std::string>& wrong) {
  std::int64_t rows = 0;  // not known
  if (a.x.empty() != a.y.empty()) {
    wrong.emplace_back("--x and --y: give both, or neither for made data");
  } else if (a.x.empty()) {
    rows = a.made.rows;
    const Need need = from(1, std::max<std::int64_t>(rows, 1));
    if (!need.holds(static_cast<double>(a.nonzeros.value_or(1)))) {
      wrong.push_back(fmt::format("--nonzeros: {} {}", *a.nonzeros, need.otherwise));
    }
  } else if (const auto x = shape_of("--x", a.x, 2, wrong), y = shape_of("--y", a.y, 1, wrong);
             x && y) {
    rows = x->front();
    const std::int64_t columns = x->back();
    if (rows != y->front()) {
      wrong.push_back(fmt::format("--y: it has {} rows, and --x {}", y->front(), rows));
    }
    if (rows < 1 || columns < 1 || rows > kMostNumber || columns > kMostNumber) {
      wrong.push_back(fmt::format("--x: {} rows and {} columns are not from 1 to {}", rows, columns,
                                  kMostNumber));
    }
  }
  check_common(a.common, &a.schedule, rows, wrong);
  const Status writable = a.common.out.empty() ? Status() : check_output_path(a.common.out);
  if (!writable.ok()) wrong.push_back("--out " + writable.message());
}

Status check_elements(const LassoArguments& a, int processes) {
  constexpr double kBytes = 48;  // of an element: read, of all columns, and in this rank's rows
  auto elements = static_cast<double>(a.made_nonzeros()) * static_cast<double>(a.made.columns);
  if (!a.x.empty()) {
    std::vector<std::string> said_by_check;
    const auto shape = shape_of("--x", a.x, 2, said_by_check);
    if (!shape) return {};
    elements = static_cast<double>(shape->front()) * static_cast<double>(shape->back());
  }
  return check_memory(fmt::format("{:.3g} elements", elements), elements * kBytes * processes);
}

Result<std::shared_ptr<const protocol::Conflicts>> conflicts_of(const LassoArguments& a,
                                                                const strads::SparseColumns& x,
                                                                int processes) {
  if (!a.schedule.checks()) return std::shared_ptr<const protocol::Conflicts>();
  const double most =
      static_cast<double>(launch::available_memory()) / processes / strads::kBytesOfConflict;
  auto pairs = strads::correlated_columns(x, a.schedule.threshold,
                                          static_cast<std::int64_t>(std::min(most, 1e18)));
  if (pairs.ok()) return std::make_shared<const protocol::Conflicts>(std::move(*pairs));
  return invalid_argument(
      fmt::format("{}, which is all that memory holds; raise --threshold, or give --no-check",
                  pairs.status().message()));
}

Result<StradsProgram> make_program(const LassoArguments& a, int processes) {
  strads::MadeRegression made = a.made;
  made.nonzeros = a.made_nonzeros();
  made.seed = a.common.seed;
  auto read =
      a.x.empty() ? Result(strads::make_regression(made)) : strads::read_regression(a.x, a.y);
  if (!read.ok()) return read.status().within("--x and --y");
  read->lambda = a.lambda * strads::largest_lambda(read->x, read->y);
  const auto problem = std::make_shared<const LassoProblem>(std::move(*read));
  const std::int64_t columns = problem->x.columns();
  STORMO_ASSIGN_OR_RETURN(const auto conflicts, conflicts_of(a, problem->x, processes));
  return StradsProgram{
      .heading =
          fmt::format("{} rows, {} columns, {} nonzeros, lambda {:.4g}; {} pairs in conflict",
                      problem->x.rows(), columns, problem->x.nonzeros(), problem->lambda,
                      conflicts ? conflicts->pairs() : 0),
      .schedule = schedule_options(a.schedule, columns, a.common.seed, /*in_turn=*/1),
      .conflicts = conflicts,
      .loop = {.rounds = a.rounds,
               .every = a.schedule.every.value_or(0),
               .updates = columns,
               .tolerance = a.tolerance},
      .worker = [problem](int worker,
                          int workers) -> Result<std::unique_ptr<strads::BlockProgram>> {
        STORMO_ASSIGN_OR_RETURN(auto part, Lasso::make(*problem, worker, workers));
        return std::unique_ptr<strads::BlockProgram>(std::move(part));
      },
      .facts = [problem] { return strads::identity_of(*problem); },
      .write =
          [&a](const strads::BlockValues& values) {
            return strads::write_npy(a.common.out, std::vector{std::ssize(values.common)},
                                     values.common);
          }};
}

void add_data(CLI::App& command, LassoArguments& a) {
  CountingOptions& o = a.common.counting;
  auto* x = command.add_option("--x", a.x, "X, a .npy file [rows, columns]");
  command.add_option("--y", a.y, "y, a .npy file [rows]");
  o.add(command, "--rows", a.made.rows, "Of made data", from(1, kMostNumber))->excludes(x);
  o.add(command, "--columns", a.made.columns, "Of made data", from(1, kMostNumber))->excludes(x);
  o.add(command, "--nonzeros", a.nonzeros, "Of made data: in each column; default: all rows")
      ->excludes(x);
  o.add(command, "--group", a.made.group,
        "Of made data: columns that are correlated with each other", from(1, kMostNumber))
      ->excludes(x);
  o.add(command, "--correlation", a.made.correlation, "Of made data: within a group", from(0, 1))
      ->excludes(x);
  o.add(command, "--lambda", a.lambda,
        "Penalty, as a part of the one at which all coefficients are 0",
        {[](double v) { return v > 0 && v < 1; },
         "is not between 0 and 1, where all coefficients are 0"});
}

}  // namespace

void add_lasso(CLI::App& strads, Invocation& invocation) {
  CLI::App* command = strads.add_subcommand("lasso", "Regression with few nonzero coefficients");
  command->footer(kLassoExamples);
  const auto a = std::make_shared<LassoArguments>();
  CountingOptions& o = a->common.counting;
  add_data(*command, *a);
  add_schedule(*command, a->common, a->schedule,
               {.block = "column",
                .in_turn = "one column after the other",
                .one_in_turn = true,
                .every = "as many as have an update for\neach column on average, or more where "
                         "--depth needs it"});
  o.add(*command, "--rounds", a->rounds, "Rounds, at most",
        from(1, std::numeric_limits<std::int64_t>::max()));
  o.add(*command, "--tolerance", a->tolerance,
        "Ends when the objective is certainly so near to its minimum, as a\npart of it",
        above_zero());
  command->add_option("-o,--out", a->common.out, "File for the coefficients, .npy");
  add_common(*command, a->common, kSeededData);
  command->callback([a, &invocation] {
    const StradsMaker maker{.name = "lasso",
                            .check = [&](auto& wrong) { check_lasso(*a, wrong); },
                            .check_memory = [&](int n) { return check_elements(*a, n); },
                            .make = [&](int n) { return make_program(*a, n); }};
    invocation.exit_code = run_program(a->common, maker, invocation);
  });
}

}  // namespace stormo::cli
