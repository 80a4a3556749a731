// RESHARD_CPU_FEATURES(X): X(NAME, MACRO, HAS) per extension that this program knows: its name, the macro of a compiler
// that uses it, and an expression for whether the machine has it.
#pragma once

#if defined(__x86_64__) || defined(__i386__)

#define RESHARD_CPU_FEATURES(X)                                   \
  X("sse3", __SSE3__, __builtin_cpu_supports("sse3"))             \
  X("ssse3", __SSSE3__, __builtin_cpu_supports("ssse3"))          \
  X("sse4.1", __SSE4_1__, __builtin_cpu_supports("sse4.1"))       \
  X("sse4.2", __SSE4_2__, __builtin_cpu_supports("sse4.2"))       \
  X("popcnt", __POPCNT__, __builtin_cpu_supports("popcnt"))       \
  X("avx", __AVX__, __builtin_cpu_supports("avx"))                \
  X("avx2", __AVX2__, __builtin_cpu_supports("avx2"))             \
  X("fma", __FMA__, __builtin_cpu_supports("fma"))                \
  X("bmi", __BMI__, __builtin_cpu_supports("bmi"))                \
  X("bmi2", __BMI2__, __builtin_cpu_supports("bmi2"))             \
  X("avx512f", __AVX512F__, __builtin_cpu_supports("avx512f"))    \
  X("avx512cd", __AVX512CD__, __builtin_cpu_supports("avx512cd")) \
  X("avx512dq", __AVX512DQ__, __builtin_cpu_supports("avx512dq")) \
  X("avx512bw", __AVX512BW__, __builtin_cpu_supports("avx512bw")) \
  X("avx512vl", __AVX512VL__, __builtin_cpu_supports("avx512vl")) \
  X("avx512vnni", __AVX512VNNI__, __builtin_cpu_supports("avx512vnni"))

#elif defined(__aarch64__)

#include <asm/hwcap.h>
#include <sys/auxv.h>

#define RESHARD_CPU_FEATURES(X)                                                                 \
  X("neon", __ARM_NEON, (::getauxval(AT_HWCAP) & HWCAP_ASIMD) != 0)                             \
  X("lse", __ARM_FEATURE_ATOMICS, (::getauxval(AT_HWCAP) & HWCAP_ATOMICS) != 0)                 \
  X("fp16", __ARM_FEATURE_FP16_VECTOR_ARITHMETIC, (::getauxval(AT_HWCAP) & HWCAP_ASIMDHP) != 0) \
  X("sve", __ARM_FEATURE_SVE, (::getauxval(AT_HWCAP) & HWCAP_SVE) != 0)                         \
  X("sve2", __ARM_FEATURE_SVE2, (::getauxval(AT_HWCAP2) & HWCAP2_SVE2) != 0)                    \
  X("bf16", __ARM_FEATURE_BF16_VECTOR_ARITHMETIC, (::getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0)

#else
#define RESHARD_CPU_FEATURES(X)
#endif
