#pragma once

namespace stormo {

/// Whether this processor and the system have all that Highway's targets AVX2 and AVX3 (AVX-512)
/// use. False on other architectures than x86.
bool runs_avx2();
bool runs_avx3();

}  // namespace stormo

/// Pointer to the version of a function for the best instruction set, in a file that Highway
/// compiles once for each. HWY_DYNAMIC_DISPATCH does the same, but needs Highway's library, which
/// measures a timer for 3 ms at the start of each process.
#if defined(__x86_64__)
#define STORMO_BEST_VERSION(function)                                                   \
  ((HWY_TARGETS & HWY_AVX3) != 0 && ::stormo::runs_avx3()   ? HWY_CHOOSE_AVX3(function) \
   : (HWY_TARGETS & HWY_AVX2) != 0 && ::stormo::runs_avx2() ? HWY_CHOOSE_AVX2(function) \
                                                            : HWY_CHOOSE_FALLBACK(function))
#else
#define STORMO_BEST_VERSION(function) (&HWY_STATIC_DISPATCH(function))
#endif
