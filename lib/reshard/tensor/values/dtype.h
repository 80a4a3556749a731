// tensor/: dtypes, shapes, boxes, and the runs of bytes that a box consists of. Independent of files and tensor names.
#pragma once

#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>

namespace reshard {

/// The dtypes of safetensors 0.6+ (safetensors/src/tensor.rs), in the same order: writers sort by it.
enum class DType : std::uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3FNUZ,
  kF8E5M2FNUZ,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

enum class DTypeClass : std::uint8_t { kBool, kFloat, kSigned, kUnsigned, kComplex };

struct DTypeRow {
  DType dtype;
  const char* name;        // in a safetensors header
  const char* torch_name;  // torch.<name>; empty if torch lacks the dtype
  std::uint32_t bits;      // bits per element
  DTypeClass kind;
};

inline constexpr DTypeRow kDTypes[] = {
    {DType::kBool, "BOOL", "bool", 8, DTypeClass::kBool},
    {DType::kF4, "F4", "float4_e2m1fn_x2", 4, DTypeClass::kFloat},
    {DType::kF6E2M3, "F6_E2M3", "", 6, DTypeClass::kFloat},
    {DType::kF6E3M2, "F6_E3M2", "", 6, DTypeClass::kFloat},
    {DType::kU8, "U8", "uint8", 8, DTypeClass::kUnsigned},
    {DType::kI8, "I8", "int8", 8, DTypeClass::kSigned},
    {DType::kF8E5M2, "F8_E5M2", "float8_e5m2", 8, DTypeClass::kFloat},
    {DType::kF8E4M3, "F8_E4M3", "float8_e4m3fn", 8, DTypeClass::kFloat},
    {DType::kF8E8M0, "F8_E8M0", "float8_e8m0fnu", 8, DTypeClass::kFloat},
    {DType::kF8E4M3FNUZ, "F8_E4M3FNUZ", "float8_e4m3fnuz", 8, DTypeClass::kFloat},
    {DType::kF8E5M2FNUZ, "F8_E5M2FNUZ", "float8_e5m2fnuz", 8, DTypeClass::kFloat},
    {DType::kI16, "I16", "int16", 16, DTypeClass::kSigned},
    {DType::kU16, "U16", "uint16", 16, DTypeClass::kUnsigned},
    {DType::kF16, "F16", "float16", 16, DTypeClass::kFloat},
    {DType::kBF16, "BF16", "bfloat16", 16, DTypeClass::kFloat},
    {DType::kI32, "I32", "int32", 32, DTypeClass::kSigned},
    {DType::kU32, "U32", "uint32", 32, DTypeClass::kUnsigned},
    {DType::kF32, "F32", "float32", 32, DTypeClass::kFloat},
    {DType::kC64, "C64", "complex64", 64, DTypeClass::kComplex},
    {DType::kF64, "F64", "float64", 64, DTypeClass::kFloat},
    {DType::kI64, "I64", "int64", 64, DTypeClass::kSigned},
    {DType::kU64, "U64", "uint64", 64, DTypeClass::kUnsigned},
};

constexpr const DTypeRow& describe(DType dtype) {
  return kDTypes[static_cast<std::size_t>(dtype)];
}
constexpr std::string_view name(DType dtype) {
  return describe(dtype).name;
}
constexpr std::uint32_t bits(DType dtype) {
  return describe(dtype).bits;
}

/// Returns the dtype with exactly this name in a header, or std::nullopt.
constexpr std::optional<DType> dtype_from_name(std::string_view text) {
  for (const DTypeRow& row : kDTypes)
    if (text == row.name) return row.dtype;
  return std::nullopt;
}

static_assert(
    std::size(kDTypes) == 22 &&
        [] {
          for (std::size_t i = 0; i < std::size(kDTypes); ++i)
            if (static_cast<std::size_t>(kDTypes[i].dtype) != i) return false;
          return true;
        }(),
    "the table is indexed by the enum");

}  // namespace reshard
