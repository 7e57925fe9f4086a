#pragma once

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::cli {

/// What a benchmark says of one thing that it has measured, and whether that was right.
struct Report {
  std::string text;  ///< lines without the last end
  bool right = false;
};

/// Prints what `measure` reports of each item as soon as it is there, after a heading that may be
/// empty; `speaks`: this process does. False when something was wrong.
template <class Item>
Result<bool> print_each(bool speaks, const std::string& heading, const std::vector<Item>& items,
                        const std::function<Result<Report>(const Item&)>& measure) {
  const auto print = [speaks](const std::string& text) {
    if (!speaks || text.empty()) return;
    std::puts(text.c_str());
    std::fflush(stdout);
  };
  print(heading);
  bool right = true;
  for (const Item& item : items) {
    STORMO_ASSIGN_OR_RETURN(const Report report, measure(item));
    print(report.text);
    right = right && report.right;
  }
  return right;
}

}  // namespace stormo::cli
