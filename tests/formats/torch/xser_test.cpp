#include "reshard/formats/torch/xser.h"

#include "reshard/formats/torch/torch_file.h"
#include "support/files.h"
#include "support/local_files.h"
#include "support/pickles.h"
#include "support/refusals.h"
#include "support/temp_dir.h"
#include "support/zips.h"

namespace reshard::test {
namespace {

using namespace pickles;

std::string reference(const std::string& tid) {
  return object("torch_xla.utils.serialization", "TensorReference", dict({{"tid", tid}}));
}

std::string info(const std::string& dtype, const std::vector<std::int64_t>& shape, const std::string& expert) {
  return dict({{"dtype", global("torch", dtype)},
               {"shape", call("torch", "Size", {numbers(shape)})},
               {"expert_model_parallel", expert}});
}

/// A container of two tensors, "a" and "b", of which "b" is split over experts.
struct Files {
  Files() {
    write("c", dict({{"a", reference(number(0))}, {"b", reference(number(7))}, {"tied", reference(number(0))}}));
    for (const char* tid : {"0", "7"}) write(std::string("c.tensors/tensor_") + tid + ".pt", tensor());
    write_info(info("float32", {3, 4}, kTrue));
  }

  void write(const std::string& name, const std::string& value) const {
    write_file(dir / name, torch_zip(stream(value), {{"0", std::string(48, 's')}}));
  }
  void write_info(const std::string& of_7) const {
    write("c.info.pt", "}(" + number(0) + info("float32", {3, 4}, kFalse) + number(7) + of_7 + "u");
  }
  Container read() const { return read_xser(dir / "c"); }

  TempDir dir;
};

void refused(const Files& files, const char* file, const char* tensor, const char* says) {
  check_refused([&] { files.read(); }, {.path = files.dir / file, .tensor = tensor, .says = says});
}

TEST_CASE("An xser container is its reference file and the files of its tensors") {
  const Files files;
  CHECK(is_xser(files.dir / "c"));
  CHECK_FALSE(is_xser(files.dir / "c.info.pt"));
  CHECK_FALSE(is_xser(files.dir / "nowhere"));
  const Container read = files.read();
  REQUIRE(read.files.size() == 3);
  CHECK(read.path == files.dir / "c");
  CHECK(read.files[0].path == files.dir / "c");
  CHECK(read.files[2].path == files.dir / "c.tensors/tensor_7.pt");
  std::uint64_t bytes = 0;
  for (const ContainerFile& file : read.files) {
    CHECK(file.size_bytes == std::filesystem::file_size(file.path));
    bytes += file.size_bytes;
  }
  CHECK(read.size_bytes == bytes);
  REQUIRE(read.tensors.size() == 3);
  CHECK(read.tensors[1].name == "b");
  CHECK(read.tensors[1].file == 2);
  CHECK(read_file(files.dir / "c.tensors/tensor_7.pt").substr(read.tensors[1].offset_bytes, 48) ==
        std::string(48, 's'));
  CHECK(read.tensors[2].file == read.tensors[0].file);
  CHECK(read.metadata == std::vector<std::pair<std::string, std::string>>{{kXserExpertParallel, "b"}});
  CHECK(read.warnings.empty());
}

TEST_CASE("A reference file without its folder is told from a state dict") {
  const Files files;
  std::filesystem::remove_all(files.dir / "c.tensors");
  CHECK_FALSE(is_xser(files.dir / "c"));
  check_refused([&] { read_torch(files.dir / "c"); }, {.tensor = "a", .hint = "c.tensors"});
}

TEST_CASE("The info file may be missing, or lack a tensor") {
  const Files files;
  files.write("c.info.pt", "}");
  CHECK(files.read().tensors.size() == 3);
  std::filesystem::remove(files.dir / "c.info.pt");
  CHECK(files.read().tensors.size() == 3);
  CHECK(files.read().metadata.empty());
}

TEST_CASE("An info file that says something else is refused") {
  const Files files;
  files.write_info(info("bfloat16", {3, 4}, kTrue));
  refused(files, "c.info.pt", "b", "has torch.bfloat16 here, but its file contains torch.float32");
  files.write_info(info("float32", {4, 3}, kTrue));
  refused(files, "c.info.pt", "b", "another shape here, but its file contains the shape [3, 4]");
  files.write_info(info("float32", {3}, kTrue));
  refused(files, "c.info.pt", "b", "another shape");
  files.write("c.info.pt", tensor());
  refused(files, "c.info.pt", "", "not a dict");
}

TEST_CASE("A tensor's file that is missing or holds something else is refused") {
  const Files files;
  std::filesystem::remove(files.dir / "c.tensors/tensor_7.pt");
  refused(files, "c.tensors/tensor_7.pt", "b", "its file is missing");
  files.write("c.tensors/tensor_7.pt", dict({{"b", tensor()}}));
  refused(files, "c.tensors/tensor_7.pt", "b", "is a dict, not a tensor");
  files.write("c.tensors/tensor_7.pt", tensor({.offset = 1}));
  refused(files, "c.tensors/tensor_7.pt", "b", "its storage");
}

TEST_CASE("A reference by something that is not a tensor number is refused") {
  for (const std::string& tid : {number(-1), number(100'000'001), number(INT64_MAX), text("../../x"), kTrue, kNone}) {
    const Files files;
    files.write("c", dict({{"a", reference(tid)}}));
    refused(files, "c", "a", "not a tensor number");
  }
  const Files files;
  files.write("c", dict({{"a", reference(number(100'000'000))}}));
  refused(files, "c.tensors/tensor_100000000.pt", "a", "its file is missing");
  files.write("c", dict({{"a", call("torch_xla.utils.serialization", "TensorReference", {number(0)})}}));
  refused(files, "c", "a", "not a tensor number");
}

}  // namespace
}  // namespace reshard::test
