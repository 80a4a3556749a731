// Whole files: what is an archive or a stream of torch's, and where the state dict in it is.

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

std::string archive_of(const std::string& value) {
  return torch_zip(stream(value), {{"0", kStorage}});
}

Container read_content(const std::string& content) {
  return read_torch(MemorySource(content), "f.pt");
}

Error unsupported(const std::string& content, const std::string& says, const char* hint = "") {
  return check_refused([&] { read_content(content); },
                       {.kind = ErrorKind::kUnsupported, .path = "f.pt", .says = says, .hint = hint});
}

Error bad(const std::string& content, const std::string& says) {
  return check_refused([&] { read_content(content); }, {.path = "f.pt", .says = says});
}

std::vector<std::string> names(const Container& container) {
  std::vector<std::string> all;
  for (const TensorEntry& tensor : container.tensors) all.push_back(tensor.name);
  return all;
}

TEST_CASE("What is no file of torch's is called what it is") {
  bad("", "is empty");
  check_error(bad("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git-lfs pointer"),
              {.hint = "git lfs pull"});
  bad("\n <!DOCTYPE html><html>", "is an HTML page");
  bad("{\n  \"model_type\": \"llama\"}", "is JSON");
  bad(safetensors_bytes("{}", ""), "is a safetensors file");
  unsupported("PYTORCH1" + std::string(100, '\0'), "preview");
  unsupported("storages" + std::string(249, '\0') + "ustar" + std::string(100, '\0'), "tar archive");
  unsupported("GGUF", "is a GGUF file");
  unsupported("\x89HDF\r\n\x1a\n", "is an HDF5 file");
  bad(std::string("\1\0\0\0\0\0\0\0{", 9), "is a safetensors file");
  bad("GGU", "neither a zip archive nor a pickle");
  bad(stream(dict({{"a", number(1)}})), "not one that torch.save wrote");
  bad(zip_bytes({{"x.npy", "data"}}), "it has no data.pkl");
  bad(zip_bytes({{"a/x.npy", "data"}}), "it has no data.pkl");
  bad(zip_bytes({{"data.pkl", stream("}")}}), "it has no data.pkl");
  unsupported(zip_bytes({{"m/data.pkl", stream("}")}, {"m/constants.pkl", stream(")")}}), "TorchScript");
}

TEST_CASE("The folder in an archive may have any name, and its other entries may be missing") {
  const std::string pickle = stream(dict({{"w", tensor()}}));
  for (const std::string folder : {"archive", "x y", "\u00fc", "a.pt.info"}) {
    INFO(folder);
    const auto read = read_content(zip_bytes({{folder + "/data.pkl", pickle}, {folder + "/data/0", kStorage}}));
    CHECK(names(read) == std::vector<std::string>{"w"});
  }
  bad(zip_bytes({{"a/data.pkl", pickle}, {"b/data/0", kStorage}}), "is not in the file");
}

TEST_CASE("Big-endian files are refused") {
  const std::string pickle = stream(dict({{"w", tensor()}}));
  CHECK(read_content(torch_zip(pickle, {{"0", kStorage}}, "")).tensors.size() == 1);
  unsupported(torch_zip(pickle, {{"0", kStorage}}, "big"), "big-endian");
  bad(torch_zip(pickle, {{"0", kStorage}}, "middle"), "unknown byteorder");
}

TEST_CASE("A compressed archive is refused with what to do") {
  std::string zip = archive_of(dict({{"w", tensor()}}));
  put<std::uint16_t>(zip, central_header(zip, 2) + 10, 8);
  put<std::uint16_t>(zip, local_header(zip, 2) + 8, 8);
  unsupported(zip, "t/data/0 is compressed", "zip -0");
}

TEST_CASE("Bytes after the pickle are refused at their place") {
  const std::string pickle = stream(dict({{"w", tensor()}}));
  const std::string zip = torch_zip(pickle + "N.", {{"0", kStorage}});
  CHECK(bad(zip, "trailing data after its pickle").offset_bytes() == zip.find(pickle) + pickle.size());
}

TEST_CASE("Errors of the pickle name the byte of the file") {
  const std::string zip = torch_zip(stream(call("os", "system", {text("id")})), {});
  CHECK(bad(zip, "os.system").offset_bytes() == zip.find("cos\nsystem\n"));
}

