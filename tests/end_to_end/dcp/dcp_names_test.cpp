// Checkpoints of torch.distributed.checkpoint that are written with another program's names: what it stacks, and in
// which order it has rows.

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reshard/formats/dcp/dcp_item.h"
#include "reshard/formats/dcp/dcp_metadata.h"
#include "reshard/layouts/core/checkpoint.h"
#include "support/checkpoints.h"
#include "support/dcp.h"
#include "support/families.h"
#include "support/golden.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/random.h"
#include "support/refusals.h"
#include "support/temp_dir.h"
#include "support/thread_ranks.h"
#include "support/titan.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

ConvertRequest to_titan(const fs::path& source, const fs::path& output, const std::string& names, std::uint64_t fsdp,
                        std::optional<std::uint32_t> tp = {}) {
  ConvertRequest request = convert_request(source, output);
  request.target.layout = layout("dcp");
  request.target.tp = tp;
  request.target.options.set_number("fsdp", fsdp);
  request.target.options.set("names", names);
  return request;
}

struct WrittenChunk {
  Box box;
  std::string file;
  std::string bytes;
};

struct WrittenTensor {
  DType dtype;
  Dims shape;
  std::vector<WrittenChunk> chunks;
};

/// The entries of a directory, by its metadata.
std::map<std::string, WrittenTensor> entries_of(const fs::path& directory) {
  const fs::path path = directory / kDcpMetadataFile;
  const DcpMetadata metadata = read_dcp_metadata(*local_storage().open(path), path);
  std::map<std::string, std::unique_ptr<DcpFile>> files;
  std::map<std::string, WrittenTensor> entries;
  for (const DcpTensor& tensor : metadata.tensors) {
    WrittenTensor& entry = entries[tensor.name];
    entry.dtype = tensor.dtype.value();
    entry.shape = tensor.shape;
    for (const DcpChunk& chunk : tensor.chunks) {
      const std::string& name = metadata.files[chunk.place.file];
      auto& file = files[name];
      if (!file) file = std::make_unique<DcpFile>(local_storage(), directory / name);
      const TensorEntry item = file->find(tensor, chunk).tensor;
      REQUIRE(item.strides.empty());
      entry.chunks.push_back({chunk.box, name, read_file(directory / name).substr(item.offset_bytes, item.size_bytes)});
    }
  }
  return entries;
}

/// That the entries are `expected`, cut into `fsdp` parts of rows each.
void check_entries(const std::map<std::string, WrittenTensor>& entries,
                   const std::map<std::string, TensorData>& expected, std::uint64_t fsdp, bool rows_alone) {
  CHECK(entries.size() == expected.size());
  for (const auto& [name, data] : expected) {
    CAPTURE(name);
    REQUIRE(entries.count(name) == 1);
    const WrittenTensor& entry = entries.at(name);
    CHECK(entry.dtype == data.dtype);
    CHECK(entry.shape == data.shape);
    std::uint64_t elems = 0;
    const std::uint64_t rows = (data.shape[0] + fsdp - 1) / fsdp;
    for (const WrittenChunk& chunk : entry.chunks) {
      CHECK((chunk.bytes == dcp::slice(data, chunk.box.begin, chunk.box.size)));
      elems += volume(chunk.box);
      if (!rows_alone) continue;
      CHECK(chunk.box.begin[0] % rows == 0);
      CHECK(chunk.box.size[0] == std::min(rows, data.shape[0] - chunk.box.begin[0]));
    }
    CHECK(elems == num_elems(data.shape).value());
  }
}

