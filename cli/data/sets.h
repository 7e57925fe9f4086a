#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stormo::cli {

/// A file of a data set, by its name in the folder.
struct DataFile {
  std::string name;
  std::string bytes;
};

/// A small data set that is made here, the same on every machine: nothing is downloaded.
struct DataSet {
  std::string_view name;
  std::string_view what;     ///< one line for people
  std::string_view command;  ///< that trains with it; {} is the folder
  std::vector<DataFile> (*make)();
};
std::span<const DataSet> data_sets();

std::vector<DataFile> make_digits();
std::vector<DataFile> make_table();
std::vector<DataFile> make_text();

}  // namespace stormo::cli
