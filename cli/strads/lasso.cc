#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <utility>

#include <cli/strads/program.h>
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

class LassoProgram final : public StradsProgram {
 public:
  LassoProgram(const LassoArguments& a, LassoProblem problem,
               std::shared_ptr<const protocol::Conflicts> conflicts)
      : a_(a),
        problem_(std::move(problem)),
        columns_(problem_.x.columns()),
        conflicts_(std::move(conflicts)) {}

  std::string heading() const override { return heading_; }
  Result<protocol::Scheduler> scheduler(int workers) const override {
    return protocol::Scheduler::make(
        schedule_options(a_.schedule, columns_, workers, a_.common.seed, /*in_turn=*/1),
        conflicts_);
  }
  Result<std::unique_ptr<strads::BlockProgram>> worker(int worker, int workers) const override {
    STORMO_ASSIGN_OR_RETURN(auto lasso, Lasso::make(problem_, worker, workers));
    return std::unique_ptr<strads::BlockProgram>(std::move(lasso));
  }
  std::string facts() const override {
    std::uint64_t hash = hash_of({});
    for (std::int64_t c = 0; c < columns_; ++c) {
      const auto column = problem_.x.column(c);
      hash = hash_of(std::array{static_cast<double>(column.size())}, hash);
      for (const auto& [row, value] : column) {
        hash = hash_of(std::array{static_cast<double>(row), value}, hash);
      }
    }
    return fmt::format("X of {} rows and {} columns, hash {:016x}\ny of hash {:016x}",
                       problem_.x.rows(), columns_, hash, hash_of(problem_.y));
  }
  void free_data() override { problem_ = {.x = strads::SparseColumns(0), .y = {}}; }

  StradsLoop loop() const override {
    return {.rounds = a_.rounds,
            .every = a_.schedule.every.value_or(0),
            .updates = columns_,
            .tolerance = a_.tolerance};
  }
  StradsValues values(const strads::BlockProgram& worker) const override {
    return {.rows = {}, .common = dynamic_cast<const Lasso&>(worker).coefficients()};
  }
  Status write(const StradsValues& values) const override {
    if (a_.common.out.empty()) return {};
    return strads::write_npy(a_.common.out, std::vector{std::ssize(values.common)}, values.common);
  }

 private:
  const LassoArguments& a_;
  LassoProblem problem_;
  std::int64_t columns_;
  std::shared_ptr<const protocol::Conflicts> conflicts_;
  std::string heading_ = fmt::format(
      "{} rows, {} columns, {} nonzeros, lambda {:.4g}; {} pairs in conflict", problem_.x.rows(),
      columns_, problem_.x.nonzeros(), problem_.lambda, conflicts_ ? conflicts_->pairs() : 0);
};

}  // namespace

Result<std::unique_ptr<StradsProgram>> make_program(const LassoArguments& a, int processes) {
  auto problem =
      a.x.empty() ? Result(strads::make_regression(made_regression(a))) : read_problem(a);
  if (!problem.ok()) return problem.status();
  problem->lambda = a.lambda * strads::largest_lambda(problem->x, problem->y);
  std::shared_ptr<const protocol::Conflicts> conflicts;
  if (a.schedule.checks()) {
    const double most = available_bytes() / processes / strads::kBytesOfConflict;
    auto pairs = strads::correlated_columns(problem->x, a.schedule.threshold,
                                            static_cast<std::int64_t>(std::min(most, 1e18)));
    if (!pairs.ok()) {
      return invalid_argument(
          fmt::format("{}, which is all that memory holds; raise --threshold, or give --no-check",
                      pairs.status().message()));
    }
    conflicts = std::make_shared<const protocol::Conflicts>(std::move(*pairs));
  }
  return std::unique_ptr<StradsProgram>(
      std::make_unique<LassoProgram>(a, std::move(*problem), std::move(conflicts)));
}

}  // namespace stormo::cli
