#include <cli/strads/options.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <cli/output_path.h>
#include <cli/simulate/options.h>
#include <stormo/base/units.h>
#include <stormo/launch/host_spec.h>
#include <stormo/launch/process/available_memory.h>
#include <stormo/strads/npy_values.h>
#include <stormo/strads/sparse_columns.h>

namespace stormo::cli {
namespace {

using Wrong = std::vector<std::string>;

constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();

void need(bool holds, std::string text, Wrong& wrong) {
  if (!holds) wrong.push_back(std::move(text));
}

void need_range(const char* flag, std::int64_t value, std::int64_t least, std::int64_t most,
                Wrong& wrong) {
  if (value >= least && value <= most) return;
  wrong.push_back(fmt::format("{}: {} is not from {} to {}", flag, value, least, most));
}

void need_above_zero(const char* flag, double value, Wrong& wrong) {
  need(value > 0 && std::isfinite(value),
       fmt::format("{}: {} is not a number greater than 0", flag, value), wrong);
}

/// Shape of an array with so many dimensions; nothing, and a line in `wrong`, when it has others.
std::optional<std::vector<std::int64_t>> shape_of(const char* flag, const std::string& path,
                                                  std::size_t dimensions, Wrong& wrong) {
  const auto shape = strads::read_npy_shape(path);
  if (!shape.ok()) {
    wrong.push_back(fmt::format("{}: {}", flag, shape.status().message()));
  } else if (shape->size() != dimensions) {
    wrong.push_back(
        fmt::format("{}: '{}' has {} dimensions, not {}", flag, path, shape->size(), dimensions));
  } else {
    return *shape;
  }
  return std::nullopt;
}

int most_workers(const StradsArguments& a, Wrong& wrong) {
  int ranks = 0;
  for (const launch::HostShare& share : place_of_ranks(a.launch, wrong)) ranks += share.ranks;
  return std::max(a.virtual_workers.value_or(ranks), 1);
}

/// OK when this host has memory for them.
Status need_memory(const std::string& what, double bytes) {
  const double available = available_bytes();
  if (bytes <= available) return {};
  return invalid_argument(
      fmt::format("{} need {:.3g} GB on this host, but {:.3g} GB of memory are available", what,
                  bytes / 1e9, available / 1e9));
}

/// W, and H of each worker, and what is written of them.
double factor_bytes(const FactoriseArguments& a, double rows, double columns, int processes) {
  const int workers = a.common.virtual_workers.value_or(processes);
  return 8.0 * a.rank * (3 * rows + 2 * columns * workers);
}

/// Of X; 0: not known, and there is a line in `wrong`.
std::int64_t lasso_rows(const LassoArguments& a, Wrong& wrong) {
  if (a.x.empty() && a.y.empty()) return a.rows;
  if (a.x.empty() || a.y.empty()) {
    wrong.emplace_back("--x and --y: give both, or neither for made data");
    return 0;
  }
  const auto x = shape_of("--x", a.x, 2, wrong);
  const auto y = shape_of("--y", a.y, 1, wrong);
  if (!x || !y) return 0;
  const std::int64_t rows = x->front(), columns = x->back();
  need(rows == y->front(), fmt::format("--y: it has {} rows, and --x {}", y->front(), rows), wrong);
  need(rows >= 1 && columns >= 1 && rows <= kMost && columns <= kMost,
       fmt::format("--x: {} rows and {} columns are not from 1 to {}", rows, columns, kMost),
       wrong);
  return rows;
}

/// Of the matrix; 0: known only when the file is read, or not at all.
std::int64_t factorise_rows(const FactoriseArguments& a, Wrong& wrong) {
  if (a.ratings.empty()) return a.rows;
  const auto shape = shape_of("--ratings", a.ratings, 2, wrong);
  need(!shape || (shape->back() == 3 && shape->front() >= 1),
       "--ratings: rows of three numbers are needed: row, column, value", wrong);
  return 0;
}

}  // namespace

void check_common(const StradsArguments& a, std::int64_t rows, Wrong& wrong) {
  constexpr int kMostVirtual = 1024;
  if (a.virtual_workers) {
    need_range("--virtual", *a.virtual_workers, 1, kMostVirtual, wrong);
    need(!a.launch.wants_launch(), "--virtual: workers are simulated in one process; no -n or -H",
         wrong);
    if (*a.virtual_workers >= 1 && *a.virtual_workers <= kMostVirtual) {
      (void)slowness_of(a.stragglers, *a.virtual_workers, wrong);
    }
  }
  for (const auto& [flag, text] : {std::pair{"--compute", a.compute}, {"--latency", a.latency}}) {
    const auto duration = parse_duration(text);
    if (!duration.ok()) {
      wrong.push_back(fmt::format("{}: {}", flag, duration.status().message()));
    } else {
      need(*duration <= protocol::kMostVirtualTime,
           fmt::format("{}: {} is over 30 years", flag, text), wrong);
    }
  }
  need(a.jitter >= 0 && a.jitter < 1,
       fmt::format("--jitter: {} is not from 0 to less than 1", a.jitter), wrong);
  const Status rows_left = strads::rows_of(0, most_workers(a, wrong), rows).status();
  need(rows == 0 || rows_left.ok(), rows_left.message(), wrong);
  (void)to_launch_options(a.launch, wrong);
}

void check_schedule(const ScheduleArguments& a, Wrong& wrong) {
  need_range("--round", a.round, 1, kMost, wrong);
  need_range("--depth", a.depth, 0, 1024, wrong);
  need(a.threshold > 0 && a.threshold <= 1,
       fmt::format("--threshold: {} is not above 0 and at most 1", a.threshold), wrong);
  need_above_zero("--base-weight", a.base_weight, wrong);
  need(!(a.base_weight > protocol::kMostBlockWeight),
       fmt::format("--base-weight: {} is above {}", a.base_weight, protocol::kMostBlockWeight),
       wrong);
  if (a.every) {
    need_range("--every", *a.every, 1, std::numeric_limits<std::int64_t>::max(), wrong);
  }
  need(!a.cyclic || a.depth == 0, "--depth: a cycle has one round in flight; give 0", wrong);
}

void check_lasso(const LassoArguments& a, Wrong& wrong) {
  if (a.x.empty()) {
    need_range("--rows", a.rows, 1, kMost, wrong);
    need_range("--columns", a.columns, 1, kMost, wrong);
    need_range("--nonzeros", a.nonzeros.value_or(1), 1, std::max<std::int64_t>(a.rows, 1), wrong);
    need_range("--group", a.group, 1, kMost, wrong);
    need(a.correlation >= 0 && a.correlation <= 1,
         fmt::format("--correlation: {} is not from 0 to 1", a.correlation), wrong);
  }
  need(a.lambda > 0 && a.lambda < 1,
       fmt::format("--lambda: {} is not between 0 and 1, where all coefficients are 0", a.lambda),
       wrong);
  check_schedule(a.schedule, wrong);
  need_range("--rounds", a.rounds, 1, std::numeric_limits<std::int64_t>::max(), wrong);
  need_above_zero("--tolerance", a.tolerance, wrong);
  check_common(a.common, lasso_rows(a, wrong), wrong);
  if (!a.common.out.empty()) {
    const Status writable = check_output_path(a.common.out);
    need(writable.ok(), "--out " + writable.message(), wrong);
  }
}

void check_factorise(const FactoriseArguments& a, Wrong& wrong) {
  if (a.ratings.empty()) {
    need_range("--rows", a.rows, 1, kMost, wrong);
    need_range("--columns", a.columns, 1, kMost, wrong);
    need_range("--known", a.known, 1, std::max<std::int64_t>(a.columns, 1), wrong);
  }
  need_range("--rank", a.rank, 1, 10'000, wrong);
  need_range("--inner", a.inner, 1, 1000, wrong);
  need_range("--passes", a.passes, 1, 1'000'000, wrong);
  need_above_zero("--lambda", a.lambda, wrong);
  check_common(a.common, factorise_rows(a, wrong), wrong);
  if (!a.common.out.empty()) {
    constexpr std::array kFiles{"W.npy", "H.npy"};
    const Status writable = check_output_folder(a.common.out, kFiles);
    need(writable.ok(), "--out " + writable.message(), wrong);
  }
}

double available_bytes() { return static_cast<double>(launch::available_memory()); }

int ranks_here(const LaunchFlags& flags) {
  Wrong said_by_check;
  int ranks = 0;
  for (const launch::HostShare& share : place_of_ranks(flags, said_by_check)) {
    if (launch::is_this_host(share.name)) ranks += share.ranks;
  }
  return ranks;
}

Status check_memory(const LassoArguments& a, int processes) {
  constexpr double kBytes = 48;  // of an element: read, of all columns, and in this rank's rows
  auto elements = static_cast<double>(a.nonzeros.value_or(a.rows)) * static_cast<double>(a.columns);
  if (!a.x.empty()) {
    const auto shape = strads::read_npy_shape(a.x);
    if (!shape.ok() || shape->size() != 2) return {};  // said by check_lasso()
    elements = static_cast<double>(shape->front()) * static_cast<double>(shape->back());
  }
  return need_memory(fmt::format("{:.3g} elements", elements), elements * kBytes * processes);
}

Status check_memory(const FactoriseArguments& a, int processes) {
  constexpr double kBytes = 64;  // of an element: read, of all rows, and in this rank's
  if (!a.ratings.empty()) {
    const auto shape = strads::read_npy_shape(a.ratings);
    if (!shape.ok() || shape->empty()) return {};  // said by check_factorise()
    const auto known = static_cast<double>(shape->front());
    return need_memory(fmt::format("{:.3g} known elements", known), known * kBytes * processes);
  }
  const auto rows = static_cast<double>(a.rows), columns = static_cast<double>(a.columns);
  const double known = rows * static_cast<double>(a.known);
  const double making = 8.0 * a.rank * (rows + columns) * processes;  // the matrix's own factors
  return need_memory(
      fmt::format("{:.3g} known elements and {} factors", known, a.rank),
      known * kBytes * processes + std::max(making, factor_bytes(a, rows, columns, processes)));
}

Status check_factors(const FactoriseArguments& a, std::int64_t rows, std::int64_t columns,
                     int processes) {
  const double bytes =
      factor_bytes(a, static_cast<double>(rows), static_cast<double>(columns), processes);
  return need_memory(fmt::format("{} factors of {} rows and {} columns", a.rank, rows, columns),
                     bytes);
}

std::string options_text(const LassoArguments& a) {
  std::string text = fmt::format(
      "stormo strads lasso\n--seed {}\n--lambda {}\n--round {}\n--threshold {}\n--depth {}\n"
      "--base-weight {}\n--no-priority {}\n--no-check {}\n--cyclic {}\n--rounds {}\n--every {}\n"
      "--tolerance {}",
      a.common.seed, a.lambda, a.schedule.round, a.schedule.threshold, a.schedule.depth,
      a.schedule.base_weight, a.schedule.no_priority, a.schedule.no_check, a.schedule.cyclic,
      a.rounds, a.schedule.every.value_or(0), a.tolerance);
  if (!a.x.empty()) return text + "\n--x and --y";
  return text + fmt::format(
                    "\nmade data\n--rows {}\n--columns {}\n--nonzeros {}\n--group {}\n"
                    "--correlation {}",
                    a.rows, a.columns, a.nonzeros.value_or(a.rows), a.group, a.correlation);
}

std::string options_text(const FactoriseArguments& a) {
  std::string text = fmt::format(
      "stormo strads factorise\n--seed {}\n--rank {}\n--lambda {}\n--inner {}\n--passes {}",
      a.common.seed, a.rank, a.lambda, a.inner, a.passes);
  if (!a.ratings.empty()) return text + "\n--ratings";
  return text + fmt::format("\nmade data\n--rows {}\n--columns {}\n--known {}", a.rows, a.columns,
                            a.known);
}

void check_strads_train(const StradsTrainArguments& a, Wrong& wrong) {
  check_schedule(a.schedule, wrong);
  need_range("--rounds", a.rounds.value_or(1), 1, kMost, wrong);
  need_range("--units", a.units, 1, kMost, wrong);
  need(!a.resume || !a.overwrite,
       "--resume goes on from checkpoints, --overwrite replaces them; give one", wrong);
  check_common(a.common, 0, wrong);
}

protocol::ScheduleOptions schedule_options(const ScheduleArguments& a, std::int64_t blocks,
                                           int workers, std::uint64_t seed, std::int64_t in_turn) {
  protocol::ScheduleOptions options{.blocks = blocks,
                                    .workers = workers,
                                    .round = a.round,
                                    .depth = a.depth,
                                    .priority = !a.no_priority,
                                    .base_weight = a.base_weight,
                                    .seed = seed};
  for (std::int64_t b = 0; a.cyclic && b < blocks; ++b) {
    if (b % in_turn == 0) options.rotation.emplace_back();
    options.rotation.back().push_back(b);
  }
  return options;
}

protocol::VirtualWorkers virtual_cluster(const StradsArguments& a) {
  std::vector<std::string> none;
  return {.compute = parse_duration(a.compute).value(),
          .jitter = a.jitter,
          .slowness = slowness_of(a.stragglers, *a.virtual_workers, none),
          .latency = parse_duration(a.latency).value(),
          .seed = a.seed};
}

strads::MadeRegression made_regression(const LassoArguments& a) {
  return {.rows = a.rows,
          .columns = a.columns,
          .nonzeros = a.nonzeros.value_or(a.rows),
          .group = a.group,
          .correlation = a.correlation,
          .seed = a.common.seed};
}

strads::MadeRatings made_ratings(const FactoriseArguments& a) {
  return {.rows = a.rows,
          .columns = a.columns,
          .known = a.known,
          .rank = a.rank,
          .seed = a.common.seed};
}

}  // namespace stormo::cli
