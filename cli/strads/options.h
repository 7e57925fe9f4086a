#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <cli/launch_flags.h>
#include <stormo/protocol/strads/scheduler.h>
#include <stormo/protocol/strads/virtual_rounds.h>
#include <stormo/strads/made_data.h>

namespace stormo::cli {

/// The words that `stormo strads lasso` and `factorise` have in common.
struct StradsArguments {
  LaunchFlags launch;
  std::optional<int> virtual_workers;
  std::string compute = "1us";
  double jitter = 0.1;
  std::string latency = "10us";
  std::vector<std::string> stragglers;  ///< "2:10x"
  std::uint64_t seed = 1;
  std::string out;
  bool json = false;
};

/// How blocks of a round are chosen by priority, with a check.
struct ScheduleArguments {
  int round = 32;
  int depth = 0;
  double threshold = 0.1;
  double base_weight = 1e-4;
  bool no_priority = false, no_check = false, cyclic = false;
  std::optional<std::int64_t> every;  ///< rounds between judgements

  bool checks() const { return !no_check && !cyclic; }
};

struct LassoArguments {
  StradsArguments common;
  ScheduleArguments schedule;
  std::string x, y;  ///< .npy files; empty: made data
  std::int64_t rows = 1000, columns = 1000;
  std::optional<std::int64_t> nonzeros;  ///< default: rows
  std::int64_t group = 50;
  double correlation = 0.9;
  double lambda = 0.1;  ///< of the largest that leaves a coefficient above 0
  std::int64_t rounds = 100'000;
  double tolerance = 1e-6;
};

struct FactoriseArguments {
  StradsArguments common;
  std::string ratings;  ///< .npy file; empty: made data
  std::int64_t rows = 1000, columns = 500, known = 50;
  int rank = 8;
  double lambda = 0.05;
  int inner = 1;
  std::int64_t passes = 10;
};

struct StradsTrainArguments {
  StradsArguments common;
  ScheduleArguments schedule;
  std::string recipe;
  std::vector<std::string> overrides;
  std::optional<std::int64_t> rounds;  ///< default: steps of the recipe
  std::int64_t units = 1;              ///< see train::BlockTrainingOptions
  std::string checkpoint;              ///< folder; empty: that of the recipe
  bool resume = false, overwrite = false;
};

/// Add everything that is wrong to `wrong`, one line each. Of files they look at the shapes alone.
/// `rows`: of the data; 0: not known.
void check_common(const StradsArguments& a, std::int64_t rows, std::vector<std::string>& wrong);
void check_schedule(const ScheduleArguments& a, std::vector<std::string>& wrong);
void check_lasso(const LassoArguments& a, std::vector<std::string>& wrong);
void check_factorise(const FactoriseArguments& a, std::vector<std::string>& wrong);
/// All but the recipe, and what it names.
void check_strads_train(const StradsTrainArguments& a, std::vector<std::string>& wrong);

/// Bytes of memory that this host has left.
double available_bytes();
/// Of the ranks that -n and -H ask for, those that are certainly on this host.
int ranks_here(const LaunchFlags& flags);
/// OK when this host has memory for the data in so many processes; before they are read or made.
Status check_memory(const LassoArguments& a, int processes);
Status check_memory(const FactoriseArguments& a, int processes);

// The rest is of arguments that were checked.
/// OK when this host has memory for the factors of a matrix of this size.
Status check_factors(const FactoriseArguments& a, std::int64_t rows, std::int64_t columns,
                     int processes);
/// What must be equal on all ranks: one line for each option.
std::string options_text(const LassoArguments& a);
std::string options_text(const FactoriseArguments& a);
/// With --cyclic, rounds of `in_turn` blocks.
protocol::ScheduleOptions schedule_options(const ScheduleArguments& a, std::int64_t blocks,
                                           int workers, std::uint64_t seed, std::int64_t in_turn);
protocol::VirtualWorkers virtual_cluster(const StradsArguments& a);
strads::MadeRegression made_regression(const LassoArguments& a);
strads::MadeRatings made_ratings(const FactoriseArguments& a);

}  // namespace stormo::cli
