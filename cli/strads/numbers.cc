// The programs whose variables are numbers for a file, of data that each rank reads or makes.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <utility>

#include <cli/output_path.h>
#include <cli/strads/program.h>
#include <stormo/launch/process/available_memory.h>
#include <stormo/strads/data_files.h>
#include <stormo/strads/made_data.h>
#include <stormo/strads/npy_values.h>
#include <stormo/strads/round_plan.h>

namespace stormo::cli {
namespace {

using strads::Factorisation;
using strads::FactorisationProblem;
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

constexpr const char* kFactoriseExamples =
    "  stormo strads factorise --ratings ratings.npy --rank 16 --out factors -n 4\n"
    "  stormo strads factorise --virtual 8 --compute 1ms\n"
    "\n"
    "Finds W and H with W H' near to the known elements of a matrix, factor by factor (CCD++).\n"
    "Every rank has rows of the matrix. Exit codes as of 'stormo strads lasso'. See "
    "docs/strads.md.";

constexpr const char* kSeededData = "Of made data, first values and draws";

/// OK where this host has the memory for so many bytes of `what`.
Status check_memory(const std::string& what, double bytes) {
  const auto available = static_cast<double>(launch::available_memory());
  if (bytes <= available) return {};
  return invalid_argument(
      fmt::format("{} need {:.3g} GB on this host, but {:.3g} GB of memory are available", what,
                  bytes / 1e9, available / 1e9));
}

/// From 1 to the number that another word says.
Need up_to(const std::int64_t& most) {
  return [&most](double v) { return from(1, std::max<std::int64_t>(most, 1))(v); };
}

/// `Part`: a worker's part of a problem.
template <class Part, class Problem>
class NumbersProgram : public StradsProgram {
 public:
  Result<plan::StepPlan> plan(int workers) override {
    STORMO_ASSIGN_OR_RETURN(const Problem problem, read(1));
    STORMO_ASSIGN_OR_RETURN(const auto part, Part::make(problem, 0, workers));
    return strads::round_plan(part->variables(), workers, schedule_, loop);
  }
  Status begin(comm::Communicator& world) override {
    std::vector<comm::Fact> facts;
    auto run = begin_run(world, facts);
    const Status ready = run.status();
    if (run.ok()) rounds_.emplace(std::move(*run));
    return comm::check_agreement(world, std::move(facts), ready);
  }
  Status leave() override {
    rounds_.reset();
    return StradsProgram::leave();
  }
  strads::RoundsRun& rounds() override { return *rounds_; }
  Result<std::uint64_t> values_hash() override {
    STORMO_ASSIGN_OR_RETURN(values_, rounds_->workers().values());
    return strads::hash_of(values_.common, strads::hash_of(values_.rows));
  }
  Status write() override { return a_.out.empty() ? Status() : write_values(values_); }

 protected:
  explicit NumbersProgram(const char* its_name) : StradsProgram(its_name, a_) {}

  /// Reads or makes the data in one of so many processes of this host, and sets what is chosen, how
  /// long, and the heading. kInvalidArgument for data that are not as they must be, and where
  /// memory does not hold what comes of them.
  virtual Result<Problem> read(int processes) = 0;
  virtual Status write_values(const strads::BlockValues& values) const = 0;

  /// What is wrong with the words that both programs have. `rows`: of the data; 0: not known;
  /// `writable`: whether --out is.
  void check_words(const StradsJob& job, std::int64_t rows, const Status& writable, Wrong& wrong) {
    check_common(job, rows, wrong);
    if (!a_.out.empty() && !writable.ok()) wrong.push_back("--out " + writable.message());
  }

  StradsArguments a_;
  protocol::ScheduleOptions schedule_;
  std::shared_ptr<const protocol::Conflicts> conflicts_;

