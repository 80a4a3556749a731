#include "reshard/tensor/values/dtype.h"

#include <map>
#include <string>

#include "support/catch.h"

namespace reshard::test {
namespace {

struct Row {
  const char* name;
  std::uint32_t bits;
};

// The reference's enum in its ascending order (safetensors/src/tensor.rs), typed in apart from the library's table.
constexpr Row kReference[] = {{"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
                              {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
                              {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
                              {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
                              {"I64", 64},        {"U64", 64}};

TEST_CASE("The dtypes are those of the reference, in its order and with its sizes") {
  REQUIRE(std::size(kDTypes) == std::size(kReference));
  for (std::size_t i = 0; i < std::size(kReference); ++i) {
    INFO(kReference[i].name);
    const auto dtype = dtype_from_name(kReference[i].name);
    REQUIRE(dtype);
    CHECK(static_cast<std::size_t>(*dtype) == i);
    CHECK(bits(*dtype) == kReference[i].bits);
    CHECK(name(*dtype) == kReference[i].name);
  }
}

TEST_CASE("A dtype's name is matched exactly") {
  for (const char* text : {"", "f32", "F32 ", " F32", "F3", "F322", "float32", "F8", "F8_E4M3FN", "C128", "bf16"}) {
    INFO("text: '" << text << "'");
    CHECK_FALSE(dtype_from_name(text));
  }
}

TEST_CASE("The dtypes that torch has are known by its names") {
  const std::map<DType, std::string> names = {{DType::kBool, "bool"},
                                              {DType::kF4, "float4_e2m1fn_x2"},
                                              {DType::kF6E2M3, ""},
                                              {DType::kF6E3M2, ""},
                                              {DType::kU8, "uint8"},
                                              {DType::kI8, "int8"},
                                              {DType::kF8E5M2, "float8_e5m2"},
                                              {DType::kF8E4M3, "float8_e4m3fn"},
                                              {DType::kF8E8M0, "float8_e8m0fnu"},
                                              {DType::kI16, "int16"},
                                              {DType::kF8E4M3FNUZ, "float8_e4m3fnuz"},
                                              {DType::kF8E5M2FNUZ, "float8_e5m2fnuz"},
                                              {DType::kU16, "uint16"},
                                              {DType::kF16, "float16"},
                                              {DType::kBF16, "bfloat16"},
                                              {DType::kI32, "int32"},
                                              {DType::kU32, "uint32"},
                                              {DType::kF32, "float32"},
                                              {DType::kC64, "complex64"},
                                              {DType::kF64, "float64"},
                                              {DType::kI64, "int64"},
                                              {DType::kU64, "uint64"}};
  REQUIRE(names.size() == std::size(kDTypes));
  for (const auto& [dtype, torch_name] : names) CHECK(describe(dtype).torch_name == torch_name);
}

TEST_CASE("A dtype's class is told by the first letter of its name") {
  const std::map<char, DTypeClass> classes = {
      {'F', DTypeClass::kFloat}, {'I', DTypeClass::kSigned}, {'U', DTypeClass::kUnsigned}, {'C', DTypeClass::kComplex}};
  for (const DTypeRow& row : kDTypes) {
    INFO(row.name);
    const std::string text = row.name;
    const DTypeClass expected = text == "BOOL"   ? DTypeClass::kBool
                                : text == "BF16" ? DTypeClass::kFloat
                                                 : classes.at(text.front());
    CHECK(row.kind == expected);
  }
}

}  // namespace
}  // namespace reshard::test
