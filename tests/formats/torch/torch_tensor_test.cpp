// One tensor in an archive: what its pickle may say, and what it may not.

#include "reshard/formats/torch/torch_file.h"
#include "reshard/io/memory_files.h"
#include "support/files.h"
#include "support/local_files.h"
#include "support/pickles.h"
#include "support/refusals.h"
#include "support/zips.h"

namespace reshard::test {
namespace {

using namespace pickles;

const std::string kStorage(48, 's');  // of 12 floats

/// The archive of {"w": `value`} with the storages "0" and "1".
std::string archive(const std::string& value) {
  return torch_zip(stream(dict({{"w", value}})), {{"0", kStorage}, {"1", "abcdefgh"}});
}

TensorEntry read_one(const std::string& value) {
  const Container container = read_torch(MemorySource(archive(value)), "f.pt");
  CHECK(container.size_bytes == archive(value).size());
  REQUIRE(container.tensors.size() == 1);
  CHECK(container.tensors[0].name == "w");
  return container.tensors[0];
}

std::uint64_t storage_at(const std::string& value) {
  return archive(value).find(kStorage);
}

struct Case {
  const char* name;
  std::string value;
  std::string says;
};

void check_cases(ErrorKind kind, const std::vector<Case>& cases) {
  for (const Case& it : cases) {
    DYNAMIC_SECTION(it.name) {
      check_refused([&] { read_torch(MemorySource(archive(it.value)), "f.pt"); },
                    {.kind = kind, .path = "f.pt", .tensor = "w", .says = it.says});
    }
  }
}

TEST_CASE("A tensor lies where its storage, offset and strides say") {
  const TensorEntry whole = read_one(tensor());
  CHECK(whole.dtype == DType::kF32);
  CHECK(whole.shape == Dims{3, 4});
  CHECK(whole.strides.empty());
  CHECK(whole.offset_bytes == storage_at(tensor()));
  CHECK(whole.size_bytes == 48);

  const std::string column = tensor({.offset = 3, .shape = {3}, .strides = {4}});
  CHECK(read_one(column).offset_bytes == storage_at(column) + 12);
  CHECK(read_one(column).strides == Dims{4});
  CHECK(read_one(column).size_bytes == 12);
  CHECK(read_one(tensor({.shape = {4, 3}, .strides = {1, 4}})).strides == Dims{1, 4});
  CHECK(read_one(tensor({.offset = 11, .shape = {5, 1}, .strides = {0, 7}})).strides == Dims{0, 7});
  CHECK(read_one(tensor({.offset = 11, .shape = {}, .strides = {}})).shape.empty());
  CHECK(read_one(tensor({.offset = 11, .shape = {1, 1}, .strides = {99, 99}})).strides.empty());
  const std::vector<std::int64_t> ones(64, 1);
  CHECK(read_one(tensor({.shape = ones, .strides = ones})).shape == Dims(64, 1));
}

TEST_CASE("The last element of a storage may be used and the one after it not") {
  CHECK(read_one(tensor({.offset = 8, .shape = {4}, .strides = {1}})).size_bytes == 16);
  check_cases(ErrorKind::kBadInput,
              {{"an offset more", tensor({.offset = 9, .shape = {4}, .strides = {1}}), "its storage of 12 elements"},
               {"a row more", tensor({.shape = {4, 4}}), "[4, 4] with strides [4, 1] from element 0"},
               {"a scalar after the end", tensor({.offset = 12, .shape = {}, .strides = {}}), "from element 12"},
               {"a wide stride", tensor({.shape = {3, 4}, .strides = {5, 1}}), "its storage"}});
}

TEST_CASE("Numbers that wrap or are negative are refused") {
  constexpr std::int64_t kBig = std::int64_t{1} << 62;
  check_cases(
      ErrorKind::kBadInput,
      {{"a negative offset", tensor({.offset = -1}), "its offset is -1"},
       {"a negative size", tensor({.shape = {-3, 4}}), "its size is -3"},
       {"a negative stride", tensor({.strides = {4, -1}}), "its stride is -1"},
       {"a negative storage", tensor({.elems = -12}), "impossible size or offset"},
       {"a storage that wraps to 12 floats", tensor({.elems = kBig + 12}), "impossible size or offset"},
       {"sizes that wrap to 12", tensor({.shape = {3, 4, kBig, 4}, .strides = {4, 1, 0, 0}}), "overflows 64 bits"},
       {"sizes whose bits wrap", tensor({.shape = {kBig}, .strides = {0}}), "overflows 64 bits"},
       {"strides that wrap", tensor({.shape = {5}, .strides = {kBig}}), "its storage"},
       {"strides that wrap when added", tensor({.shape = {3, 3, 2}, .strides = {kBig, kBig, 1}}), "its storage"},
       {"an offset that wraps with a stride", tensor({.offset = INT64_MAX, .shape = {3}, .strides = {INT64_MAX}}),
        "its storage"},
       {"an offset that wraps in bytes", tensor({.offset = kBig, .shape = {1}, .strides = {1}}), "its storage"},
       {"more strides than sizes", tensor({.strides = {4, 1, 1}}), "2 dims, but 3 strides"},
       {"65 dims", tensor({.shape = std::vector<std::int64_t>(65, 1), .strides = std::vector<std::int64_t>(65, 1)}),
        "65 dims, more than torch allows"}});
}

TEST_CASE("An empty tensor may have any offset and strides") {
  const TensorEntry empty = read_one(tensor({.offset = 1000, .shape = {0, 4}, .strides = {77, 99}}));
  CHECK(empty.size_bytes == 0);
  CHECK(empty.strides.empty());
  CHECK(empty.offset_bytes == storage_at(tensor({.offset = 1000, .shape = {0, 4}, .strides = {77, 99}})));
}

TEST_CASE("A storage that is missing, or of another size than its tensor says, is refused") {
  check_cases(ErrorKind::kBadInput,
              {{"no such key", tensor({.key = "7"}), "its storage, 7, is not in the file"},
               {"a key of another folder", tensor({.key = "../data.pkl"}), "is not in the file"},
               {"another size", tensor({.elems = 13}), "should have 52 bytes, but has 48"},
               {"another type", tensor({.type = "DoubleStorage"}), "should have 96 bytes, but has 48"},
               {"a long key", tensor({.key = std::string(300, 'k')}), "instead of its storage's key"}});
}

TEST_CASE("Version 3 tensors count in elements of their own dtype") {
  const std::string value = tensor_v3({.elems = 48, .offset = 3, .shape = {2}, .strides = {4}}, "uint32");
  CHECK(read_one(value).dtype == DType::kU32);
  CHECK(read_one(value).offset_bytes == storage_at(value) + 12);
  CHECK(read_one(tensor_v3({.key = "1", .elems = 8, .shape = {8}, .strides = {1}}, "float8_e4m3fn")).dtype ==
        DType::kF8E4M3);
  check_cases(ErrorKind::kBadInput, {{"past the end", tensor_v3({.elems = 48, .shape = {13}, .strides = {1}}, "uint32"),
                                      "its storage of 12 elements"}});
}

TEST_CASE("Dtypes that safetensors lacks are named") {
  const auto v3 = [](const char* dtype) { return tensor_v3({.elems = 48, .shape = {1}, .strides = {1}}, dtype); };
  check_cases(ErrorKind::kUnsupported,
              {{"complex32", v3("complex32"), "dtype complex32"},
               {"bits8", v3("bits8"), "dtype bits8"},
               {"packed", v3("float4_e2m1fn_x2"), "dtype float4_e2m1fn_x2"},
               {"an empty name", v3(""), "dtype ,"},
               {"quantised", tensor({.type = "QInt8Storage", .elems = 48}), "dtype qint8"},
               {"complex128", tensor({.type = "ComplexDoubleStorage", .elems = 3}), "dtype complex128"},
               {"an unknown storage", tensor({.type = "OddStorage"}), "torch.OddStorage"}});
}

TEST_CASE("What wraps a tensor is taken off it") {
  const std::string cpu = tensor();
  const std::string parameter = call("torch._utils", "_rebuild_parameter", {cpu, kTrue, ordered_dict()});
  const std::string with_state = call("torch._utils", "_rebuild_parameter_with_state",
                                      {cpu, kTrue, ordered_dict(), dict({{"partition_dim", number(0)}})});
  const std::string device = call("torch._utils", "_rebuild_device_tensor_from_cpu_tensor",
                                  {cpu, global("torch", "float32"), text("xla:0"), kFalse});
  const std::string from_type =
      call("torch._tensor", "_rebuild_from_type_v2",
           {global("torch._utils", "_rebuild_parameter"), global("torch.nn.parameter", "Parameter"),
            tuple({device, kTrue, ordered_dict()}), dict({{"x", number(1)}})});
  for (const std::string& value : {parameter, with_state, device, from_type}) CHECK(read_one(value).size_bytes == 48);
  const std::string oldest =
      call("torch._utils", "_rebuild_tensor",
           {storage("FloatStorage", "0", 12), number(0), call("torch", "Size", {numbers({12})}), numbers({1})});
  CHECK(read_one(oldest).shape == Dims{12});

  std::string deep = cpu;
  for (int i = 0; i < 7; ++i) deep = call("torch._utils", "_rebuild_parameter", {deep, kTrue, ordered_dict()});
  CHECK(read_one(deep).size_bytes == 48);
  deep = call("torch._utils", "_rebuild_parameter", {deep, kTrue, ordered_dict()});
  check_cases(ErrorKind::kUnsupported,
              {{"wrapped eight times", deep, "which is not supported"},
               {"another dtype on the device",
                call("torch._utils", "_rebuild_device_tensor_from_cpu_tensor",
                     {cpu, global("torch", "bfloat16"), text("xla:0"), kFalse}),
                "is saved as float32, to become bfloat16"},
               {"a subclass with a form of its own",
                call("torch._tensor", "_rebuild_from_type_v2",
                     {global("torch._utils", "_rebuild_wrapper_subclass"), global("torchao", "Quantized"), tuple({cpu}),
                      kNone}),
                "is an object of torchao.Quantized, a subclass of Tensor"},
               {"a class's own way",
                call("torch._tensor", "_rebuild_from_type_v2",
                     {global("pkg", "Rebuild"), global("pkg", "Tensor"), tuple({cpu}), kNone}),
                "is rebuilt by pkg.Rebuild"},
               {"sparse", call("torch._utils", "_rebuild_sparse_tensor", {kNone, kNone}), "is sparse"},
               {"meta", call("torch._utils", "_rebuild_meta_tensor_no_storage", {kNone}), "has no data"},
               {"quantised", call("torch._utils", "_rebuild_qtensor", {kNone}), "is quantised"}});
  check_cases(ErrorKind::kBadInput,
              {{"a parameter of no tensor", call("torch._utils", "_rebuild_parameter", {kNone, kTrue, ordered_dict()}),
                "not a tensor"}});
}

TEST_CASE("The tensor inside a wrapper is read if it has the wrapper's dtype and shape, and no other tensor is there") {
  const auto wrapped = [](const std::string& attributes, const std::string& module = "torchao.float8.fsdp_utils") {
    const std::string type = global(module, "Wrapper");
    return call("torch._tensor", "_rebuild_from_type_v2",
                {global("torch._utils", "_rebuild_wrapper_subclass"), type,
                 tuple({type, global("torch", "float32"), numbers({3, 4}), numbers({4, 1}), number(0)}), attributes});
  };
  const std::string config = object("torchao.float8", "LinearMMConfig", tuple({kFalse, kNone}));
  const std::string twelve = tensor({.shape = {12}, .strides = {1}});
  for (const std::string& good : {
           wrapped(dict({{"_tensor", tensor()}, {"_linear_mm_config", config}, {"_precomputed_scale", kNone}})),
           wrapped(dict({{"_precomputed_scale", twelve}, {"_data", tensor()}})),
           wrapped(tuple({dict({{"config", config}}), dict({{"_data", tensor()}})})),
           wrapped(dict({{"outer", wrapped(dict({{"_data", tensor()}}))}})),
       }) {
    const TensorEntry read = read_one(good);
    CHECK(read.shape == Dims{3, 4});
    CHECK(read.size_bytes == 48);
  }
  std::string deep = tensor();
  for (int i = 0; i < 10; ++i) deep = wrapped(dict({{"_data", deep}}));
  const std::string many = list(std::vector<std::string>(300, kNone + text("x") + "\x86"));
  check_cases(
      ErrorKind::kUnsupported,
      {{"codes", wrapped(dict({{"codes", tensor({.type = "ByteStorage", .elems = 48})}})),
        "is an object of torchao.float8.fsdp_utils.Wrapper, which makes float32 [3, 4] of a tensor of uint8"},
       {"another shape", wrapped(dict({{"_data", twelve}})), "of a tensor of float32 [12]"},
       {"a scale, too", wrapped(dict({{"_data", tensor()}, {"scale", twelve}})), "a subclass of Tensor"},
       {"a scale in a list", wrapped(dict({{"_data", tensor()}, {"scale", list({twelve})}})), "a subclass of Tensor"},
       {"a number as scale", wrapped(dict({{"_data", tensor()}, {"_scale", number(2)}})), "a subclass of Tensor"},
       {"what is not searched", wrapped(dict({{"_data", tensor()}, {"x", many}})), "a subclass of Tensor"},
       {"nothing", wrapped(dict({})), "a subclass of Tensor"},
       {"no attributes", wrapped(kNone), "a subclass of Tensor"},
       {"wrappers in wrappers", deep, "a subclass of Tensor"},
       {"a part", wrapped(dict({{"_local_tensor", tensor()}}), "torch.distributed.tensor"),
        "is a torch.distributed.tensor.Wrapper, a part of a tensor on several ranks"}});
}

TEST_CASE("A tensor of the meta device is not advised to be moved to the CPU, which it cannot be") {
  const Error error = error_of([] { read_one(call("torch._utils", "_rebuild_meta_tensor_no_storage", {kNone})); });
  CHECK_THAT(error.hint(), Says("load the whole model on one device") && !Says(".cpu()"));
}

TEST_CASE("A view that is conjugated or negated when it is loaded is refused") {
  const auto with_metadata = [](const std::string& metadata) {
    return call(
        "torch._utils", "_rebuild_tensor_v2",
        {storage("FloatStorage", "0", 12), number(0), numbers({12}), numbers({1}), kFalse, ordered_dict(), metadata});
  };
  CHECK(read_one(with_metadata(dict({{"conj", kFalse}, {"neg", kFalse}}))).size_bytes == 48);
  CHECK(read_one(with_metadata(kNone)).size_bytes == 48);
  check_cases(ErrorKind::kUnsupported, {{"conj", with_metadata(dict({{"conj", kTrue}})), "as the conjugate"},
                                        {"neg", with_metadata(dict({{"neg", kTrue}})), "as the negative"}});
}

TEST_CASE("Calls with other arguments than torch's are refused") {
  const auto v2 = [](const std::vector<std::string>& args) { return call("torch._utils", "_rebuild_tensor_v2", args); };
  const std::string stored = storage("FloatStorage", "0", 12);
  const auto id = [](const std::vector<std::string>& fields) { return tuple(fields) + "Q"; };
  const auto of_id = [&](const std::string& its_id) { return v2({its_id, number(0), numbers({1}), numbers({1})}); };
  const std::string type = global("torch", "FloatStorage");
  check_cases(
      ErrorKind::kBadInput,
      {{"three arguments", v2({stored, number(0), numbers({1})}), "needs 4 arguments, but has 3"},
       {"no storage", v2({kNone, number(0), numbers({1}), numbers({1})}), "None instead of a storage"},
       {"an offset of a string", v2({stored, text("0"), numbers({1}), numbers({1})}), "its offset is a string"},
       {"a shape of a number", v2({stored, number(0), number(1), numbers({1})}), "its sizes are an int"},
       {"a size of a float", v2({stored, number(0), tuple({"G" + std::string(8, '\0')}), numbers({1})}),
        "its size is a float"},
       {"an id of nothing", of_id(id({})), "not described as a storage"},
       {"an id of four fields", of_id(id({text("storage"), type, text("0"), text("cpu")})),
        "not described as a storage"},
       {"an id of another kind", of_id(id({text("stuff"), type, text("0"), text("cpu"), number(12)})),
        "not described as a storage"},
       {"the id of a module", of_id(id({text("module"), type, text("0"), text("cpu"), number(12)})),
        "source of a module"},
       {"a key of None", of_id(id({text("storage"), type, kNone, text("cpu"), number(12)})), "its storage's key"},
       {"a storage of a string", of_id(id({text("storage"), type, text("0"), text("cpu"), text("12")})),
        "impossible size or offset"}});
}

TEST_CASE("An expanded tensor repeats its elements within reason") {
  CHECK(read_one(tensor({.shape = {66901, 12}, .strides = {0, 1}})).size_bytes == 3211248);
  check_cases(
      ErrorKind::kUnsupported,
      {{"a row too often", tensor({.shape = {66902, 12}, .strides = {0, 1}}), "bytes of its storage to 3211296"},
       {"a row without end", tensor({.shape = {std::uint64_t{1} << 40, 12}, .strides = {0, 1}}),
        "repeats the 48 bytes of its storage"}});
}

}  // namespace
}  // namespace reshard::test