TEST_CASE("A state dict comes in its own order, with what is no tensor left aside in one warning") {
  const Container read = read_content(
      archive_of(dict({{"z", tensor()}, {"n", number(1)}, {"a", tensor()}, {"b._extra_state", kNone}, {"m", "}"}})));
  CHECK(names(read) == std::vector<std::string>{"z", "a"});
  CHECK(read.warnings ==
        std::vector<std::string>{"skipped entries that are not tensors of the state dict: n, b._extra_state, m"});
  CHECK(read_content(archive_of("}")).tensors.empty());
  CHECK(read_content(archive_of("}")).warnings.empty());
}

TEST_CASE("An OrderedDict that gets its items in any way is a state dict") {
  const std::string pairs = list({list({text("a"), tensor()}), tuple({text("b"), tensor()})});
  CHECK(names(read_content(archive_of(call("collections", "OrderedDict", {pairs})))) ==
        std::vector<std::string>{"a", "b"});
  const std::string items = ordered_dict() + text("a") + tensor() + "s" + dict({{"_metadata", "}"}}) + "b";
  CHECK(names(read_content(archive_of(items))) == std::vector<std::string>{"a"});
}

TEST_CASE("The state dict under a usual key is taken, and that is said") {
  const std::string inner = dict({{"a.w", tensor()}});
  for (const std::string wrapper : {"model", "state_dict", "module", "model_state_dict", "weights"}) {
    const Container read = read_content(archive_of(dict({{"epoch", number(1)}, {wrapper, inner}, {"rng", tensor()}})));
    CHECK(names(read) == std::vector<std::string>{"a.w"});
    CHECK(read.warnings ==
          std::vector<std::string>{"read the state dict under \"" + wrapper + "\"",
                                   "skipped entries that are not tensors of the state dict: epoch, rng"});
  }
  CHECK(names(read_content(archive_of(dict({{"module", inner}, {"model", dict({{"b", tensor()}})}})))) ==
        std::vector<std::string>{"b"});
}

TEST_CASE("An average of the weights is left out next to the weights, and taken alone") {
  const std::string inner = dict({{"a.w", tensor()}}),
                    average = dict({{"a.w", tensor({.shape = {6}, .strides = {1}})}});
  for (const std::string ema : {"ema", "model_ema", "ema_model", "ema_state_dict", "state_dict_ema"}) {
    for (const std::string wrapper : {"model", "state_dict", "weights"})
      for (const bool is_first : {false, true}) {
        const Container read = read_content(
            archive_of(is_first ? dict({{ema, average}, {wrapper, inner}}) : dict({{wrapper, inner}, {ema, average}})));
        REQUIRE(read.tensors.size() == 1);
        CHECK(read.tensors[0].shape != Dims{6});
        CHECK(read.warnings == std::vector<std::string>{"read the state dict under \"" + wrapper + "\"",
                                                        "left out an average of the weights, under " + ema +
                                                            "; to convert it, save it in a separate file"});
      }
    const Container alone = read_content(archive_of(dict({{"step", number(1)}, {ema, average}})));
    REQUIRE(alone.tensors.size() == 1);
    CHECK(alone.tensors[0].shape == Dims{6});
    CHECK(alone.warnings ==
          std::vector<std::string>{"read the state dict under \"" + ema + "\", an average of the weights",
                                   "skipped entries that are not tensors of the state dict: step"});
  }
}

TEST_CASE("The state dict in Composer's files lies two levels deep") {
  const std::string inner = dict({{"a.w", tensor()}});
  const std::string state = dict({{"model", inner}, {"optimizers", dict({{"Adam", list({tensor()})}})}});
  const Container read = read_content(archive_of(dict({{"state", state}, {"rng", list({tensor()})}})));
  CHECK(names(read) == std::vector<std::string>{"a.w"});
  REQUIRE(read.warnings.size() == 2);
  CHECK(read.warnings[0] == "read the state dict under \"state.model\"");
  CHECK_THAT(read.warnings[1], Says("optimizers, rng"));
  bad(archive_of(dict({{"state", state}, {"state", state}})), "contains \"state\" twice");
  unsupported(archive_of(dict({{"state", dict({{"state", state}})}})), "at a deeper level, under state");
  unsupported(archive_of(dict({{"state", dict({{"encoder", inner}})}})), "at a deeper level, under state");
}

