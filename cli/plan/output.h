#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stormo::cli {

/// The first row is the head.
using Rows = std::vector<std::vector<std::string>>;

void print_table(const Rows& rows, bool markdown);
void print_line(const std::string& line);
/// One object per line. Names come from files and may hold bytes that are no UTF-8.
template <class Json>
void print_json(const Json& object) {
  print_line(object.dump(-1, ' ', false, Json::error_handler_t::replace));
}
std::string bytes_text(std::int64_t bytes);
std::string time_text(double seconds);

}  // namespace stormo::cli
