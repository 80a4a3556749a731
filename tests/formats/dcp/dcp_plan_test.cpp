// What is written for torch.distributed.checkpoint, read back; tests/torch/check_dcp.py has torch judge it.

#include "reshard/formats/dcp/dcp_plan.h"

#include <fmt/format.h>

#include "reshard/formats/dcp/dcp_item.h"
#include "reshard/io/memory_files.h"
#include "support/dcp.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

TEST_CASE("A .metadata that is written says on reading what it was made of") {
  DcpMetadata metadata;
  metadata.files = {"__0_0.distcp", "__1_0.distcp"};
  for (std::uint64_t i = 0; i < 300; ++i) {  // so many that places in the memo take more than a byte
    const std::string name = fmt::format("model.layers.{}.weight", i);
    metadata.tensors.push_back({name,
                                {},
                                i % 2 == 0 ? DType::kBF16 : DType::kF8E4M3,
                                {i + 2, 70000, std::uint64_t{1} << 33},
                                {{{{0, 0, 0}, {1, 70000, std::uint64_t{1} << 33}}, {0, 0, 64 * i, 1000 + i}},
                                 {{{1, 0, 0}, {i + 1, 70000, std::uint64_t{1} << 33}}, {1, 0, 1ull << 40, 5}}}});
    metadata.paths.push_back({name, {std::string("model"), fmt::format("layers.{}.weight", i)}});
  }
  metadata.tensors.push_back({"step", {}, DType::kF32, {}, {{{{}, {}}, {1, 0, 7, 9}}}});
  metadata.paths.push_back({"step", {std::string("step")}});
  metadata.bytes = {{"optim.param_groups.0.lr", {1, 0, 16, 864}}, {"rng", {0, 0, 1 << 20, 7}}};
  metadata.paths.push_back(
      {"optim.param_groups.0.lr", {std::string("optim"), std::string("param_groups"), 0, std::string("lr")}});
  const DcpMetadata read = read_dcp_metadata(MemorySource(dcp_metadata_file(metadata)), "f");
  CHECK(read.files == metadata.files);
  CHECK(read.paths == metadata.paths);
  REQUIRE(read.bytes.size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(read.bytes[i].name == metadata.bytes[i].name);
    CHECK((read.bytes[i].place == metadata.bytes[i].place));
  }
  REQUIRE(read.tensors.size() == metadata.tensors.size());
  for (std::size_t t = 0; t < read.tensors.size(); ++t) {
    const DcpTensor& tensor = read.tensors[t];
    const DcpTensor& expected = metadata.tensors[t];
    INFO(expected.name);
    CHECK(tensor.name == expected.name);
    CHECK(tensor.dtype == expected.dtype);
    CHECK(tensor.shape == expected.shape);
    REQUIRE(tensor.chunks.size() == expected.chunks.size());
    for (std::size_t c = 0; c < tensor.chunks.size(); ++c) {
      CHECK((tensor.chunks[c].box == expected.chunks[c].box));
      CHECK((tensor.chunks[c].place == expected.chunks[c].place));
    }
  }
}

TEST_CASE("Items that are written are found where the plan says, and objects between them as they are") {
  const std::string object = dcp::object_bytes("any");
  std::vector<TensorEntry> entries{{"a", DType::kBF16, {3, 5}},
                                   {"o", DType::kU8, {object.size()}},
                                   {"b", DType::kF32, {}},
                                   {"c", DType::kF8E5M2, {7}}};
  entries[1].is_object = true;
  const DcpItemsPlan plan = plan_dcp_items(entries, std::vector<std::uint32_t>{1, 0, 2, 3});
  std::string bytes(plan.container.size_bytes, '\0');
  for (const FilePart& part : plan.container.parts) bytes.replace(part.offset_bytes, part.bytes.size(), part.bytes);
  bytes.replace(plan.places[1].offset_bytes, object.size(), object);
  MemoryFiles files;
  files.write("d/__0_0.distcp", bytes);
  DcpFile file(files, "d/__0_0.distcp");
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const TensorEntry& planned = plan.container.tensors[i];
    const DcpTensor tensor{planned.name, {}, planned.dtype, planned.shape, {}};
    const DcpChunk chunk{{Dims(planned.shape.size()), planned.shape}, plan.places[i]};
    const TensorEntry found = (i == 1 ? file.find(DcpBytes{"o", plan.places[i]}) : file.find(tensor, chunk)).tensor;
    CHECK(found.offset_bytes == planned.offset_bytes);
    CHECK(found.size_bytes == planned.size_bytes);
    CHECK(found.shape == entries[i].shape);
    CHECK(plan.places[i].offset_bytes % 64 == 0);
  }
  CHECK(plan.places[1].offset_bytes == plan.container.tensors[1].offset_bytes);
  CHECK(plan.places[1].length_bytes == object.size());
}

TEST_CASE("Names that nobody could read again are refused") {
  for (const std::string name : {"", "a\xff", "a\nb", "\xc3"}) {
    CAPTURE(name);
    DcpMetadata tensors, objects;
    tensors.tensors.push_back({name, {}, DType::kF32, {2}, {}});
    objects.bytes.push_back({name, {}});
    for (const DcpMetadata& metadata : {tensors, objects})
      check_refused([&] { dcp_metadata_file(metadata); }, {.tensor = name, .hint = "rename"});
  }
  DcpMetadata umlaut;
  umlaut.tensors.push_back({"\xc3\xa4", {}, DType::kF32, {2}, {}});
  CHECK_NOTHROW(dcp_metadata_file(umlaut));
}

TEST_CASE("A dtype that torch does not have is refused") {
  DcpMetadata metadata;
  metadata.tensors.push_back({"t", {}, std::nullopt, {2}, {}});
  check_refused([&] { dcp_metadata_file(metadata); }, {.kind = ErrorKind::kUnsupported, .tensor = "t"});
}

}  // namespace
}  // namespace reshard::test