TEST_CASE("Two state dicts of one model are refused") {
  const std::string inner = dict({{"a.w", tensor()}, {"b", tensor()}});
  unsupported(archive_of(dict({{"weights", inner}, {"model", dict({{"b", tensor()}})}})),
              "contains state dicts with the same names under \"model\" and \"weights\"");
  unsupported(archive_of(dict({{"model_ema", inner}, {"ema", inner}})),
              "contains state dicts with the same names under \"ema\" and \"model_ema\"");
  // Other names are another model's, or the optimizer's.
  CHECK(names(read_content(archive_of(dict({{"weights", dict({{"c", tensor()}})}, {"model", inner}})))) ==
        std::vector<std::string>{"a.w", "b"});
}

TEST_CASE("Where there is no one state dict, none is guessed") {
  const std::string inner = dict({{"w", tensor()}});
  unsupported(archive_of(tensor()), "contains one tensor, not a state dict");
  unsupported(archive_of(list({tensor()})), "contains a list, not a state dict");
  unsupported(archive_of(object("pkg", "Module", inner)), "contains an object of pkg.Module");
  unsupported(archive_of(dict({{"a.w", tensor()}, {"model", inner}})), "which one is the state dict?");
  unsupported(archive_of(dict({{"encoder", inner}, {"n", number(1)}, {"decoder", inner}})),
              "at a deeper level, under encoder, decoder, instead");
  unsupported(archive_of(dict({{"a", tensor()}, {"b", dict({{"c", list({tensor()})}})}})),
              "at a deeper level, under b");
  bad(archive_of(dict({{"model", inner}, {"model", inner}})), "contains \"model\" twice");
}

TEST_CASE("Names that are no names are refused") {
  bad(archive_of("}" + number(1) + tensor() + "s"), "by an int, not by a string");
  CHECK(bad(archive_of(dict({{"a", tensor()}, {"a", tensor()}})), "twice").tensor() == "a");
  CHECK(bad(archive_of("}" + text("a") + "q\1" + tensor() + "sh\1" + tensor() + "s"), "twice").tensor() == "a");
  bad(archive_of(dict({{"a\nb", tensor()}})), "a\\x0ab: its name has a control character");
  bad(archive_of(dict({{"a\xff", tensor()}})), "is not UTF-8");
  bad(archive_of(dict({{std::string(5000, 'n'), tensor()}})), "a name of 5000 bytes");
}

TEST_CASE("Objects of unknown classes are named where they contain tensors, and skipped in silence elsewhere") {
  const auto warnings_with = [](const std::string& args) {
    return read_content(archive_of(dict({{"w", tensor()}, {"args", args}}))).warnings;
  };
  const std::vector<std::string> aside{"skipped entries that are not tensors of the state dict: args"};
  CHECK(warnings_with(object("argparse", "Namespace", "}")) == aside);
  CHECK(warnings_with(call("pathlib", "Path", {})) == aside);
  CHECK(warnings_with(list({call("signal", "Signals", {number(15)})})) == aside);
  const std::string mesh = object("torch.distributed.device_mesh", "DeviceMesh", dict({{"mesh", tensor()}}));
  CHECK(warnings_with(object("pkg", "Spec", dict({{"mesh", mesh}}))) == aside);
  for (const std::string& holder :
       {object("pkg", "Thing", dict({{"w", tensor()}})), call("pkg", "Thing", {list({tensor()})}),
        object("pkg", "Thing", dict({{"inner", object("torch", "Size", tuple({tensor()}))}}))}) {
    const std::vector<std::string> warnings = warnings_with(holder);
    REQUIRE(warnings.size() == 2);
    CHECK(warnings[1] == "contains tensors inside objects of pkg.Thing, which were skipped");
  }
}

TEST_CASE("A storage that is mostly unused is warned of") {
  const auto warnings = [](const View& view) { return read_content(archive_of(dict({{"w", tensor(view)}}))).warnings; };
  CHECK(warnings({.shape = {6}, .strides = {1}}).empty());
  REQUIRE(warnings({.shape = {5}, .strides = {1}}).size() == 1);
  CHECK_THAT(warnings({.shape = {5}, .strides = {1}})[0], Says("contains 28 B that no tensor uses"));
  CHECK(warnings({.shape = {2, 2}, .strides = {9, 1}}).empty());
  const std::string halves = dict({{"a", tensor({.shape = {6}, .strides = {1}})},
                                   {"b", tensor({.offset = 6, .shape = {6}, .strides = {1}})},
                                   {"c", tensor()}});
  CHECK(read_content(archive_of(halves)).warnings.empty());
}

