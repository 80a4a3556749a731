// Sharded adapters as checkpoints like any other: read, compared and converted.

#include <nlohmann/json.hpp>

#include "reshard/engine/check/verify.h"
#include "reshard/layouts/peft/sharded_adapter.h"
#include "support/checkpoints.h"
#include "support/golden.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/refusals.h"
#include "support/temp_dir.h"
#include "support/torch_files.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string kLayer = "base_model.model.model.layers.0.";

TensorData floats(Random& random, const Dims& shape) {
  TensorData tensor = random_tensor(random, DType::kF32, shape);
  for (std::size_t i = 3; i < tensor.bytes.size(); i += 4) tensor.bytes[i] = '\x3f';  // no NaN, nothing that overflows
  return tensor;
}

/// A model and an adapter of it, with linears that are fused, in PEFT's directory and in shards of two ranks.
struct Sharded {
  explicit Sharded(LoraFuse fuse = LoraFuse::kMean, Format format = Format::kPytorch) {
    model.layers = 2;
    Random random(5);
    const std::uint64_t heads = model.heads * model.head_dim;
    for (std::uint64_t layer = 0; layer < model.layers; ++layer) {
      const std::string prefix = "base_model.model.model.layers." + std::to_string(layer) + ".";
      for (const auto& [linear, out, in] : {std::tuple("mlp.gate_proj", model.intermediate, model.hidden),
                                            {"mlp.up_proj", model.intermediate, model.hidden},
                                            {"mlp.down_proj", model.hidden, model.intermediate},
                                            {"self_attn.o_proj", model.hidden, heads}}) {
        tensors[prefix + linear + ".lora_A.weight"] = floats(random, {2, in});
        tensors[prefix + linear + ".lora_B.weight"] = floats(random, {out, 2});
      }
    }
    write_file(temp / "model/config.json", model.config().dump());
    write_safetensors(temp / "peft/adapter_model.safetensors", tensors);
    write_file(temp / "peft/adapter_config.json", R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4})");
    shard_to("shards", 2, fuse, format);
  }
  void shard_to(const std::string& output, std::uint32_t tp, LoraFuse fuse, Format format) const {
    ShardRequest request = shard_request(temp / "model", temp / output, tp);
    request.target.layout = layout("optimum"), request.target.format = format;
    request.adapters = {temp / "peft"};
    request.lora_fuse = fuse;
    shard(request);
  }
  ConvertRequest to_shards(const fs::path& source, const fs::path& output, Format format) const {
    ConvertRequest request = convert_request(temp / source, temp / output);
    request.target.layout = layout("optimum");
    request.target.format = format;
    return request;
  }
  Error convert_error(const ConvertRequest& request) const {
    const auto before = snapshot(temp.path());
    const Error error = error_of([&] { plan_convert(request); });
    CHECK((snapshot(temp.path()) == before));
    return error;
  }
  fs::path rank(int tp_rank) const {
    return temp / ("shards/adapter_default/adapter_shards/model/dp_rank_00_tp_rank_0" + std::to_string(tp_rank) +
                   "_pp_rank_00.pt");
  }
  /// Changes rank 1. The files then say no longer which rank they are of, as those of a trainer.
  template <typename Change>
  void rewrite_ranks(Change&& change) const {
    TensorMap changed = read_torch_tensors(rank(1));
    change(changed);
    write_torch(rank(1), changed);
    write_torch(rank(0), read_torch_tensors(rank(0)));
  }
  TempDir temp;
  TinyModel model;
  TensorMap tensors;
};

Checkpoint read(const fs::path& path) {
  return read_checkpoint(path, {ConfigUse::kLenient});
}

Verification compared(const fs::path& a, const fs::path& b) {
  return verify(read(a).map, read(b).map, {}, unsynced());
}

