#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include <cli/output_path.h>
#include <cli/strads/run.h>
#include <stormo/strads/data_files.h>
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

struct FactoriseArguments {
  StradsArguments common;
  std::string ratings;       // .npy file; empty: made data
  strads::MadeRatings made;  // but for the seed
  double lambda = 0.05;
  int inner = 1;
  std::int64_t passes = 10;
};

void check_factorise(const FactoriseArguments& a, std::vector<std::string>& wrong) {
  const Need need = from(1, std::max<std::int64_t>(a.made.columns, 1));
  if (a.ratings.empty() && !need.holds(static_cast<double>(a.made.known))) {
    wrong.push_back(fmt::format("--known: {} {}", a.made.known, need.otherwise));
  }
  if (!a.ratings.empty()) {
    const auto shape = shape_of("--ratings", a.ratings, 2, wrong);
    if (shape && (shape->back() != 3 || shape->front() < 1)) {
      wrong.emplace_back("--ratings: rows of three numbers are needed: row, column, value");
    }
  }
  // of a file the rows are known only when it is read
  check_common(a.common, nullptr, a.ratings.empty() ? a.made.rows : 0, wrong);
  constexpr std::array kFiles{"W.npy", "H.npy"};
  const Status writable =
      a.common.out.empty() ? Status() : check_output_folder(a.common.out, kFiles);
  if (!writable.ok()) wrong.push_back("--out " + writable.message());
}

/// W, and H of each worker, and what is written of them.
double factor_bytes(const FactoriseArguments& a, std::int64_t rows, std::int64_t columns,
                    int processes) {
  const int workers = a.common.virtual_workers.value_or(processes);
  return 8.0 * a.made.rank *
         (3 * static_cast<double>(rows) + 2 * static_cast<double>(columns) * workers);
}

Status check_elements(const FactoriseArguments& a, int processes) {
  constexpr double kBytes = 64;  // of an element: read, of all rows, and in this rank's
  if (!a.ratings.empty()) {
    std::vector<std::string> said_by_check;
    const auto shape = shape_of("--ratings", a.ratings, 2, said_by_check);
    if (!shape) return {};
    const auto known = static_cast<double>(shape->front());
    return check_memory(fmt::format("{:.3g} known elements", known), known * kBytes * processes);
  }
  const auto rows = static_cast<double>(a.made.rows), columns = static_cast<double>(a.made.columns);
  const double known = rows * static_cast<double>(a.made.known);
  const double making = 8.0 * a.made.rank * (rows + columns) * processes;  // the matrix's own
  const double factors = factor_bytes(a, a.made.rows, a.made.columns, processes);
  return check_memory(fmt::format("{:.3g} known elements and {} factors", known, a.made.rank),
                      known * kBytes * processes + std::max(making, factors));
}

Result<StradsProgram> make_program(const FactoriseArguments& a, int processes) {
  strads::MadeRatings made = a.made;
  made.seed = a.common.seed;
  auto ratings =
      a.ratings.empty() ? Result(strads::make_ratings(made)) : strads::read_ratings(a.ratings);
  if (!ratings.ok()) return ratings.status().within("--ratings");
  const std::int64_t rows = ratings->rows, columns = ratings->columns;
  STORMO_RETURN_IF_ERROR(
      check_memory(fmt::format("{} factors of {} rows and {} columns", made.rank, rows, columns),
                   factor_bytes(a, rows, columns, processes)));
  const auto problem = std::make_shared<const FactorisationProblem>(
      FactorisationProblem{.ratings = std::move(*ratings),
                           .rank = made.rank,
                           .lambda = a.lambda,
                           .seed = a.common.seed});
  const std::int64_t pass = 2 * std::int64_t{made.rank} * a.inner;
  return StradsProgram{
      .heading = fmt::format("{} x {}, {} elements known, rank {}, lambda {}", rows, columns,
                             problem->ratings.known.size(), made.rank, a.lambda),
      .schedule = {.blocks = 2 * std::int64_t{made.rank},
                   .rotation = Factorisation::rotation(made.rank, a.inner)},
      .conflicts = nullptr,
      .loop = {.rounds = a.passes * pass, .every = pass},
      .worker = [problem](int worker,
                          int workers) -> Result<std::unique_ptr<strads::BlockProgram>> {
        STORMO_ASSIGN_OR_RETURN(auto part, Factorisation::make(*problem, worker, workers));
        return std::unique_ptr<strads::BlockProgram>(std::move(part));
      },
      .facts = [problem] { return strads::identity_of(problem->ratings); },
      .write =
          [&a](const strads::BlockValues& values) {
            return strads::write_factors(a.common.out, a.made.rank, values);
          }};
}

}  // namespace

void add_factorise(CLI::App& strads, Invocation& invocation) {
  CLI::App* command =
      strads.add_subcommand("factorise", "Factors of a matrix with unknown elements");
  command->footer(kFactoriseExamples);
  const auto a = std::make_shared<FactoriseArguments>();
  CountingOptions& o = a->common.counting;
  auto* ratings = command->add_option(
      "--ratings", a->ratings, "The known elements, a .npy file [elements, 3]: row, column, value");
  o.add(*command, "--rows", a->made.rows, "Of made data", from(1, kMostNumber))->excludes(ratings);
  o.add(*command, "--columns", a->made.columns, "Of made data", from(1, kMostNumber))
      ->excludes(ratings);
  o.add(*command, "--known", a->made.known, "Of made data: known elements of each row")
      ->excludes(ratings);
  o.add(*command, "--rank", a->made.rank, "Factors", from(1, 10'000));
  o.add(*command, "--lambda", a->lambda, "Penalty", above_zero());
  o.add(*command, "--inner", a->inner, "Updates of each factor before the next one's turn",
        from(1, 1000));
  o.add(*command, "--passes", a->passes, "Passes over all factors", from(1, 1'000'000));
  command->add_option("-o,--out", a->common.out, "Folder for W.npy and H.npy");
  add_common(*command, a->common, kSeededData);
  command->callback([a, &invocation] {
    const StradsMaker maker{.name = "factorise",
                            .check = [&](auto& wrong) { check_factorise(*a, wrong); },
                            .check_memory = [&](int n) { return check_elements(*a, n); },
                            .make = [&](int n) { return make_program(*a, n); }};
    invocation.exit_code = run_program(a->common, maker, invocation);
  });
}

}  // namespace stormo::cli
