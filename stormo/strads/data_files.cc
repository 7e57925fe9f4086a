#include <stormo/strads/data_files.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <utility>

#include <stormo/base/rng.h>
#include <stormo/strads/npy_values.h>

namespace stormo::strads {

Result<LassoProblem> read_regression(const std::string& x, const std::string& y) {
  STORMO_ASSIGN_OR_RETURN(const NpyValues table, read_npy(x));
  STORMO_ASSIGN_OR_RETURN(NpyValues right, read_npy(y));
  const auto finite = [](double value) { return std::isfinite(value); };
  if (!std::ranges::all_of(table.values, finite) || !std::ranges::all_of(right.values, finite)) {
    return invalid_argument("a value is no finite number");
  }
  const auto rows = static_cast<std::size_t>(table.shape[0]);
  const auto columns = static_cast<std::size_t>(table.shape[1]);
  LassoProblem out{.x = SparseColumns(table.shape[0]), .y = std::move(right.values)};
  std::vector<SparseColumns::Entry> column;
  for (std::size_t j = 0; j < columns; ++j) {
    column.clear();
    for (std::size_t i = 0; i < rows; ++i) {
      const double value = table.values[i * columns + j];
      if (value != 0) column.push_back({static_cast<std::int32_t>(i), value});
    }
    out.x.add_column(column);
  }
  return out;
}

Result<Ratings> read_ratings(const std::string& path) {
  STORMO_ASSIGN_OR_RETURN(const NpyValues file, read_npy(path));
  Ratings out;
  const auto is_index = [](double value) {
    return value >= 0 && value < std::numeric_limits<std::int32_t>::max() &&
           value == std::floor(value);
  };
  for (std::size_t i = 0; i < file.values.size(); i += 3) {
    const double row = file.values[i], column = file.values[i + 1], value = file.values[i + 2];
    if (!is_index(row) || !is_index(column) || !std::isfinite(value)) {
      return invalid_argument(fmt::format(
          "line {} of '{}' is no row, column (whole numbers from 0) and value", i / 3, path));
    }
    out.known.push_back({static_cast<std::int32_t>(row), static_cast<std::int32_t>(column), value});
    out.rows = std::max<std::int64_t>(out.rows, out.known.back().row + 1);
    out.columns = std::max<std::int64_t>(out.columns, out.known.back().column + 1);
  }
  return out;
}

Status write_factors(const std::string& folder, std::int64_t rank, const BlockValues& values) {
  std::error_code failed;
  std::filesystem::create_directory(folder, failed);
  if (failed) return io_error("cannot make the folder '" + folder + "'");
  for (const auto& [name, table] :
       {std::pair{"/W.npy", &values.rows}, {"/H.npy", &values.common}}) {
    const std::vector<std::int64_t> shape{std::ssize(*table) / rank, rank};
    STORMO_RETURN_IF_ERROR(write_npy(folder + name, shape, *table));
  }
  return {};
}

std::uint64_t hash_of(std::span<const double> values, std::uint64_t basis) {
  return fnv1a({reinterpret_cast<const char*>(values.data()), values.size_bytes()}, basis);
}

std::vector<comm::Fact> identity_of(const LassoProblem& problem) {
  std::uint64_t hash = hash_of({});
  for (std::int64_t c = 0; c < problem.x.columns(); ++c) {
    const auto column = problem.x.column(c);
    hash = hash_of(std::array{static_cast<double>(column.size())}, hash);
    for (const auto& [row, value] : column) {
      hash = hash_of(std::array{static_cast<double>(row), value}, hash);
    }
  }
  return {{"X", fmt::format("{} rows and {} columns, hash {:016x}", problem.x.rows(),
                            problem.x.columns(), hash)},
          {"y", fmt::format("hash {:016x}", hash_of(problem.y))}};
}

std::vector<comm::Fact> identity_of(const FactorisationProblem& problem) {
  const Ratings& ratings = problem.ratings;
  std::uint64_t hash = hash_of({});
  for (const auto& [row, column, value] : ratings.known) {
    hash = hash_of(std::array{static_cast<double>(row), static_cast<double>(column), value}, hash);
  }
  return {{"ratings", fmt::format("{} of {} rows and {} columns, hash {:016x}",
                                  ratings.known.size(), ratings.rows, ratings.columns, hash)}};
}

}  // namespace stormo::strads
