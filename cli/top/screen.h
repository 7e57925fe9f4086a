#pragma once

#include <termios.h>

#include <optional>
#include <string>
#include <vector>

#include <cli/top/picture.h>

namespace stormo::cli {

/// The second screen of the terminal at standard output, without a cursor, while this object lives:
/// what was there before comes back. Keys come at once and are not shown.
class Screen {
 public:
  /// `color`: lines may have colours.
  explicit Screen(bool color);
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  /// As large as it is now.
  Window window() const;
  /// In place of what it shows. False when the terminal is gone.
  bool draw(const std::vector<std::string>& lines) const;
  /// Whether standard input, which is to be polled, may have keys.
  bool has_keys() const { return before_.has_value(); }
  /// Whether 'q' is among the keys that were pressed, or none can come any more.
  bool reads_quit();

  /// As it was before, and back: while this process is stopped.
  void leave() const;
  void enter() const;

 private:
  bool color_;
  std::optional<termios> before_;  // of standard input, if that is a terminal
};

}  // namespace stormo::cli
