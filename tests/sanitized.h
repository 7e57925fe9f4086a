#pragma once

namespace stormo {

/// Whether this is a build with a sanitizer: it takes several times as long, so that some tests do
/// less there of the same.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// With ThreadSanitizer, which finds races in the first of many equal rounds.
#ifdef __SANITIZE_THREAD__
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

}  // namespace stormo
