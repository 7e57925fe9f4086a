#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <CLI/App.hpp>

namespace stormo::cli {

/// Checks of options that are numbers, with messages that people can read: those of CLI11 name the
/// largest double, in 309 digits.
CLI::Validator at_least(std::int64_t least);        ///< a whole number
CLI::Validator from_to(double least, double most);  ///< any number

/// For commands that list everything that is wrong: what is no whole number in these bounds is
/// noted in `wrong`, which must outlive the option, and counts as `least`.
void note_number(CLI::Option* option, int least, std::vector<std::string>& wrong,
                 int most = std::numeric_limits<int>::max());

}  // namespace stormo::cli
