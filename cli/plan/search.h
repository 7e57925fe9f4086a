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

/// The keys of a recipe for the fastest way to train `task` on hosts with that many ranks, of those
/// that fit into `memory` bytes on each rank. Trains a few steps here. kExhausted if none fits.
Result<std::vector<std::string>> fastest_keys(const train::Recipe& recipe, const train::Task& task,
                                              const data::Dataset& data,
                                              const std::vector<int>& ranks_per_host,
                                              std::int64_t memory);

/// `stormo plan search`: compares all synchronous strategies of a recipe by the time that their
/// plans are simulated to take, leaves out what does not fit into memory, and prints the fastest.
Status search_plans(const PlanOptions& o);

}  // namespace stormo::cli