 private:
  /// `facts`: hashes of the data, where there are other ranks. Workers have their parts of the
  /// data, which are dropped.
  Result<strads::Workers> make_workers(comm::Communicator& world, std::vector<comm::Fact>& facts) {
    STORMO_ASSIGN_OR_RETURN(const Problem problem, read(world.local_size()));
    if (world.size() > 1) facts = strads::identity_of(problem);
    const auto make = [&problem](int w, int workers) { return Part::make(problem, w, workers); };
    return strads::Workers::make(world, a_.virtual_workers, make);
  }
  Result<strads::RoundsRun> begin_run(comm::Communicator& world, std::vector<comm::Fact>& facts) {
    STORMO_ASSIGN_OR_RETURN(auto workers, make_workers(world, facts));
    return strads::begin_rounds(std::move(workers), schedule_, conflicts_, loop, simulated);
  }

  std::optional<strads::RoundsRun> rounds_;
  strads::BlockValues values_;
};

class LassoProgram final : public NumbersProgram<Lasso, LassoProblem> {
 public:
  explicit LassoProgram(CLI::App& command);
  void check(const StradsJob& job, Wrong& wrong) override;

 protected:
  Result<LassoProblem> read(int processes) override;
  Status write_values(const strads::BlockValues& values) const override {
    return strads::write_npy(a_.out, std::vector{std::ssize(values.common)}, values.common);
  }

 private:
  struct Size {
    std::int64_t rows = 0;
    double elements = 0;  // that are not 0, or in the file
  };
  std::optional<Size> size_of_x(Wrong& wrong) const;
  Status find_conflicts(const strads::SparseColumns& x, int processes);

