#pragma once

#include <span>
#include <string>

#include <stormo/data/table/table.h>

namespace stormo::train {

/// What to change where targets look like those of another loss: classes that are numbers of a
/// quantity, or numbers that are classes. Empty if they look right. A guess, for a hint.
std::string target_hint(std::span<const double> targets, const std::string& loss);

/// The same for the labels of a table; texts are classes.
std::string target_hint(const data::Table& table, const std::string& loss);

}  // namespace stormo::train