TEST_CASE("Dicts nested a hundred thousand deep, shared or in a circle, end") {
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "}" + text("d");
  deep += "}" + std::string(100'000, 's');
  CHECK(read_content(archive_of(deep)).tensors.empty());

  // Each dict holds the one before it twice: 2^250 ways down.
  std::string shared = "}" + std::string("q") + '\0';
  for (int i = 0; i < 250; ++i) {
    const char last = static_cast<char>(i);
    const char next = static_cast<char>(i + 1);
    shared += "0}" + text("a") + "h" + last + "s" + text("b") + "h" + last + "sq" + next;
  }
  CHECK(read_content(archive_of(shared)).warnings.size() == 1);
  CHECK(read_content(archive_of("}q\1" + text("self") + "h\1s")).tensors.empty());
}

/// A file of torch before 1.6.
std::string stream_file(const std::string& object, const std::vector<std::pair<std::string, std::string>>& storages,
                        std::int64_t elems = 12, const std::string& little_endian = kTrue) {
  std::string file = stream("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19") + stream(number(1001)) +
                     stream(dict({{"little_endian", little_endian}})) + stream(object);
  std::vector<std::string> keys;
  for (const auto& storage : storages) keys.push_back(text(storage.first));
  file += stream(list(keys));
  for (const auto& storage : storages) file += le_bytes(elems) + storage.second;
  return file;
}

TEST_CASE("A stream of five pickles and storages is read") {
  const std::string file = stream_file(
      dict({{"w", tensor()}, {"b", tensor({.offset = 8, .shape = {4}, .strides = {1}})}}), {{"0", kStorage}});
  const Container read = read_content(file);
  CHECK(names(read) == std::vector<std::string>{"w", "b"});
  CHECK(read.tensors[0].offset_bytes == file.find(kStorage));
  CHECK(read.tensors[1].offset_bytes == file.find(kStorage) + 32);

  const std::string none =
      stream_file(dict({{"w", tensor({.elems = 0, .shape = {0}, .strides = {1}})}}), {{"0", ""}}, 0);
  CHECK(read_content(none).tensors[0].size_bytes == 0);

  const auto view_of = [](std::int64_t begin, std::int64_t elems) {
    const std::string id = tuple({text("storage"), global("torch", "FloatStorage"), text("0"), text("cpu"), number(12),
                                  tuple({text("9"), number(begin), number(elems)})}) +
                           "Q";
    return call("torch._utils", "_rebuild_tensor_v2",
                {id, number(1), numbers({3}), numbers({1}), kFalse, ordered_dict()});
  };
  const std::string viewed = stream_file(dict({{"w", view_of(8, 4)}}), {{"0", kStorage}});
  CHECK(read_content(viewed).tensors[0].offset_bytes == viewed.find(kStorage) + 36);
  bad(stream_file(dict({{"w", view_of(8, 3)}}), {{"0", kStorage}}), "its storage of 3");
  bad(stream_file(dict({{"w", view_of(9, 4)}}), {{"0", kStorage}}), "a view beyond the end");
}

TEST_CASE("A stream that contradicts itself is refused") {
  const std::string object = dict({{"w", tensor()}});
  bad(stream_file(object, {{"0", kStorage}}, 11), "should have 48 bytes, but has 11 elements");
  bad(stream_file(object, {{"0", kStorage}}, -1), "but has 18446744073709551615 elements");
  bad(stream_file(object, {{"0", kStorage}}, (std::int64_t{1} << 62) + 12), "should have 48");
  bad(stream_file(object, {{"0", kStorage}, {"1", kStorage}}), "contains the storage 1, but no");
  bad(stream_file(object, {{"0", kStorage}, {"0", kStorage}}), "contains the storage 0 twice");
  bad(stream_file(object, {}), "its storage, 0, is not in the file");
  unsupported(stream_file(object, {{"0", kStorage}}, 12, kFalse), "big-endian");
  bad(stream_file(dict({{"w", tensor()}, {"x", tensor({.type = "IntStorage"})}}), {{"0", kStorage}}),
      "describes the storage 0 differently in two places");
}

TEST_CASE("A stream or an archive cut off at any byte is refused") {
  const std::string object = dict({{"w", tensor()}});
  for (const std::string& file : {stream_file(object, {{"0", kStorage}}), archive_of(object)}) {
    for (std::size_t size = 0; size < file.size(); ++size) {
      INFO(size);
      CHECK(error_of([&] { read_content(file.substr(0, size)); }).kind() == ErrorKind::kBadInput);
    }
  }
}

}  // namespace
}  // namespace reshard::test
