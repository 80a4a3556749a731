// Faults while headers are read: every operation of every reader fails once, and every read is cut short once. The
// error names the file, and the reader does nothing more.

#include <functional>
#include <map>

#include "reshard/formats/read_container.h"
#include "reshard/formats/torch/xser.h"
#include "reshard/io/memory_files.h"
#include "support/fault_storage.h"
#include "support/files.h"
#include "support/pickles.h"
#include "support/refusals.h"
#include "support/zips.h"

namespace reshard::test {
namespace {

using namespace pickles;
using Operation = FaultStorage::Operation;

constexpr const char* kPath = "in/c";

std::string safetensors_file() {
  return safetensors_bytes(R"({"w":{"dtype":"F32","shape":[3,4],"data_offsets":[0,48]}})", std::string(48, 's'));
}

std::string archive_file() {
  return zip_bytes({{"t/data.pkl", stream(dict({{"w", tensor()}}))},
                    {"t/byteorder", "little"},
                    {"t/data/0", std::string(48, 's')},
                    {"t/reshard.json", R"({"a":"b"})"}},
                   {.zip64 = true, .descriptors = true, .comment = "comment"});
}

/// Before torch 1.6, with a pickle so long that it is read in several windows.
std::string stream_file() {
  const std::string long_text = text(std::string(std::size_t{5} << 20, 'x'));
  std::string file = stream("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19") + stream(number(1001)) +
                     stream(dict({{"little_endian", kTrue}})) + stream(dict({{"w", tensor()}, {"args", long_text}}));
  return file + stream(list({text("0")})) + le_bytes<std::int64_t>(12) + std::string(48, 's');
}

std::string saved(const std::string& value) {
  return torch_zip(stream(value), {{"0", std::string(48, 's')}});
}

std::string xser_reference(std::int64_t tid) {
  return object("torch_xla.utils.serialization", "TensorReference", dict({{"tid", number(tid)}}));
}

struct HeaderCase {
  const char* name;
  std::map<std::string, std::string> files;
  std::size_t reads;  // at least
};

std::vector<HeaderCase> header_cases() {
  return {{"safetensors", {{kPath, safetensors_file()}}, 2},
          {"an archive of torch.save", {{kPath, archive_file()}}, 7},
          {"a stream of torch.save", {{kPath, stream_file()}}, 4},
          {"xser",
           {{kPath, saved(dict({{"a", xser_reference(0)}, {"b", xser_reference(7)}}))},
            {"in/c.tensors/tensor_0.pt", saved(tensor())},
            {"in/c.tensors/tensor_7.pt", saved(tensor())},
            {"in/c.info.pt", saved("}")}},
           20}};
}

void write(MemoryFiles& files, const HeaderCase& one) {
  for (const auto& [path, content] : one.files) files.write(path, content);
}

Container read(Files& files) {
  return read_container(files, kPath, format_of_file(files, kPath));
}

TEST_CASE(
    "Any operation that fails while a header is read, and any read of a file that was cut, is an error that names it") {
  for (const HeaderCase& one : header_cases()) {
    MemoryFiles files;
    write(files, one);
    FaultStorage watched(files);
    REQUIRE(read(watched).tensors.size() == (one.files.size() > 1 ? 2u : 1u));
    CHECK(watched.count(Operation::kRead) >= one.reads);
    const auto steps = watched.steps();
    for (std::size_t number = 0; number < steps.size(); ++number)
      for (const bool cut : {false, true}) {
        if (cut && steps[number].operation != Operation::kRead) continue;
        INFO(one.name << ", operation " << number << (cut ? " cut" : ""));
        FaultStorage storage(files);
        (cut ? storage.cut_at : storage.fail_at) = number;
        check_refused(
            [&] { read(storage); },
            {.kind = ErrorKind::kIo, .path = steps[number].path, .says = cut ? "made to end here" : "made to fail"});
        CHECK(storage.operations() == number + 1);
      }
  }
}

TEST_CASE("A file that ends before or within anything that is read of its header is bad input that names it") {
  for (const HeaderCase& one : header_cases()) {
    MemoryFiles files;
    write(files, one);
    FaultStorage watched(files);
    const Format format = format_of_file(files, kPath);
    read_container(watched, kPath, format);
    for (const auto& [path, content] : one.files)
      for (const FaultStorage::Range range : watched.reads(path))
        for (const std::uint64_t size : {range.begin_bytes, (range.begin_bytes + range.end_bytes) / 2}) {
          INFO(one.name << ", " << path << " cut to " << size << " bytes");
          REQUIRE(size < content.size());
          files.write(path, content.substr(0, size));
          check_refused([&] { read_container(files, kPath, format); }, {.path = path});
          files.write(path, content);
        }
  }
}

TEST_CASE("Containers have the stamps of their files from before they were read") {
  for (const HeaderCase& one : header_cases()) {
    INFO(one.name);
    MemoryFiles files;
    write(files, one);
    FaultStorage storage(files);
    // Every file is written again whenever one is read.
    storage.before = [&](Operation operation, std::uint64_t) {
      if (operation == Operation::kRead)
        for (const auto& file : one.files) files.write(file.first, file.second);
    };
    const Container container = read(storage);
    CHECK(container.files.size() == std::max<std::size_t>(one.files.size() - 1, 1));  // xser's info is none of them
    for (const ContainerFile& file : container.files) {
      REQUIRE(file.stamp);
      CHECK_FALSE(*file.stamp == files.stamp(file.path));
    }
  }
}

}  // namespace
}  // namespace reshard::test