TEST_CASE("Every golden adapter is read from its shards as PEFT's tensors, whatever part of its folder is given") {
  for (const fs::path& golden_case : golden_cases("lora")) DYNAMIC_SECTION(golden_case.filename()) {
      const json golden = golden_of(golden_case);
      const TempDir temp;
      ConsolidateRequest request;
      request.source.path = golden_case / "sharded";
      request.output_directory = temp / "peft";
      consolidate(request);
      for (const auto& [adapter, tensors] : golden.at("consolidated").items())
        for (const char* part : {"", "adapter_shards", "adapter_shards/"}) {
          INFO(adapter << " " << part);
          const Checkpoint checkpoint = read(golden_case / "sharded" / ("adapter_" + adapter) / part);
          REQUIRE(checkpoint.adapter);
          CHECK(checkpoint.adapter->name == adapter);
          CHECK(checkpoint.has_ranks());
          CHECK(checkpoint.mesh.tp == golden.at("case").at("tp"));
          CHECK(checkpoint.mesh.pp == golden.at("case").at("pp"));
          CHECK(checkpoint.map.tensor_count() == tensors.size());
          const Verification same = compared(golden_case / "sharded" / ("adapter_" + adapter),
                                             temp / "peft" / (adapter == "default" ? "" : adapter));
          CHECK(same.same());
          CHECK(same.compared_tensors == tensors.size());
        }
    }
}

TEST_CASE("A directory with one adapter means it, one with several has to say which, and one with a model means that") {
  const Sharded s;
  CHECK(read(s.temp / "shards").adapter->name == "default");
  fs::copy(s.temp / "shards/adapter_default", s.temp / "shards/adapter_x", fs::copy_options::recursive);
  check_refused([&] { read(s.temp / "shards"); }, {.kind = ErrorKind::kUsage,
                                                   .path = s.temp / "shards",
                                                   .says = "holds 2 adapters: adapter_default, adapter_x",
                                                   .hint = (s.temp / "shards/adapter_default").string()});
  CHECK(s.convert_error(convert_request(s.temp / "shards", s.temp / "out")).kind() == ErrorKind::kUsage);
  Random random(1);
  write_model(s.temp / "shards", s.model, random_tensors(s.model, random));
  CHECK_FALSE(read(s.temp / "shards").adapter);
}

TEST_CASE("Shards, PEFT's directory and shards of other ranks hold the same adapter") {
  const LoraFuse fuse = GENERATE(LoraFuse::kMean, LoraFuse::kExact);
  const Sharded s(fuse);
  s.shard_to("four", 4, fuse, Format::kXser);
  CHECK(compared(s.temp / "shards/adapter_default", s.temp / "four").same());
  const Verification with_peft = compared(s.temp / "shards", s.temp / "peft");
  CHECK(with_peft.same() == (fuse == LoraFuse::kExact));
  if (fuse == LoraFuse::kMean) CHECK(with_peft.different.size() == 4);  // lora_A of gate and up, of each layer
  s.rewrite_ranks([](TensorMap& rank) { rank.at(kLayer + "mlp.down_proj.lora_A.weight").bytes[0] ^= 1; });
  const Verification changed = compared(s.temp / "shards", s.temp / "four");
  REQUIRE(changed.different.size() == 1);
  CHECK(changed.different[0].name == kLayer + "mlp.down_proj.lora_A.weight");
}

TEST_CASE("Converting shards to PEFT's directory writes what consolidating them writes, of any adapter that is given") {
  for (const fs::path& golden_case : golden_cases("lora")) {
    const json golden = golden_of(golden_case);
    for (const auto& [adapter, tensors] : golden.at("consolidated").items())
      for (const Format format : {Format::kSafetensors, Format::kPytorch}) {
        DYNAMIC_SECTION(golden_case.filename().string() << ", " << adapter << ", " << name(format)) {
          const TempDir temp;
          const fs::path source = golden_case / "sharded" / ("adapter_" + adapter);
          ConsolidateRequest request;
          request.source.path = source;
          request.output_directory = temp / "consolidated";
          request.target.format = format;
          consolidate(request);
          ConvertRequest converted = convert_request(source, temp / "converted");
          converted.target.format = format;
          convert(converted);
          CHECK((snapshot(temp / "converted") == snapshot(temp / "consolidated")));
        }
      }
  }
}

