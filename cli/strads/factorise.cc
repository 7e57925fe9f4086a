#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include <cli/output_path.h>
#include <cli/strads/numbers_program.h>
#include <stormo/strads/factorisation.h>
#include <stormo/strads/made_data.h>

namespace stormo::cli {
namespace {

using strads::Factorisation;
using strads::FactorisationProblem;

constexpr const char* kFactoriseExamples =
    "  stormo strads factorise --ratings ratings.npy --rank 16 --out factors -n 4\n"
    "  stormo strads factorise --virtual 8 --compute 1ms\n"
    "\n"
    "Finds W and H with W H' near to the known elements of a matrix, factor by factor (CCD++).\n"
    "Every rank has rows of the matrix. Exit codes as of 'stormo strads lasso'. See "
    "docs/strads.md.";

class FactoriseProgram final : public NumbersProgram {
 public:
  static constexpr const char* kName = "factorise";
  explicit FactoriseProgram(CLI::App& command);
  void check(const StradsJob& job, Wrong& wrong) override;

 protected:
  Result<Made> make(int processes) override;
  Status write_values(const strads::BlockValues& values) const override {
    return strads::write_factors(a_.out, made_.rank, values);
  }

 private:
  void check_elements(int processes, Wrong& wrong) const;
  /// W, and H of each worker, and what is written of them.
  double factor_bytes(std::int64_t rows, std::int64_t columns, int processes) const {
    const int workers = a_.virtual_workers.value_or(processes);
    return 8.0 * made_.rank *
           (3 * static_cast<double>(rows) + 2 * static_cast<double>(columns) * workers);
  }

  std::string ratings_;       // .npy file; empty: made data
  strads::MadeRatings made_;  // check() takes the seed
  double lambda_ = 0.05;
  int inner_ = 1;
  std::int64_t passes_ = 10;
};

FactoriseProgram::FactoriseProgram(CLI::App& command) : NumbersProgram(kName) {
  auto* ratings = command.add_option(
      "--ratings", ratings_, "The known elements, a .npy file [elements, 3]: row, column, value");
  a_.add(command, "--rows", made_.rows, "Of made data", from(1, kMostNumber))->excludes(ratings);
  a_.add(command, "--columns", made_.columns, "Of made data", from(1, kMostNumber))
      ->excludes(ratings);
  a_.add(command, "--known", made_.known, "Of made data: known elements of each row")
      ->excludes(ratings);
  a_.add(command, "--rank", made_.rank, "Factors", from(1, 10'000));
  a_.add(command, "--lambda", lambda_, "Penalty", above_zero());
  a_.add(command, "--inner", inner_, "Updates of each factor before the next one's turn",
         from(1, 1000));
  a_.add(command, "--passes", passes_, "Passes over all factors", from(1, 1'000'000));
  command.add_option("-o,--out", a_.out, "Folder for W.npy and H.npy");
  add_common(command, a_, kSeededData);
}

void FactoriseProgram::check(const StradsJob& job, Wrong& wrong) {
  made_.seed = a_.schedule.seed;
  check_elements(job.here, wrong);
  // of a file the rows are known only when it is read
  check_common(a_, job.workers, ratings_.empty() ? made_.rows : 0, wrong);
  constexpr std::array kFiles{"W.npy", "H.npy"};
  const Status writable = a_.out.empty() ? Status() : check_output_folder(a_.out, kFiles);
  if (!writable.ok()) wrong.push_back("--out " + writable.message());
}

void FactoriseProgram::check_elements(int processes, Wrong& wrong) const {
  constexpr double kBytes = 64;  // of an element: read, of all rows, and in this rank's
  if (!ratings_.empty()) {
    const auto shape = shape_of("--ratings", ratings_, 2, wrong);
    if (!shape) return;
    if (shape->back() != 3 || shape->front() < 1) {
      wrong.emplace_back("--ratings: rows of three numbers are needed: row, column, value");
    }
    const auto known = static_cast<double>(shape->front());
    return check_memory(fmt::format("{:.3g} known elements", known), known * kBytes * processes,
                        wrong);
  }
  const Need need = from(1, std::max<std::int64_t>(made_.columns, 1));
  if (!need.holds(static_cast<double>(made_.known))) {
    wrong.push_back(fmt::format("--known: {} {}", made_.known, need.otherwise));
  }
  const auto rows = static_cast<double>(made_.rows), columns = static_cast<double>(made_.columns);
  const double known = rows * static_cast<double>(made_.known);
  const double making = 8.0 * made_.rank * (rows + columns) * processes;  // the matrix's own
  check_memory(fmt::format("{:.3g} known elements and {} factors", known, made_.rank),
               known * kBytes * processes +
                   std::max(making, factor_bytes(made_.rows, made_.columns, processes)),
               wrong);
}

Result<FactoriseProgram::Made> FactoriseProgram::make(int processes) {
  auto ratings =
      ratings_.empty() ? Result(strads::make_ratings(made_)) : strads::read_ratings(ratings_);
  if (!ratings.ok()) return ratings.status().within("--ratings");
  const std::int64_t rows = ratings->rows, columns = ratings->columns;
  Wrong wrong;
  check_memory(fmt::format("{} factors of {} rows and {} columns", made_.rank, rows, columns),
               factor_bytes(rows, columns, processes), wrong);
  STORMO_RETURN_IF_ERROR(as_status(wrong));
  heading = fmt::format("{} x {}, {} elements known, rank {}, lambda {}", rows, columns,
                        ratings->known.size(), made_.rank, lambda_);
  const std::int64_t blocks = 2 * std::int64_t{made_.rank}, pass = blocks * inner_;
  loop = {.rounds = passes_ * pass, .every = pass};
  const auto problem = std::make_shared<const FactorisationProblem>(
      FactorisationProblem{.ratings = std::move(*ratings),
                           .rank = made_.rank,
                           .lambda = lambda_,
                           .seed = a_.schedule.seed});
  return made<Factorisation>(
      problem, {.blocks = blocks, .rotation = Factorisation::rotation(made_.rank, inner_)});
}

}  // namespace

void add_factorise(CLI::App& strads, Invocation& invocation) {
  add_program<FactoriseProgram>(strads, invocation, "Factors of a matrix with unknown elements",
                                kFactoriseExamples);
}

}  // namespace stormo::cli