/// Writes a model in every way, holds it against what torchtitan has, and reads it back.
void check_model(const fs::path& model_directory, const TensorMap& model, const std::string& names, Random& random,
                 const std::map<std::string, TensorData>& titan) {
  const TempDir temp;
  const std::uint64_t fsdp = pick(random, 1, 6);
  const std::uint32_t tp = static_cast<std::uint32_t>(pick(random, 1, 3));
  CAPTURE(names, fsdp, tp);
  convert(to_titan(model_directory, temp / "dcp", names, fsdp, tp));
  const auto entries = entries_of(temp / "dcp");
  check_entries(entries, titan, fsdp, tp == 1);
  ConvertRequest back = convert_request(temp / "dcp", temp / "out");
  back.source.config = model_directory;
  convert(back);
  CHECK((read_model(temp / "out") == model));
  // The same in blocks that end anywhere in a head.
  const auto job = plan_convert(local_storage(), to_titan(model_directory, temp / "blocks", names, fsdp, tp));
  run_in_blocks(*job, temp / "blocks", pick(random, 1, 200), 2);
  for (const auto& [name, entry] : entries)
    for (const WrittenChunk& chunk : entry.chunks)
      CHECK((read_file(temp / "blocks" / chunk.file) == read_file(temp / "dcp" / chunk.file)));
  if (pick(random, 0, 3) > 0) return;
  // And by ranks whose shares end anywhere.
  const auto thrown = run_ranks(3, [&](Together& together) {
    RunOptions options = unsynced();
    options.tuning.page_bytes = 64;
    options.tuning.unit_bytes = 200;
    options.tuning.max_shared_part = 1e9;
    execute(*plan_convert(local_storage(), to_titan(model_directory, temp / "ranks", names, fsdp, tp)), options,
            together);
  });
  for (const auto& error : thrown) CHECK((error ? std::string(error->what()) : "") == "");
  for (const auto& [name, entry] : entries)
    for (const WrittenChunk& chunk : entry.chunks)
      CHECK((read_file(temp / "ranks" / chunk.file) == read_file(temp / "dcp" / chunk.file)));
}

TEST_CASE("torchtitan's Llama and Qwen3 are written with the rows that it has, in any parts") {
  for (const char* model_type : {"llama", "qwen3"})
    for (const bool is_main : {false, true})
      for (const std::uint64_t seed : seeds(6)) {
        CAPTURE(model_type, seed);
        Random random(seed);
        TinyModel tiny;
        tiny.model_type = model_type;
        tiny.head_dim = 2 * pick(random, 1, 4);
        tiny.heads = 2 * pick(random, 1, 3);
        tiny.kv_heads = tiny.heads / 2;
        const TempDir temp;
        const TensorMap model = random_tensors(tiny, random);
        write_model(temp / "model", tiny, model);
        const std::uint64_t rotary = model_type == std::string("llama") ? tiny.head_dim : 0;
        check_model(temp / "model", model, is_main ? "torchtitan" : "torchtitan-0.2", random,
                    titan_tensors(model, is_main, rotary, true));
      }
}

TEST_CASE("Experts are written in torchtitan's stacks, in any parts") {
  for (const char* name : {"qwen3_moe", "deepseek_v3", "deepseek_v3_no_q_lora"})
    for (const bool is_main : {false, true})
      for (const std::uint64_t seed : seeds(2)) {
        CAPTURE(name, seed);
        Random random(seed);
        const TempDir temp;
        const TensorMap model = write_case(family_case(name), temp / "model");
        check_model(temp / "model", model, is_main ? "torchtitan-main" : "torchtitan-0.2", random,
                    titan_tensors(model, is_main, 0, std::string(name) == "qwen3_moe"));
      }
}

TEST_CASE("What torchtitan has, and the model has no values for, is noted") {
  const TempDir temp;
  write_case(family_case("qwen3_moe"), temp / "model");
  const auto job = plan_convert(local_storage(), to_titan(temp / "model", temp / "dcp", "torchtitan-0.2", 1));
  CHECK_THAT(nlohmann::json(job->notes).dump(), Says("layers.*.moe.expert_bias"));
}

