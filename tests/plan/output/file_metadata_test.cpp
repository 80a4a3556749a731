// Metadata in the headers of safetensors files.

#include "reshard/plan/output/file_metadata.h"

#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "reshard/formats/safetensors/hf_index.h"
#include "support/checkpoints.h"
#include "support/input.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/torch_files.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

json header_of(const fs::path& file) {
  const std::string bytes = read_file(file);
  std::uint64_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof size);
  return json::parse(bytes.substr(sizeof size, size));
}

/// Writes `tensors` to a file whose metadata is `metadata`.
void write_with_metadata(const fs::path& file, const TensorMap& tensors, const json& metadata) {
  const std::string bytes = safetensors_bytes(tensors);
  std::uint64_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof size);
  json header = json::parse(bytes.substr(sizeof size, size));
  header["__metadata__"] = metadata;
  write_file(file, safetensors_bytes(header.dump(), bytes.substr(sizeof size + size)));
}

/// The metadata of all safetensors files in a directory, by name of the file.
std::map<std::string, json> metadata_in(const fs::path& directory) {
  std::map<std::string, json> all;
  for (const auto& entry : fs::directory_iterator(directory))
    if (entry.path().extension() == ".safetensors")
      all[entry.path().filename()] = header_of(entry.path())["__metadata__"];
  return all;
}

TensorData bytes_of(char value, std::size_t count = 8) {
  return {DType::kU8, {count}, std::string(count, value)};
}

/// Tensors as torchao saves them, and their metadata.
const TensorMap kAoTensors{
    {"a._weight_qdata", bytes_of('q')}, {"a._weight_scale", bytes_of('s')}, {"b.bias", bytes_of('b')}};
const json kAo{{"format", "pt"},
               {"a.weight", R"({"_type": "Float8Tensor", "_tensor_data_names": ["qdata", "scale"]})"},
               {"b.bias", R"({"_type": "Tensor"})"},
               {"tensor_names", R"(["a.weight", "b.bias"])"}};

const TensorMap kLora{{"unet.q.lora_A.weight", bytes_of('A')}, {"unet.q.lora_B.weight", bytes_of('B')}};
const json kLoraMetadata{{"format", "pt"}, {"lora_adapter_metadata", R"({"unet.r": 4, "unet.lora_alpha": 8})"}};

TEST_CASE("The metadata of a file goes with its tensors, into one file or several") {
  const TempDir temp;
  write_with_metadata(temp / "ao/model.safetensors", kAoTensors, kAo);
  CHECK(convert(temp / "ao", temp / "one").files == 1);
  CHECK(header_of(temp / "one/model.safetensors")["__metadata__"] == kAo);
  convert(temp / "ao", temp / "several", {.options = {"max-shard-size=8"}});
  CHECK(metadata_in(temp / "several").size() == 3);
  for (const auto& [file, metadata] : metadata_in(temp / "several")) CHECK(metadata == kAo);
  convert(temp / "several", temp / "back");
  CHECK(header_of(temp / "back/model.safetensors")["__metadata__"] == kAo);
  CHECK((read_model(temp / "back") == kAoTensors));
}

TEST_CASE("Metadata of several files is joined, and a key with two values is left out with a note") {
  const TempDir temp;
  write_with_metadata(temp / "in/model-00001-of-00002.safetensors", {{"a", bytes_of('a')}},
                      {{"tensor_names", R"(["a"])"}, {"a", "of a"}, {"date", "monday"}, {"by", "me"}});
  write_with_metadata(temp / "in/model-00002-of-00002.safetensors", {{"b", bytes_of('b')}},
                      {{"tensor_names", R"(["b"])"}, {"b", "of b"}, {"date", "friday"}, {"by", "me"}});
  const auto job = plan_convert(convert_request(temp / "in", temp / "out"));
  CHECK_THAT(joined_notes(*job),
             Says("left out 1 key of the source's metadata, which the files of this output do not have: date"));
  execute(*job, unsynced());
  CHECK(header_of(temp / "out/model.safetensors")["__metadata__"] ==
        json{{"format", "pt"}, {"tensor_names", R"(["a","b"])"}, {"a", "of a"}, {"b", "of b"}, {"by", "me"}});
}

