#pragma once

#include <string>

#include <cli/simulate/report.h>

namespace stormo::cli {

/// An SVG of the losses over virtual time, one line per policy.
std::string svg_losses(const Simulation& s);

}  // namespace stormo::cli