TEST_CASE("What torchtitan 0.2 wrote is written again, chunk by chunk") {
  const fs::path golden_case = testdata("golden/dcp/titan-llama3-v0.2.2");
  const auto golden = golden_of(golden_case);
  const TempDir temp;
  ConvertRequest request = to_titan(golden_case / "sharded", temp / "dcp", "torchtitan-0.2", 2);
  request.source.config = golden_case / "original";
  convert(request);
  const auto entries = entries_of(temp / "dcp");
  const auto& tensors = golden["folders"]["sharded"]["tensors"];
  CHECK(entries.size() == tensors.size());
  for (const auto& [name, tensor] : tensors.items()) {
    CAPTURE(name);
    REQUIRE(entries.count(name) == 1);
    const WrittenTensor& entry = entries.at(name);
    CHECK(Dims(entry.shape) == tensor["shape"].get<Dims>());
    REQUIRE(entry.chunks.size() == tensor["chunks"].size());
    for (std::size_t c = 0; c < entry.chunks.size(); ++c) {
      const auto& chunk = tensor["chunks"][c];
      CHECK(entry.chunks[c].box.begin == chunk["offsets"].get<Dims>());
      CHECK(entry.chunks[c].box.size == chunk["sizes"].get<Dims>());
      CHECK(entry.chunks[c].file == chunk["file"].get<std::string>());
      CHECK(sha256_hex(entry.chunks[c].bytes) == chunk["sha256"].get<std::string>());
    }
  }
}

TEST_CASE("torchtitan's names are not taken for the model's own where no config.json translates them") {
  const fs::path golden_case = testdata("golden/dcp/titan-llama3-v0.2.2");
  const TempDir temp;
  const auto check = [&](const Error& error, const char* hint) {
    CHECK(error.kind() == ErrorKind::kBadInput);
    CHECK_THAT(error.what(), Says("its tensors have torchtitan's names, and only the model's config.json says"));
    CHECK_THAT(error.hint(), Says(hint));
    CHECK_FALSE(fs::exists(temp / "out"));
  };
  ConsolidateRequest consolidated;
  consolidated.source.path = golden_case / "sharded";
  consolidated.output_directory = temp / "out";
  const Error none = error_of([&] { consolidate(consolidated); });
  check(none, "say with `config` where the model's config.json is");
  CHECK(none.path() == (golden_case / "sharded").string());

  ConvertRequest converted = convert_request(golden_case / "sharded", temp / "out");
  check(error_of([&] { convert(converted); }), "say with `config`");
  write_file(temp / "unknown/config.json", R"({"model_type": "nobodys"})");
  converted.source.config = temp / "unknown";
  check(error_of([&] { convert(converted); }), "has the model_type \"nobodys\", which is not known");

  // What keeps the names needs no config.json.
  CHECK(read_checkpoint(local_storage(), golden_case / "sharded", {}).names_of == "torchtitan");
  convert(to_titan(golden_case / "sharded", temp / "dcp", "hf", 3));
  CHECK(entries_of(temp / "dcp").count("tok_embeddings.weight") == 1);
}

TEST_CASE("A model of Hugging Face goes to torchtitan and back, as the case has it") {
  const fs::path golden_case = testdata("golden/dcp/titan-llama3-v0.2.2");
  for (const char* names : {"torchtitan", "torchtitan-0.2"}) {
    const TempDir temp;
    ShardRequest request;
    request.source.path = golden_case / "original";
    request.output_directory = temp / "dcp";
    request.target = to_titan("", "", names, 3).target;
    shard(request);
    ConvertRequest back = convert_request(temp / "dcp", temp / "out");
    back.source.config = golden_case / "original";
    convert(back);
    CHECK(describe_tensors(read_model(temp / "out")) == golden_of(golden_case)["original"]);
  }
}

TEST_CASE("A tied head has the program's name too, behind a prefix where one is given") {
  TinyModel tiny;
  tiny.tied = true;
  Random random(21);
  const TempDir temp;
  write_model(temp / "model", tiny, random_tensors(tiny, random));
  ConvertRequest request = to_titan(temp / "model", temp / "dcp", "torchtitan-0.2", 2);
  request.target.options.set("prefix", "app.model");
  convert(request);
  const fs::path path = temp / "dcp" / kDcpMetadataFile;
  const DcpMetadata metadata = read_dcp_metadata(*local_storage().open(path), path);
  const auto places = [&](const std::string& name) {
    const auto found = std::find_if(metadata.tensors.begin(), metadata.tensors.end(),
                                    [&](const DcpTensor& tensor) { return tensor.name == name; });
    REQUIRE(found != metadata.tensors.end());
    std::vector<std::uint64_t> offsets;
    for (const DcpChunk& chunk : found->chunks) offsets.push_back(chunk.place.offset_bytes);
    return offsets;
  };
  CHECK(places("app.model.output.weight") == places("app.model.tok_embeddings.weight"));
  for (const auto& [name, expected] : metadata.paths)
    CHECK((expected == DcpPath{"app", "model", name.substr(std::string("app.model.").size())}));
  CHECK(metadata.paths.size() == metadata.tensors.size());
}

