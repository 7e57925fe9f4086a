#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <cli/plan/options.h>
#include <stormo/base/status.h>

namespace stormo::data {
class Dataset;
}
namespace stormo::train {
struct Recipe;
struct Task;
}  // namespace stormo::train

namespace stormo::cli {

/// What each rank of the fullest host may use of the memory that is available on a host, beside
/// what it shares with this process, which has loaded the program.
std::int64_t memory_of_a_rank(std::uint64_t available, const std::vector<int>& ranks_per_host);

/// The keys of a recipe for the fastest way to train `task` on hosts with that many ranks, of those
/// that fit into `memory` bytes on each rank. Trains a few steps here. kExhausted if none fits.
Result<std::vector<std::string>> fastest_keys(const PlanOptions& o, const train::Recipe& recipe,
                                              const train::Task& task, const data::Dataset& data,
                                              const std::vector<int>& ranks_per_host,
                                              std::int64_t memory);

/// `stormo plan search`: compares all synchronous strategies of a recipe by the time that their
/// plans are simulated to take, leaves out what does not fit into memory, and prints the fastest.
Status search_plans(const PlanOptions& o);

}  // namespace stormo::cli