TEST_CASE("A key without which no program can use the tensors is an error where it cannot be carried") {
  const TempDir temp;
  write_with_metadata(temp / "ao/model.safetensors", kAoTensors, kAo);
  write_with_metadata(temp / "lora/pytorch_lora_weights.safetensors", kLora, kLoraMetadata);
  const auto check = [&](const std::string& file, const std::string& key) {
    INFO(file);
    const Refusal refusal{.kind = ErrorKind::kUnsupported, .path = temp / file, .says = {key, "cannot carry it"}};
    check_refused([&] { convert(temp / file, temp / "out", {.format = Format::kPytorch}); }, refusal);
    check_refused([&] { convert(temp / file, temp / "out", {.layout = "dcp"}); }, refusal);
    Request request = convert_request(temp / file, temp / "out");
    request.names.renames.push_back(parse_rename("rename", "^=x."));
    check_refused(
        [&] { plan_convert(request); },
        {.kind = ErrorKind::kUnsupported, .path = temp / file, .says = {key, "under other names"}, .hint = "`rename`"});
  };
  check("ao/model.safetensors", "tensor_names");
  check("lora/pytorch_lora_weights.safetensors", "lora_adapter_metadata");
  TensorMap wide = kAoTensors;
  wide["c"] = floats({2}, {1, 2});
  write_with_metadata(temp / "wide/model.safetensors", wide, kAo);
  check_refused([&] { convert(temp / "wide", temp / "out", {.dtype = DType::kBF16}); },
                {.kind = ErrorKind::kUnsupported, .says = {"tensor_names", "in another dtype"}, .hint = "`dtype`"});
  Request fewer = convert_request(temp / "wide", temp / "out");
  fewer.names.drop.emplace_back("drop", "^c$");
  check_refused([&] { plan_convert(fewer); },
                {.kind = ErrorKind::kUnsupported, .says = {"tensor_names", "without some of them"}, .hint = "`drop`"});
  CHECK_FALSE(fs::exists(temp / "out"));
}

TEST_CASE("Two values of such a key do not fit into one file, and the files can be converted one by one") {
  const TempDir temp;
  for (const char* number : {"1", "2"})
    write_with_metadata(temp / "in" / ("model-0000" + std::string(number) + "-of-00002.safetensors"),
                        {{number, bytes_of('a')}}, {{"lora_adapter_metadata", number}});
  check_refused([&] { convert(temp / "in", temp / "out"); },
                {.kind = ErrorKind::kUnsupported,
                 .path = temp / "in/model-00001-of-00002.safetensors",
                 .says = {"lora_adapter_metadata", "another file has another value"},
                 .hint = "one by one",
                 .unwritten = temp / "out"});
  convert(temp / "in/model-00002-of-00002.safetensors", temp / "out");
  CHECK(header_of(temp / "out/model.safetensors")["__metadata__"]["lora_adapter_metadata"] == "2");
}

TEST_CASE("Metadata that merely informs is left out of other formats and layouts with a note") {
  const TempDir temp;
  const Input input;
  write_with_metadata(input / "model/model.safetensors", input.tensors,
                      {{"format", "pt"}, {"ss_epoch", "3"}, {"ss_network_dim", "8"}});
  for (const RequestFields& to : {RequestFields{.format = Format::kPytorch}, RequestFields{.layout = "dcp"},
                                  RequestFields{.layout = "ranks", .tp = 2}}) {
    INFO(to.layout);
    const auto job = plan_convert(convert_request(input / "model", input / "out", to));
    CHECK_THAT(joined_notes(*job), Says("do not have: ss_epoch, ss_network_dim"));
  }
  CHECK(joined_notes(*plan_convert(convert_request(input / "model", input / "out"))).find("metadata") ==
        std::string::npos);
}