TEST_CASE("Names of Hugging Face are those of the model, and need no config.json") {
  Random random(20);
  const TempDir temp;
  const TensorMap tensors{{"w", random_tensor(random, DType::kF32, {3, 2})}};
  write_safetensors(temp / "in.safetensors", tensors);
  convert(to_titan(temp / "in.safetensors", temp / "dcp", "hf", 2));
  CHECK(entries_of(temp / "dcp").count("w") == 1);
}

TEST_CASE("Names that nobody knows are refused with those that the family has") {
  Random random(22);
  const TinyModel tiny;
  const TempDir temp;
  write_model(temp / "model", tiny, random_tensors(tiny, random));
  check_refused([&] { convert(to_titan(temp / "model", temp / "out", "torchtitan-0.3", 1)); },
                {.kind = ErrorKind::kUsage,
                 .says = "\"torchtitan-0.3\" is no program whose names for family llama are known",
                 .hint = "hf, torchtitan, torchtitan-main, torchtitan-0.2"});

  TinyModel other;
  other.model_type = "granite";
  write_model(temp / "granite", other, random_tensors(other, random));
  CHECK_THAT(error_of([&] { convert(to_titan(temp / "granite", temp / "out", "torchtitan", 1)); }).hint(),
             Says("there are hf alone"));

  fs::remove(temp / "model/config.json");
  check_refused([&] { convert(to_titan(temp / "model", temp / "out", "torchtitan", 1)); },
                {.kind = ErrorKind::kUsage, .says = "`names`: nothing says which tensors of the model have them"});
  CHECK_FALSE(fs::exists(temp / "out"));
}

TEST_CASE("A tensor without a name, an expert that is missing, and one of another dtype are refused") {
  const TempDir temp;
  Random random(23);
  TinyModel tiny;
  tiny.attention_bias = true;
  write_model(temp / "bias", tiny, random_tensors(tiny, random));
  check_refused([&] { convert(to_titan(temp / "bias", temp / "out", "torchtitan", 1)); },
                {.kind = ErrorKind::kUnsupported,
                 .tensor = "model.layers.0.self_attn.q_proj.bias",
                 .says = "has no name in torchtitan"});

  TensorMap model = write_case(family_case("qwen3_moe"), temp / "moe");
  const std::string expert = std::find_if(model.begin(), model.end(), [](const auto& one) {
                               return one.first.ends_with("mlp.experts.1.up_proj.weight");
                             })->first;
  const auto refused = [&](const TensorMap& tensors) {
    fs::remove(temp / "moe/model.safetensors");
    write_safetensors(temp / "moe/model.safetensors", tensors);
    ConvertRequest request = to_titan(temp / "moe", temp / "out", "torchtitan", 1);
    request.allow_missing = true;  // a stack cannot lack one
    return error_of([&] { convert(request); });
  };
  TensorMap cast = model;
  cast.at(expert) = random_tensor(random, DType::kF32, model.at(expert).shape);
  check_error(refused(cast),
              {.kind = ErrorKind::kUnsupported, .tensor = expert, .says = "cannot be stacked with other experts"});
  model.erase(expert);
  const Error missing = refused(model);
  CHECK(missing.kind() == ErrorKind::kBadInput);
  CHECK_THAT(missing.tensor(), Says("moe.routed_experts.inner_experts.w3_EFD"));
  CHECK_THAT(missing.what(), Says("of which number 1 is missing"));
  CHECK_FALSE(fs::exists(temp / "out"));
}

}  // namespace
}  // namespace reshard::test
