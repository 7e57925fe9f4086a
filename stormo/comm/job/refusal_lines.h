#pragma once

#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace stormo::comm {

/// For a port's `on_refused`: prints one line on standard error for each refused connection, at
/// most a hundred, so that many refused connections do not hide the output of the program.
inline std::function<void(std::string_view)> say_refusals(std::string port) {
  constexpr int kShown = 100;
  return [port = std::move(port),
          said = std::make_shared<std::atomic<int>>(0)](std::string_view line) {
    const int count = said->fetch_add(1) + 1;
    if (count > kShown) return;
    std::fprintf(stderr, "stormo: %s: %.*s\n", port.c_str(), static_cast<int>(line.size()),
                 line.data());
    if (count == kShown) {
      std::fprintf(stderr, "stormo: %s: further refusals are not shown\n", port.c_str());
    }
  };
}

}  // namespace stormo::comm
