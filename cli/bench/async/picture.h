#pragma once

#include <string>

#include <cli/bench/async/table.h>

namespace stormo::cli {

/// An SVG of the first round's losses, over the steps of all workers and over time: a line for each
/// contender that has told them.
std::string async_picture(const AsyncRow& row);

}  // namespace stormo::cli