TEST_CASE("Shards become those of the other format and back to the byte, with all that stands beside them") {
  const LoraFuse fuse = GENERATE(LoraFuse::kMean, LoraFuse::kExact);
  const Sharded s(fuse);
  CHECK(convert(s.to_shards("shards", "xser", Format::kXser)).lossy_means.empty());
  const Checkpoint xser = read(s.temp / "xser");
  CHECK(xser.format == Format::kXser);
  CHECK(compared(s.temp / "shards", s.temp / "xser").same());
  convert(s.to_shards("xser", "again", Format::kPytorch));
  CHECK((snapshot(s.temp / "again") == snapshot(s.temp / "shards")));
  ConsolidateRequest back;
  back.source.path = s.temp / "xser";
  back.output_directory = s.temp / "whole";
  consolidate(back);
  CHECK((read_tensors(s.temp / "whole/adapter_model.safetensors") == s.tensors) == (fuse == LoraFuse::kExact));
  CHECK(read_file(s.temp / "whole/adapter_config.json") == read_file(s.temp / "peft/adapter_config.json"));
}

TEST_CASE("Golden adapters become xser and back in the very tensors and metadata that the reference wrote") {
  for (const fs::path& golden_case : golden_cases("lora")) {
    const json golden = golden_of(golden_case);
    for (const auto& [adapter, tensors] : golden.at("consolidated").items())
      for (const Format format : {Format::kPytorch, Format::kXser}) {
        DYNAMIC_SECTION(golden_case.filename().string() << ", " << adapter << ", " << name(format)) {
          const TempDir temp;
          ConvertRequest request = convert_request(golden_case / "sharded" / ("adapter_" + adapter), temp / "out");
          request.target.layout = layout("optimum");
          request.target.format = format;
          convert(request);
          for (const auto& [file, held] : golden.at("files").items()) {
            if (!file.starts_with("adapter_" + adapter + "/")) continue;
            INFO(file);
            CHECK(describe_tensors(read_torch_tensors(temp / "out" / file)) == held);
          }
          for (const char* name : {"adapter_config.json", "adapter_shards/mp_metadata_pp_rank_0.json"})
            CHECK(read_file(temp / "out" / ("adapter_" + adapter) / name) ==
                  read_file(golden_case / "sharded" / ("adapter_" + adapter) / name));
        }
      }
  }
}

TEST_CASE("With the base model's config.json shards become those of other ranks, as PEFT's directory does") {
  const LoraFuse fuse = GENERATE(LoraFuse::kMean, LoraFuse::kExact);
  const Sharded s(LoraFuse::kExact);
  s.shard_to("four", 4, fuse, Format::kPytorch);
  for (const char* source : {"shards", "peft"}) {
    DYNAMIC_SECTION(source << (fuse == LoraFuse::kMean ? ", mean" : ", exact")) {
      ConvertRequest request = s.to_shards(source, std::string(source) + "-four", Format::kPytorch);
      request.source.config = s.temp / "model";
      request.target.tp = 4;
      request.lora_fuse = fuse;
      convert(request);
      CHECK((snapshot(s.temp / (std::string(source) + "-four")) == snapshot(s.temp / "four")));
    }
  }
}

TEST_CASE("The base model's config.json may have another name, and no other beside it counts") {
  const Sharded s;
  ConvertRequest request = s.to_shards("shards", "plain", Format::kPytorch);
  request.target.tp = 4;
  request.source.config = s.temp / "model";
  convert(request);
  fs::create_directory(s.temp / "configs");
  fs::copy_file(s.temp / "model/config.json", s.temp / "configs/base.json");
  write_file(s.temp / "configs/config.json", R"({"model_type": "of nobody"})");
  request.source.config = s.temp / "configs/base.json";
  request.output_directory = s.temp / "named";
  convert(request);
  CHECK((snapshot(s.temp / "named") == snapshot(s.temp / "plain")));
}

TEST_CASE("Names and dtypes of an adapter can be changed on the way to PEFT's directory, and its file's format") {
  const Sharded s(LoraFuse::kExact);
  ConvertRequest request = convert_request(s.temp / "shards", s.temp / "half");
  request.dtype = DType::kBF16;
  request.names.drop.emplace_back("drop", "layers\\.1\\.");
  convert(request);
  const TensorMap half = read_tensors(s.temp / "half/adapter_model.safetensors");
  CHECK(half.size() == s.tensors.size() / 2);
  CHECK(half.at(kLayer + "mlp.up_proj.lora_B.weight").dtype == DType::kBF16);
  CHECK(read_file(s.temp / "half/adapter_config.json") == read_file(s.temp / "peft/adapter_config.json"));
  ConvertRequest plain = convert_request(s.temp / "peft", s.temp / "bin");
  plain.target.format = Format::kPytorch;
  convert(plain);
  CHECK((read_torch_tensors(s.temp / "bin/adapter_model.bin") == s.tensors));
  CHECK(snapshot(s.temp / "bin").size() == 2);
}

