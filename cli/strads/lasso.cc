#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include <cli/output_path.h>
#include <cli/strads/numbers_program.h>
#include <stormo/launch/process/available_memory.h>
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

class LassoProgram final : public NumbersProgram {
 public:
  static constexpr const char* kName = "lasso";
  explicit LassoProgram(CLI::App& command);
  void check(const StradsJob& job, Wrong& wrong) override;

 protected:
  Result<Made> make(int processes) override;
  Status write_values(const strads::BlockValues& values) const override {
    return strads::write_npy(a_.out, std::vector{std::ssize(values.common)}, values.common);
  }

 private:
  struct Size {
    std::int64_t rows = 0;
    double elements = 0;  // that are not 0, or in the file
  };
  std::optional<Size> size_of_x(Wrong& wrong) const;
  Result<std::shared_ptr<const protocol::Conflicts>> conflicts_of(const strads::SparseColumns& x,
                                                                  int processes) const;

  std::string x_, y_;            // .npy files; empty: made data
  strads::MadeRegression made_;  // check() takes nonzeros and seed
  std::optional<std::int64_t> nonzeros_;
  double lambda_ = 0.1;  // of the largest that leaves a coefficient above 0
  std::int64_t most_rounds_ = 100'000;
  double tolerance_ = 1e-6;
};

LassoProgram::LassoProgram(CLI::App& command) : NumbersProgram(kName) {
  auto* x = command.add_option("--x", x_, "X, a .npy file [rows, columns]");
  command.add_option("--y", y_, "y, a .npy file [rows]");
  a_.add(command, "--rows", made_.rows, "Of made data", from(1, kMostNumber))->excludes(x);
  a_.add(command, "--columns", made_.columns, "Of made data", from(1, kMostNumber))->excludes(x);
  a_.add(command, "--nonzeros", nonzeros_, "Of made data: in each column; default: all rows")
      ->excludes(x);
  a_.add(command, "--group", made_.group,
         "Of made data: columns that are correlated with each other", from(1, kMostNumber))
      ->excludes(x);
  a_.add(command, "--correlation", made_.correlation, "Of made data: within a group", from(0, 1))
      ->excludes(x);
  a_.add(command, "--lambda", lambda_,
         "Penalty, as a part of the one at which all coefficients are 0",
         {[](double v) { return v > 0 && v < 1; },
          "is not between 0 and 1, where all coefficients are 0"});
  add_schedule(command, a_, "column", "one column after the other",
               "as many as have an update for\neach column on average, or more where --depth needs "
               "it");
  command.get_option("--round")->excludes(command.get_option("--cyclic"));  // has no effect
  a_.add(command, "--rounds", most_rounds_, "Rounds, at most",
         from(1, std::numeric_limits<std::int64_t>::max()));
  a_.add(command, "--tolerance", tolerance_,
         "Ends when the objective is certainly so near to its minimum, as a\npart of it",
         above_zero());
  command.add_option("-o,--out", a_.out, "File for the coefficients, .npy");
  add_common(command, a_, kSeededData);
}

void LassoProgram::check(const StradsJob& job, Wrong& wrong) {
  constexpr double kBytes = 48;  // of an element: read, of all columns, and in this rank's rows
  made_.nonzeros = nonzeros_.value_or(made_.rows);
  made_.seed = a_.schedule.seed;
  const std::optional<Size> size = size_of_x(wrong);
  check_common(a_, job.workers, size ? size->rows : 0, wrong);
  const Status writable = a_.out.empty() ? Status() : check_output_path(a_.out);
  if (!writable.ok()) wrong.push_back("--out " + writable.message());
  if (!size) return;
  check_memory(fmt::format("{:.3g} elements", size->elements), size->elements * kBytes * job.here,
               wrong);
}

/// Nothing where it is not known.
std::optional<LassoProgram::Size> LassoProgram::size_of_x(Wrong& wrong) const {
  if (x_.empty() != y_.empty()) {
    wrong.emplace_back("--x and --y: give both, or neither for made data");
    return std::nullopt;
  }
  if (x_.empty()) {
    const Need need = from(1, std::max<std::int64_t>(made_.rows, 1));
    if (!need.holds(static_cast<double>(nonzeros_.value_or(1)))) {
      wrong.push_back(fmt::format("--nonzeros: {} {}", *nonzeros_, need.otherwise));
    }
    return Size{made_.rows,
                static_cast<double>(made_.nonzeros) * static_cast<double>(made_.columns)};
  }
  const auto x = shape_of("--x", x_, 2, wrong), y = shape_of("--y", y_, 1, wrong);
  if (!x || !y) return std::nullopt;
  const std::int64_t rows = x->front(), columns = x->back();
  if (rows != y->front()) {
    wrong.push_back(fmt::format("--y: it has {} rows, and --x {}", y->front(), rows));
  }
  if (rows < 1 || columns < 1 || rows > kMostNumber || columns > kMostNumber) {
    wrong.push_back(fmt::format("--x: {} rows and {} columns are not from 1 to {}", rows, columns,
                                kMostNumber));
  }
  return Size{rows, static_cast<double>(rows) * static_cast<double>(columns)};
}

Result<std::shared_ptr<const protocol::Conflicts>> LassoProgram::conflicts_of(
    const strads::SparseColumns& x, int processes) const {
  if (!a_.checks()) return std::shared_ptr<const protocol::Conflicts>();
  const double most =
      static_cast<double>(launch::available_memory()) / processes / strads::kBytesOfConflict;
  auto pairs =
      strads::correlated_columns(x, a_.threshold, static_cast<std::int64_t>(std::min(most, 1e18)));
  if (pairs.ok()) return std::make_shared<const protocol::Conflicts>(std::move(*pairs));
  return invalid_argument(
      fmt::format("{}, which is all that memory holds; raise --threshold, or give --no-check",
                  pairs.status().message()));
}

Result<LassoProgram::Made> LassoProgram::make(int processes) {
  auto read = x_.empty() ? Result(strads::make_regression(made_)) : strads::read_regression(x_, y_);
  if (!read.ok()) return read.status().within("--x and --y");
  read->lambda = lambda_ * strads::largest_lambda(read->x, read->y);
  const auto problem = std::make_shared<const LassoProblem>(std::move(*read));
  const std::int64_t columns = problem->x.columns();
  STORMO_ASSIGN_OR_RETURN(const auto conflicts, conflicts_of(problem->x, processes));
  heading = fmt::format("{} rows, {} columns, {} nonzeros, lambda {:.4g}; {} pairs in conflict",
                        problem->x.rows(), columns, problem->x.nonzeros(), problem->lambda,
                        conflicts ? conflicts->pairs() : 0);
  loop = {.rounds = most_rounds_,
          .every = a_.every.value_or(0),
          .updates = columns,
          .tolerance = tolerance_};
  return made<Lasso>(problem, schedule_options(a_, columns, /*in_turn=*/1), conflicts);
}

}  // namespace

void add_lasso(CLI::App& strads, Invocation& invocation) {
  add_program<LassoProgram>(strads, invocation, "Regression with few nonzero coefficients",
                            kLassoExamples);
}

}  // namespace stormo::cli
