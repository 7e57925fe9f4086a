#pragma once

#include <string>

#include <stormo/observe/records.h>

namespace stormo::observe {

/// The first ten classes of the first sixteen ranks as lines for people; says how many more there
/// are, and the largest chi-square of all ranks.
std::string sharding_table(const ShardingRecord& record);

/// The same as one JSON object, with all ranks: `sharding`, `classes` (how many), `counts` (of the
/// first ten), `chi_square`, `degrees_of_freedom`.
std::string sharding_json(const ShardingRecord& record);

}  // namespace stormo::observe
