#pragma once

#include <cstdint>

#include <CLI/App.hpp>

namespace stormo::cli {

/// Checks of options that are numbers, with messages that people can read: those of CLI11 name the
/// largest double, in 309 digits.
CLI::Validator at_least(std::int64_t least);        ///< a whole number
CLI::Validator from_to(double least, double most);  ///< any number

}  // namespace stormo::cli
