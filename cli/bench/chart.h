#pragma once

#include <string>
#include <vector>

#include <cli/bench/table.h>

namespace stormo::cli {

/// Time and bus bandwidth over size, all contenders, on logarithmic axes, as a self-contained SVG.
std::string bench_chart(const std::string& title, const std::vector<BenchRow>& rows);

}  // namespace stormo::cli
