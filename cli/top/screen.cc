#include <cli/top/screen.h>

#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <string_view>

namespace stormo::cli {
namespace {

// Of xterm, which all terminals of today know: the second screen, the cursor, no second line for
// what is too long; and to erase.
constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l\x1b[?7l";
constexpr std::string_view kLeave = "\x1b[?7h\x1b[?25h\x1b[?1049l";
constexpr std::string_view kHome = "\x1b[H", kRestOfLine = "\x1b[K", kRestOfScreen = "\x1b[J";

constexpr int kUsualColumns = 80, kUsualRows = 24;

/// False when it cannot be written, for instance because the terminal is gone.
bool write_to_terminal(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size());
    if (n < 0 && errno != EINTR) return false;
    if (n > 0) text.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

}  // namespace

Screen::Screen(bool color) : color_(color) {
  termios now{};
  if (::tcgetattr(STDIN_FILENO, &now) == 0) before_ = now;
  enter();
}

Screen::~Screen() { leave(); }

void Screen::enter() const {
  if (before_) {
    termios keys = *before_;
    keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    keys.c_cc[VMIN] = 0;
    keys.c_cc[VTIME] = 0;
    ::tcsetattr(STDIN_FILENO, TCSANOW, &keys);
  }
  write_to_terminal(kEnter);
}

void Screen::leave() const {
  write_to_terminal(kLeave);
  if (before_) ::tcsetattr(STDIN_FILENO, TCSANOW, &*before_);
}

Window Screen::window() const {
  winsize size{};
  const bool known =
      ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0;
  return {.columns = known ? size.ws_col : kUsualColumns,
          .rows = known ? size.ws_row : kUsualRows,
          .color = color_};
}

bool Screen::draw(const std::vector<std::string>& lines) const {
  std::string text(kHome);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    text += (i > 0 ? "\r\n" : "") + lines[i];
    text += kRestOfLine;
  }
  text += kRestOfScreen;
  return write_to_terminal(text);
}

bool Screen::reads_quit() {
  std::array<char, 64> keys;
  const ssize_t n = ::read(STDIN_FILENO, keys.data(), keys.size());
  if (n < 0) return errno != EINTR && errno != EAGAIN;
  const std::string_view pressed(keys.data(), static_cast<std::size_t>(n));
  return pressed.find('q') != std::string_view::npos;
}

}  // namespace stormo::cli
