#pragma once

/// Only for bugs in Stormo: prints the condition, its file and line and `message`, then aborts.
/// Failures at run time and errors of the user are a Status, never a CHECK.
#define STORMO_CHECK(condition, message)                               \
  do {                                                                 \
    if (!(condition)) [[unlikely]]                                     \
      ::stormo::check_failed(#condition, __FILE__, __LINE__, message); \
  } while (false)

namespace stormo {
[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               const char* message);
}  // namespace stormo