TEST_CASE("An adapter's conversion that needs the model, has no place or no effect is refused") {
  const Sharded s;
  ConvertRequest request = s.to_shards("shards", "out", Format::kPytorch);
  SECTION("other ranks without a model") {
    request.target.tp = 4;
    check_error(s.convert_error(request),
                {.path = s.temp / "shards/adapter_default/adapter_shards", .hint = "`config`"});
  }
  SECTION("shards of PEFT's directory without a model") {
    request.source.path = s.temp / "peft";
    request.target.tp = 2;
    CHECK_THAT(s.convert_error(request).hint(), Says("`config`"));
  }
  SECTION("shards of PEFT's directory for any number of ranks") {
    request.source.path = s.temp / "peft";
    request.source.config = s.temp / "model";
    check_error(s.convert_error(request), {.kind = ErrorKind::kUsage, .says = "`tp` is required"});
  }
  SECTION("a layout of models") {
    request.target.layout = layout("nxd");
    check_error(s.convert_error(request),
                {.kind = ErrorKind::kUsage, .says = "layout nxd has no place for adapters", .hint = "hf, optimum"});
  }
  SECTION("tensors dropped from shards that stay as they are") {
    request.names.drop.emplace_back("drop", "down_proj");
    check_error(s.convert_error(request), {.kind = ErrorKind::kUsage, .says = "keep all of its tensors"});
  }
  SECTION("tensors renamed in shards that stay as they are") {
    request.names.renames.push_back(parse_rename("rename", "down=up"));
    CHECK(s.convert_error(request).kind() == ErrorKind::kUsage);
  }
  SECTION("an option about models") {
    request.target.layout = layout("hf");
    request.target.format.reset();
    request.target.options.set("max-shard-size", "5GB");
    check_error(s.convert_error(request), {.kind = ErrorKind::kUsage, .says = "`max-shard-size` is about models"});
  }
  SECTION("a config.json that is not needed") {
    request.target.layout = layout("hf");
    request.target.format.reset();
    request.source.config = s.temp / "model";
    check_error(s.convert_error(request), {.kind = ErrorKind::kUsage, .says = "`config` has no effect"});
  }
  SECTION("lora_A that are fused already") {
    request.lora_fuse = LoraFuse::kExact;
    check_error(s.convert_error(request), {.kind = ErrorKind::kUsage, .says = "`lora-fuse` has no effect"});
  }
  SECTION("safetensors") {
    request.target.format = Format::kSafetensors;
    CHECK(s.convert_error(request).kind() == ErrorKind::kUsage);
  }
  SECTION("an output in the shards") {
    request.output_directory = s.temp / "shards/adapter_default/adapter_shards/model/deep";
    check_error(s.convert_error(request), {.kind = ErrorKind::kUsage, .says = "inside the shards folder"});
  }
}

TEST_CASE("A rank that is missing and replicas that differ are refused by whoever reads an adapter") {
  const Sharded s;
  s.rewrite_ranks([](TensorMap& rank) { rank.at(kLayer + "mlp.down_proj.lora_B.weight").bytes[3] = '\x7f'; });
  check_refused([&] { compared(s.temp / "shards", s.temp / "peft"); },
                {.says = "is a replica of " + kLayer + "mlp.down_proj.lora_B.weight"});
  fs::remove(s.rank(1));
  check_refused([&] { read(s.temp / "shards"); },
                {.path = s.temp / "shards/adapter_default/adapter_shards",
                 .says = "1 of the 2 ranks (tp 2 × pp 1) is missing: dp_rank_00_tp_rank_01_pp_rank_00"});
}

TEST_CASE("A folder inside an adapter's shards, or one with its metadata gone, is refused with what to give") {
  const Sharded s;
  const fs::path shards = s.temp / "shards/adapter_default/adapter_shards";
  check_refused([&] { read(shards / "model"); }, {.kind = ErrorKind::kUnsupported, .hint = "adapter_NAME"});
  fs::remove(shards / "mp_metadata_pp_rank_0.json");
  check_refused([&] { read(shards); }, {.says = "no metadata that speaks of adapters"});
}

}  // namespace
}  // namespace reshard::test
