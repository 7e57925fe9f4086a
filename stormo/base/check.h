#pragma once

/// For our own bugs only: prints the condition, its place and `message`, then aborts.
/// What the world or the user does is a Status, never a CHECK.
#define STORMO_CHECK(condition, message)                               \
  do {                                                                 \
    if (!(condition)) [[unlikely]]                                     \
      ::stormo::check_failed(#condition, __FILE__, __LINE__, message); \
  } while (false)

namespace stormo {
[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               const char* message);
}  // namespace stormo
