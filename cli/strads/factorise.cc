#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <utility>

#include <cli/strads/program.h>
#include <stormo/strads/factorisation.h>
#include <stormo/strads/npy_values.h>

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

class FactoriseProgram final : public StradsProgram {
 public:
  FactoriseProgram(const FactoriseArguments& a, FactorisationProblem problem)
      : a_(a), problem_(std::move(problem)) {}

  std::string heading() const override { return heading_; }
  Result<protocol::Scheduler> scheduler(int workers) const override {
    return protocol::Scheduler::make({.blocks = 2 * std::int64_t{a_.rank},
                                      .workers = workers,
                                      .rotation = Factorisation::rotation(a_.rank, a_.inner)});
  }
  Result<std::unique_ptr<strads::BlockProgram>> worker(int worker, int workers) const override {
    STORMO_ASSIGN_OR_RETURN(auto part, Factorisation::make(problem_, worker, workers));
    return std::unique_ptr<strads::BlockProgram>(std::move(part));
  }
  std::string facts() const override {
    std::uint64_t hash = hash_of({});
    for (const auto& [row, column, value] : problem_.ratings.known) {
      const std::array numbers{static_cast<double>(row), static_cast<double>(column), value};
      hash = hash_of(numbers, hash);
    }
    return fmt::format("{} known elements of {} rows and {} columns, hash {:016x}",
                       problem_.ratings.known.size(), problem_.ratings.rows,
                       problem_.ratings.columns, hash);
  }
  void free_data() override { problem_.ratings = {}; }

  StradsLoop loop() const override {
    const std::int64_t pass = 2 * std::int64_t{a_.rank} * a_.inner;
    return {.rounds = a_.passes * pass, .every = pass};
  }
  StradsValues values(const strads::BlockProgram& worker) const override {
    const auto& part = dynamic_cast<const Factorisation&>(worker);
    return {.rows = part.w(), .common = part.h()};
  }
  Status write(const StradsValues& values) const override {
    if (a_.common.out.empty()) return {};
    std::error_code failed;
    std::filesystem::create_directory(a_.common.out, failed);
    if (failed) return io_error("cannot make the folder '" + a_.common.out + "'");
    STORMO_RETURN_IF_ERROR(write_table("W.npy", values.rows));
    return write_table("H.npy", values.common);
  }

 private:
  Status write_table(const char* name, const std::vector<double>& table) const {
    const std::vector<std::int64_t> shape{std::ssize(table) / a_.rank, a_.rank};
    return strads::write_npy(a_.common.out + "/" + name, shape, table);
  }

  const FactoriseArguments& a_;
  FactorisationProblem problem_;
  std::string heading_ = fmt::format("{} x {}, {} elements known, rank {}, lambda {}",
                                     problem_.ratings.rows, problem_.ratings.columns,
                                     problem_.ratings.known.size(), problem_.rank, problem_.lambda);
};

}  // namespace

Result<std::unique_ptr<StradsProgram>> make_program(const FactoriseArguments& a, int processes) {
  auto ratings =
      a.ratings.empty() ? Result(strads::make_ratings(made_ratings(a))) : read_ratings(a.ratings);
  if (!ratings.ok()) return ratings.status();
  STORMO_RETURN_IF_ERROR(check_factors(a, ratings->rows, ratings->columns, processes));
  return std::unique_ptr<StradsProgram>(
      std::make_unique<FactoriseProgram>(a, FactorisationProblem{.ratings = std::move(*ratings),
                                                                 .rank = a.rank,
                                                                 .lambda = a.lambda,
                                                                 .seed = a.common.seed}));
}

}  // namespace stormo::cli