TEST_CASE("LoRA files and components of Diffusers keep the names that Diffusers looks for") {
  const TempDir temp;
  write_with_metadata(temp / "lora/pytorch_lora_weights.safetensors", kLora, kLoraMetadata);
  for (const char* source : {"lora/pytorch_lora_weights.safetensors", "lora"}) {
    INFO(source);
    convert(temp / source, temp / "out", {.force = true});
    CHECK(header_of(temp / "out/pytorch_lora_weights.safetensors")["__metadata__"] == kLoraMetadata);
    CHECK((read_tensors(temp / "out/pytorch_lora_weights.safetensors") == kLora));
  }
  const TensorMap unet{{"in.bias", bytes_of('b')}, {"in.weight", bytes_of('w')}};
  write_torch(temp / "unet/diffusion_pytorch_model.bin", unet);
  write_file(temp / "unet/config.json", R"({"_class_name": "UNet2DConditionModel"})");
  write_torch(temp / "fp16/diffusion_pytorch_model.fp16.bin", unet);
  for (const char* source : {"unet", "unet/diffusion_pytorch_model.bin", "fp16"}) {
    INFO(source);
    convert(temp / source, temp / "whole", {.format = Format::kSafetensors, .force = true});
    CHECK((read_tensors(temp / "whole/diffusion_pytorch_model.safetensors") == unet));
    CHECK((read_whole(temp / "whole") == unet));
  }
  convert(temp / "unet", temp / "several", {.options = {"max-shard-size=8"}});
  CHECK(fs::exists(temp / "several/diffusion_pytorch_model-00002-of-00002.safetensors"));
  CHECK(json::parse(
            read_file(temp / "several/diffusion_pytorch_model.safetensors.index.json"))["weight_map"]["in.bias"] ==
        "diffusion_pytorch_model-00001-of-00002.safetensors");
  convert(temp / "several", temp / "back", {.format = Format::kPytorch});
  CHECK((read_torch_tensors(temp / "back/diffusion_pytorch_model.bin") == unet));
}

TEST_CASE("No key of any file's metadata is lost in silence, however files are divided") {
  const std::uint64_t seed = GENERATE(from_range(seeds(40)));
  INFO("RESHARD_TEST_SEED=" << seed);
  Random random(seed);
  const TempDir temp;
  const TinyModel model = random_model(random);
  const std::uint64_t count = pick(random, 1, 3);
  std::map<std::uint64_t, TensorMap> of_files;
  for (const auto& [name, tensor] : random_tensors(model, random)) of_files[random() % count][name] = tensor;
  write_file(temp / "in/config.json", model.config().dump());
  std::map<std::string, std::set<std::string>> keys_of;  // of each tensor
  std::uint64_t number = 0;
  for (const auto& [index, tensors] : of_files) {
    json metadata{{"format", "pt"}};
    for (std::uint64_t key = random() % 4; key-- > 0;)
      metadata["key" + std::to_string(random() % 5)] = "value" + std::to_string(random() % 2);
    for (const auto& [name, tensor] : tensors)
      for (const auto& [key, value] : metadata.items()) keys_of[name].insert(key);
    write_with_metadata(temp / "in" / hf_file_name(Format::kSafetensors, ++number, of_files.size()), tensors, metadata);
  }
  RequestFields to{.options = {"max-shard-size=" + std::to_string(one_of(random, {100, 1000, 1000000}))}};
  if (random() % 3 == 0) to = {.layout = random() % 2 ? "ranks" : "dcp"};
  if (to.layout == "ranks") to = {.layout = "ranks", .format = Format::kSafetensors, .tp = 1};
  const auto job = plan_convert(convert_request(temp / "in", temp / "out", to));
  execute(*job, unsynced());
  const std::string notes = joined_notes(*job);
  std::size_t found = 0;
  for (const auto& entry : fs::recursive_directory_iterator(temp / "out")) {
    if (entry.path().extension() != ".safetensors") continue;
    const json header = header_of(entry.path());
    for (const auto& [name, tensor] : header.items())
      for (const std::string& key : keys_of[name]) {
        ++found;
        INFO(name << ", " << key << ", " << notes);
        CHECK((header["__metadata__"].contains(key) || notes.find(key) != notes.npos));
      }
  }
  CHECK((found > 0 || to.layout == "dcp"));
}

}  // namespace
}  // namespace reshard::test
