// What kernels of registers of eight floats are compiled for, whatever the rest is.
#pragma once

#if defined(__x86_64__)
#define GAPLESS_AVX2 __attribute__((target("avx2,fma,f16c")))
#endif

namespace gapless::torch_device {

// Whether this processor has them; to be asked before a kernel runs.
inline bool has_avx2() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                          __builtin_cpu_supports("f16c");
  return has;
#else
  return false;
#endif
}

}  // namespace gapless::torch_device
