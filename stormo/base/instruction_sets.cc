#include <stormo/base/instruction_sets.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace stormo {

#if defined(__x86_64__)
namespace {

/// Compilers have no names for these two in __builtin_cpu_supports().
bool has_f16c_and_lzcnt() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_F16C) == 0) return false;
  return __get_cpuid(0x80000001, &a, &b, &c, &d) != 0 && (c & bit_LZCNT) != 0;
}

}  // namespace

// asked once: a virtual machine takes 14 us to answer

bool runs_avx2() {
  static const bool runs =
      __builtin_cpu_supports("sse4.2") != 0 && __builtin_cpu_supports("pclmul") != 0 &&
      __builtin_cpu_supports("aes") != 0 && __builtin_cpu_supports("avx2") != 0 &&
      __builtin_cpu_supports("fma") != 0 && __builtin_cpu_supports("bmi") != 0 &&
      __builtin_cpu_supports("bmi2") != 0 && has_f16c_and_lzcnt();
  return runs;
}

bool runs_avx3() {
  static const bool runs =
      runs_avx2() && __builtin_cpu_supports("avx512f") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
      __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512cd") != 0;
  return runs;
}
#else
bool runs_avx2() { return false; }
bool runs_avx3() { return false; }
#endif

}  // namespace stormo
