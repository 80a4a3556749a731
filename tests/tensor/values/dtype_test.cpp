#include "reshard/tensor/values/dtype.h"

#include <map>
#include <string>

#include "support/catch.h"

namespace reshard::test {
namespace {

struct Row {
  const char* name;
  std::uint32_t bits;
  const char* torch_name;  // empty if torch has none
};

// The reference's enum in its ascending order (safetensors/src/tensor.rs), typed in apart from the library's table.
constexpr Row kReference[] = {{"BOOL", 8, "bool"},
                              {"F4", 4, "float4_e2m1fn_x2"},
                              {"F6_E2M3", 6, ""},
                              {"F6_E3M2", 6, ""},
                              {"U8", 8, "uint8"},
                              {"I8", 8, "int8"},
                              {"F8_E5M2", 8, "float8_e5m2"},
                              {"F8_E4M3", 8, "float8_e4m3fn"},
                              {"F8_E8M0", 8, "float8_e8m0fnu"},
                              {"F8_E4M3FNUZ", 8, "float8_e4m3fnuz"},
                              {"F8_E5M2FNUZ", 8, "float8_e5m2fnuz"},
                              {"I16", 16, "int16"},
                              {"U16", 16, "uint16"},
                              {"F16", 16, "float16"},
                              {"BF16", 16, "bfloat16"},
                              {"I32", 32, "int32"},
                              {"U32", 32, "uint32"},
                              {"F32", 32, "float32"},
                              {"C64", 64, "complex64"},
                              {"F64", 64, "float64"},
                              {"I64", 64, "int64"},
                              {"U64", 64, "uint64"}};

TEST_CASE("The dtypes are those of the reference, in its order and with its sizes, and known by torch's names") {
  REQUIRE(std::size(kDTypes) == std::size(kReference));
  for (std::size_t i = 0; i < std::size(kReference); ++i) {
    INFO(kReference[i].name);
    const auto dtype = dtype_from_name(kReference[i].name);
    REQUIRE(dtype);
    CHECK(static_cast<std::size_t>(*dtype) == i);
    CHECK(bits(*dtype) == kReference[i].bits);
    CHECK(name(*dtype) == kReference[i].name);
    CHECK(std::string(describe(*dtype).torch_name) == kReference[i].torch_name);
  }
}

TEST_CASE("A dtype's name is matched exactly") {
  for (const char* text : {"", "f32", "F32 ", " F32", "F3", "F322", "float32", "F8", "F8_E4M3FN", "C128", "bf16"}) {
    INFO("text: '" << text << "'");
    CHECK_FALSE(dtype_from_name(text));
  }
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