  std::string x_, y_;            // .npy files; empty: made data
  strads::MadeRegression made_;  // check() takes the seed
  double lambda_ = 0.1;          // of the largest that leaves a coefficient above 0
};

LassoProgram::LassoProgram(CLI::App& command) : NumbersProgram("lasso") {
  loop = {.rounds = 100'000, .tolerance = 1e-6};
  auto* x = command.add_option("--x", x_, "X, a .npy file [rows, columns]");
  command.add_option("--y", y_, "y, a .npy file [rows]");
  a_.add(command, "--rows", made_.rows, "Of made data", from(1, kMostNumber))->excludes(x);
  a_.add(command, "--columns", made_.columns, "Of made data", from(1, kMostNumber))->excludes(x);
  a_.add(command, "--nonzeros", made_.nonzeros, "Of made data: in each column; default: all rows",
         up_to(made_.rows))
      ->excludes(x);
  a_.add(command, "--group", made_.group,
         "Of made data: columns that are correlated with each other", from(1, kMostNumber))
      ->excludes(x);
  a_.add(command, "--correlation", made_.correlation, "Of made data: within a group", from(0, 1))
      ->excludes(x);
  a_.add(command, "--lambda", lambda_,
         "Penalty, as a part of the one at which all coefficients are 0", [](double v) {
           return v > 0 && v < 1 ? "" : "is not between 0 and 1, where all coefficients are 0";
         });
  add_schedule(command, a_, "column", "one column after the other",
               "as many as have an update for\neach column on average, or more where --depth needs "
               "it");
  command.get_option("--round")->excludes(command.get_option("--cyclic"));  // has no effect
  a_.add(command, "--rounds", loop.rounds, "Rounds, at most",
         from(1, std::numeric_limits<std::int64_t>::max()));
  a_.add(command, "--tolerance", loop.tolerance,
         "Ends when the objective is certainly so near to its minimum, as a\npart of it",
         above_zero());
  command.add_option("-o,--out", a_.out, "File for the coefficients, .npy");
  add_common(command, a_, kSeededData);
}

void LassoProgram::check(const StradsJob& job, Wrong& wrong) {
  made_.seed = a_.schedule.seed;
  const std::optional<Size> size = size_of_x(wrong);
  check_words(job, size ? size->rows : 0, check_output_path(a_.out), wrong);
  if (!size) return;
  note(check_memory(fmt::format("{:.3g} elements", size->elements),
                    size->elements * strads::kBytesOfElement * job.here),
       wrong);
}

/// Nothing where it is not known.
std::optional<LassoProgram::Size> LassoProgram::size_of_x(Wrong& wrong) const {
  if (x_.empty() != y_.empty()) {
    wrong.emplace_back("--x and --y: give both, or neither for made data");
    return std::nullopt;
  }
  if (x_.empty()) {
    const std::int64_t nonzeros = made_.nonzeros.value_or(made_.rows);
    return Size{made_.rows, static_cast<double>(nonzeros) * static_cast<double>(made_.columns)};
  }
  const auto x = value_or_wrong("--x", strads::read_npy_shape(x_, 2), wrong),
             y = value_or_wrong("--y", strads::read_npy_shape(y_, 1), wrong);
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

Status LassoProgram::find_conflicts(const strads::SparseColumns& x, int processes) {
  if (!a_.checks()) return {};
  const std::uint64_t memory = launch::available_memory() / static_cast<std::uint64_t>(processes);
  auto pairs = strads::correlated_columns(x, a_.threshold, memory);
  if (!pairs.ok()) {
    return invalid_argument(
        fmt::format("{}, which is all that memory holds; raise --threshold, or give --no-check",
                    pairs.status().message()));
  }
  conflicts_ = std::make_shared<const protocol::Conflicts>(std::move(*pairs));
  return {};
}

Result<LassoProblem> LassoProgram::read(int processes) {
  auto problem =
      x_.empty() ? Result(strads::make_regression(made_)) : strads::read_regression(x_, y_);
  if (!problem.ok()) return problem.status().within("--x and --y");
  const strads::SparseColumns& x = problem->x;
  problem->lambda = lambda_ * strads::largest_lambda(x, problem->y);
  STORMO_RETURN_IF_ERROR(find_conflicts(x, processes));
  heading =
      fmt::format("{} rows, {} columns, {} nonzeros, lambda {:.4g}; {} pairs in conflict", x.rows(),
                  x.columns(), x.nonzeros(), problem->lambda, conflicts_ ? conflicts_->pairs() : 0);
  loop.every = a_.every.value_or(0);
  loop.updates = x.columns();
  schedule_ = a_.schedule_options();
  schedule_.blocks = x.columns();
  if (a_.cyclic) schedule_.rotation = protocol::all_in_turn(x.columns(), 1);
  return problem;
}

class FactoriseProgram final : public NumbersProgram<Factorisation, FactorisationProblem> {
 public:
  explicit FactoriseProgram(CLI::App& command);
  void check(const StradsJob& job, Wrong& wrong) override {
    constexpr std::array kFiles{"W.npy", "H.npy"};
    made_.seed = a_.schedule.seed;
    check_elements(job.here, wrong);
    // of a file the rows are known only when it is read
    check_words(job, ratings_.empty() ? made_.rows : 0, check_output_folder(a_.out, kFiles), wrong);
  }

 protected:
  Result<FactorisationProblem> read(int processes) override;
  Status write_values(const strads::BlockValues& values) const override {
    return strads::write_factors(a_.out, made_.rank, values);
  }

 private:
  void check_elements(int processes, Wrong& wrong) const;
  double factor_bytes(std::int64_t rows, std::int64_t columns, int processes) const {
    return strads::bytes_of_factors(made_.rank, rows, columns,
                                    a_.virtual_workers.value_or(processes));
  }

  std::string ratings_;       // .npy file; empty: made data
  strads::MadeRatings made_;  // check() takes the seed
  double lambda_ = 0.05;
  int inner_ = 1;
  std::int64_t passes_ = 10;
};

FactoriseProgram::FactoriseProgram(CLI::App& command) : NumbersProgram("factorise") {
  auto* ratings = command.add_option(
      "--ratings", ratings_, "The known elements, a .npy file [elements, 3]: row, column, value");
  a_.add(command, "--rows", made_.rows, "Of made data", from(1, kMostNumber))->excludes(ratings);
  a_.add(command, "--columns", made_.columns, "Of made data", from(1, kMostNumber))
      ->excludes(ratings);
  a_.add(command, "--known", made_.known, "Of made data: known elements of each row",
         up_to(made_.columns))
      ->excludes(ratings);
  a_.add(command, "--rank", made_.rank, "Factors", from(1, 10'000));
  a_.add(command, "--lambda", lambda_, "Penalty", above_zero());
  a_.add(command, "--inner", inner_, "Updates of each factor before the next one's turn",
         from(1, 1000));
  a_.add(command, "--passes", passes_, "Passes over all factors", from(1, 1'000'000));
  command.add_option("-o,--out", a_.out, "Folder for W.npy and H.npy");
  add_common(command, a_, kSeededData);
}

void FactoriseProgram::check_elements(int processes, Wrong& wrong) const {
  if (!ratings_.empty()) {
    const auto shape = value_or_wrong("--ratings", strads::read_npy_shape(ratings_, 2), wrong);
    if (!shape) return;
    if (shape->back() != 3 || shape->front() < 1) {
      wrong.emplace_back("--ratings: rows of three numbers are needed: row, column, value");
    }
    const auto known = static_cast<double>(shape->front());
    return note(check_memory(fmt::format("{:.3g} known elements", known),
                             known * strads::kBytesOfRating * processes),
                wrong);
  }
  const auto rows = static_cast<double>(made_.rows), columns = static_cast<double>(made_.columns);
  const double known = rows * static_cast<double>(made_.known);
  const double making = 8.0 * made_.rank * (rows + columns) * processes;  // the matrix's own
  const double factors = std::max(making, factor_bytes(made_.rows, made_.columns, processes));
  note(check_memory(fmt::format("{:.3g} known elements and {} factors", known, made_.rank),
                    known * strads::kBytesOfRating * processes + factors),
       wrong);
}

Result<FactorisationProblem> FactoriseProgram::read(int processes) {
  auto ratings =
      ratings_.empty() ? Result(strads::make_ratings(made_)) : strads::read_ratings(ratings_);
  if (!ratings.ok()) return ratings.status().within("--ratings");
  const std::int64_t rows = ratings->rows, columns = ratings->columns;
  STORMO_RETURN_IF_ERROR(
      check_memory(fmt::format("{} factors of {} rows and {} columns", made_.rank, rows, columns),
                   factor_bytes(rows, columns, processes)));
  heading = fmt::format("{} x {}, {} elements known, rank {}, lambda {}", rows, columns,
                        ratings->known.size(), made_.rank, lambda_);
  const std::int64_t blocks = 2 * std::int64_t{made_.rank}, pass = blocks * inner_;
  loop = {.rounds = passes_ * pass, .every = pass};
  schedule_ = {.blocks = blocks, .rotation = Factorisation::rotation(made_.rank, inner_)};
  return FactorisationProblem{.ratings = std::move(*ratings),
                              .rank = made_.rank,
                              .lambda = lambda_,
                              .seed = a_.schedule.seed};
}

/// A subcommand, whose words are those of the program.
template <class Program>
void add_program(CLI::App& strads, Invocation& invocation, const char* name, const char* help,
                 const char* examples) {
  CLI::App* command = strads.add_subcommand(name, help);
  command->footer(examples);
  const auto program = std::make_shared<Program>(*command);
  command->callback([program, &invocation] { invocation.exit_code = run_program(*program); });
}

}  // namespace

void add_numbers_programs(CLI::App& strads, Invocation& invocation) {
  add_program<LassoProgram>(strads, invocation, "lasso", "Regression with few nonzero coefficients",
                            kLassoExamples);
  add_program<FactoriseProgram>(strads, invocation, "factorise",
                                "Factors of a matrix with unknown elements", kFactoriseExamples);
}

}  // namespace stormo::cli
