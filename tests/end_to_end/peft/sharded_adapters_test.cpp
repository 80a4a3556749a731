// Sharded adapters as checkpoints like any other: read, compared and converted.

#include <nlohmann/json.hpp>

#include "reshard/engine/check/verify.h"
#include "reshard/engine/check/verify_manifest.h"
#include "reshard/layouts/peft/sharded_adapter.h"
#include "support/checkpoints.h"
#include "support/golden.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/requests.h"
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
  explicit Sharded(LoraFuse fuse = LoraFuse::kMean) {
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
    shard_to("shards", 2, fuse, Format::kPytorch);
  }
  void shard_to(const std::string& output, std::uint32_t tp, LoraFuse fuse, Format format) const {
    Request request = shard_request(temp / "model", temp / output, {.layout = "optimum", .format = format, .tp = tp});
    request.adapters = {temp / "peft"};
    request.target.lora_fuse = fuse;
    shard(request);
  }
  Request to_shards(const fs::path& source, const fs::path& output, Format format = Format::kPytorch) const {
    return convert_request(temp / source, temp / output, {.layout = "optimum", .format = format});
  }
  fs::path rank(int tp_rank) const {
    return temp / ("shards/adapter_default/adapter_shards/model/dp_rank_00_tp_rank_0" + std::to_string(tp_rank) +
                   "_pp_rank_00.pt");
  }
  /// Inverts a bit of rank 1. The files then say no longer which rank they are of, as those of a trainer.
  void flip_in_rank(const std::string& tensor) const {
    TensorMap changed = read_torch_tensors(rank(1));
    changed.at(tensor).bytes[0] ^= 1;
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

TEST_CASE("Golden adapters are read from any part of their folder, and become PEFT's directory, xser and back") {
  for (const fs::path& golden_case : golden_cases("lora")) {
    const json golden = golden_of(golden_case);
    for (const auto& [adapter, tensors] : golden.at("consolidated").items())
      DYNAMIC_SECTION(golden_case.filename().string() << ", " << adapter) {
        const TempDir temp;
        const fs::path source = golden_case / "sharded" / ("adapter_" + adapter);
        for (const Format format : {Format::kPytorch, Format::kSafetensors}) {
          fs::remove_all(temp / "consolidated");
          consolidate(consolidate_request(source, temp / "consolidated", {.format = format}));
          fs::remove_all(temp / "converted");
          convert(source, temp / "converted", {.format = format});
          CHECK((snapshot(temp / "converted") == snapshot(temp / "consolidated")));
        }
        for (const char* part : {"", "adapter_shards", "adapter_shards/"}) {
          CAPTURE(part);
          const Checkpoint checkpoint = read(source / part);
          REQUIRE(checkpoint.adapters.size() == 1);
          CHECK(checkpoint.adapters.front().name == adapter);
          CHECK(checkpoint.has_ranks());
          CHECK(checkpoint.mesh.tp == golden.at("case").at("tp"));
          CHECK(checkpoint.mesh.pp == golden.at("case").at("pp"));
          CHECK(checkpoint.map.tensor_count() == tensors.size());
        }
        const Verification same = compared(source, temp / "consolidated");
        CHECK(same.same());
        CHECK(same.compared_tensors == tensors.size());
        // In the very tensors and metadata that the reference wrote.
        for (const Format format : {Format::kPytorch, Format::kXser}) {
          const fs::path output = temp / std::string(name(format));
          convert(source, output, {.layout = "optimum", .format = format});
          for (const auto& [file, held] : golden.at("files").items()) {
            if (!file.starts_with("adapter_" + adapter + "/")) continue;
            INFO(file);
            CHECK(describe_tensors(read_torch_tensors(output / file)) == held);
          }
          for (const char* file : {"adapter_config.json", "adapter_shards/mp_metadata_pp_rank_0.json"})
            CHECK(read_file(output / ("adapter_" + adapter) / file) == read_file(source / file));
        }
      }
  }
}

TEST_CASE("A directory of sharded adapters means all of them, and one with a model means that") {
  const Sharded s;
  CHECK(read(s.temp / "shards").adapters.front().name == "default");
  fs::copy(s.temp / "shards/adapter_default", s.temp / "shards/adapter_x", fs::copy_options::recursive);
  const Checkpoint both = read(s.temp / "shards");
  REQUIRE(both.adapters.size() == 2);
  CHECK(both.map.find_logical(kLayer + "mlp.down_proj.lora_A.weight"));
  CHECK(both.map.find_logical("x/" + kLayer + "mlp.down_proj.lora_A.weight"));
  convert(s.temp / "shards", s.temp / "whole", {.layout = "hf"});
  CHECK(compared(s.temp / "shards/adapter_x", s.temp / "whole/x").same());
  convert(s.temp / "shards", s.temp / "copy", {.layout = "optimum"});
  for (const char* adapter : {"default", "x"})
    for (const char* name : {"adapter_config.json", "adapter_config.unfused.json"}) {
      const fs::path file = fs::path("adapter_" + std::string(adapter)) / name;
      CHECK(fs::exists(s.temp / "copy" / file) == fs::exists(s.temp / "shards" / file));
      if (fs::exists(s.temp / "shards" / file))
        CHECK(read_file(s.temp / "copy" / file) == read_file(s.temp / "shards" / file));
    }
  convert(s.temp / "shards", s.temp / "four", {.layout = "optimum", .tp = 4, .config = s.temp / "model"});
  CHECK(read(s.temp / "four").adapters.size() == 2);
  CHECK(read(s.temp / "four").mesh.tp == 4);
  fs::remove_all(s.temp / "shards/adapter_x");
  fs::copy(s.temp / "four/adapter_x", s.temp / "shards/adapter_x", fs::copy_options::recursive);
  check_refused([&] { convert(s.temp / "shards", s.temp / "mixed", {.layout = "optimum"}); },
                {.kind = ErrorKind::kUnsupported,
                 .path = s.temp / "shards/adapter_x/adapter_shards",
                 .says = "has tp 4 × pp 1 ranks, but the adapter default has tp 2 × pp 1",
                 .unwritten = s.temp / "mixed"});
  fs::remove_all(s.temp / "shards/adapter_x");
  Random random(1);
  write_model(s.temp / "shards", s.model, random_tensors(s.model, random));
  CHECK(read(s.temp / "shards").adapters.empty());
}

TEST_CASE(
    "Shards, PEFT's directory and shards of other ranks and formats hold the same adapter, and become one another") {
  const LoraFuse fuse = GENERATE(LoraFuse::kMean, LoraFuse::kExact);
  const Sharded s(fuse);
  const bool is_exact = fuse == LoraFuse::kExact;
  s.shard_to("four", 4, fuse, Format::kXser);
  CHECK(compared(s.temp / "shards/adapter_default", s.temp / "four").same());
  const Verification with_peft = compared(s.temp / "shards", s.temp / "peft");
  CHECK(with_peft.same() == is_exact);
  if (!is_exact) CHECK(with_peft.different.size() == 4);  // lora_A of gate and up, of each layer

  CHECK(convert(s.to_shards("shards", "xser", Format::kXser)).inexact.empty());
  CHECK(read(s.temp / "xser").format == Format::kXser);
  CHECK(compared(s.temp / "shards", s.temp / "xser").same());
  convert(s.to_shards("xser", "again"));  // with all that stands beside them
  CHECK((snapshot(s.temp / "again") == snapshot(s.temp / "shards")));
  consolidate(consolidate_request(s.temp / "xser", s.temp / "whole"));
  CHECK((read_tensors(s.temp / "whole/adapter_model.safetensors") == s.tensors) == is_exact);
  CHECK(read_file(s.temp / "whole/adapter_config.json") == read_file(s.temp / "peft/adapter_config.json"));

  // With the base model's config.json, which may have another name, and no other beside it counts.
  write_file(s.temp / "configs/base.json", read_file(s.temp / "model/config.json"));
  write_file(s.temp / "configs/config.json", R"({"model_type": "of nobody"})");
  for (const char* source : {"shards", "peft"})
    for (const char* config : {"model", "configs/base.json"}) {
      CAPTURE(source, config);
      fs::remove_all(s.temp / "recut");
      Request request = s.to_shards(source, "recut", Format::kXser);
      request.source.config = s.temp / config;
      request.target.tp = 4;
      request.target.lora_fuse = fuse;
      convert(request);
      CHECK((snapshot(s.temp / "recut") == snapshot(s.temp / "four")));
    }

  s.flip_in_rank(kLayer + "mlp.down_proj.lora_A.weight");
  const Verification changed = compared(s.temp / "shards", s.temp / "four");
  REQUIRE(changed.different.size() == 1);
  CHECK(changed.different[0].name == kLayer + "mlp.down_proj.lora_A.weight");
}

TEST_CASE("Names and dtypes of an adapter can be changed on the way to PEFT's directory, and its file's format") {
  const Sharded s(LoraFuse::kExact);
  Request request = convert_request(s.temp / "shards", s.temp / "half", {.dtype = DType::kBF16});
  request.names.drop.emplace_back("drop", "layers\\.1\\.");
  convert(request);
  const TensorMap half = read_tensors(s.temp / "half/adapter_model.safetensors");
  CHECK(half.size() == s.tensors.size() / 2);
  CHECK(half.at(kLayer + "mlp.up_proj.lora_B.weight").dtype == DType::kBF16);
  CHECK(read_file(s.temp / "half/adapter_config.json") == read_file(s.temp / "peft/adapter_config.json"));
  convert(s.temp / "peft", s.temp / "bin", {.format = Format::kPytorch});
  CHECK((read_torch_tensors(s.temp / "bin/adapter_model.bin") == s.tensors));
  CHECK(snapshot(s.temp / "bin").size() == 2);
}

TEST_CASE("An adapter's conversion that needs the model, has no place or no effect is refused") {
  const Sharded s;
  const auto before = snapshot(s.temp.path());
  const auto to_peft = [](Request& request) {
    request.target = {};
    request.target.layout = layout("hf");
  };
  check_refusals<std::function<void(Request&)>>(
      [&](const std::function<void(Request&)>& change) {
        Request request = s.to_shards("shards", "out");
        change(request);
        convert(request);
      },
      {.kind = ErrorKind::kUsage},
      {{"other ranks without a model",
        [](Request& request) { request.target.tp = 4; },
        {.kind = ErrorKind::kBadInput, .path = s.temp / "shards/adapter_default/adapter_shards", .hint = "`config`"}},
       {"shards of PEFT's directory without a model",
        [&](Request& request) {
          request.source.path = s.temp / "peft";
          request.target.tp = 2;
        },
        {.kind = ErrorKind::kBadInput, .hint = "`config`"}},
       {"shards of PEFT's directory for any number of ranks",
        [&](Request& request) {
          request.source.path = s.temp / "peft";
          request.source.config = s.temp / "model";
        },
        {.says = "`tp` is required"}},
       {"a layout of models",
        [](Request& request) { request.target.layout = layout("ranks"); },
        {.says = "layout ranks has no place for adapters", .hint = "hf, optimum, nxd"}},
       {"shards of another layout without a model",
        [](Request& request) { request.target.layout = layout("nxd"); },
        {.kind = ErrorKind::kBadInput, .hint = "`config`"}},
       {"tensors dropped from shards that stay as they are",
        [](Request& request) { request.names.drop.emplace_back("drop", "down_proj"); },
        {.says = "keep all of its tensors"}},
       {"tensors renamed in shards that stay as they are",
        [](Request& request) { request.names.renames.push_back(parse_rename("rename", "down=up")); },
        {}},
       {"an option about models",
        [&](Request& request) {
          to_peft(request);
          request.target.options.set("max-shard-size", "5GB");
        },
        {.says = "`max-shard-size` applies only to models"}},
       {"a config.json that is not needed",
        [&](Request& request) {
          to_peft(request);
          request.source.config = s.temp / "model";
        },
        {.says = "`config` has no effect"}},
       {"lora_A that are fused already",
        [](Request& request) { request.target.lora_fuse = LoraFuse::kExact; },
        {.says = "`lora-fuse` has no effect"}},
       {"safetensors", [](Request& request) { request.target.format = Format::kSafetensors; }, {}},
       {"an output in the shards",
        [&](Request& request) {
          request.output_directory = s.temp / "shards/adapter_default/adapter_shards/model/deep";
        },
        {.says = "inside the shards folder"}}});
  CHECK((snapshot(s.temp.path()) == before));
}

TEST_CASE("Spoiled shards of an adapter are refused by whoever reads them") {
  const Sharded s;
  const fs::path shards = s.temp / "shards/adapter_default/adapter_shards";
  s.flip_in_rank(kLayer + "mlp.down_proj.lora_B.weight");
  check_refused([&] { compared(s.temp / "shards", s.temp / "peft"); },
                {.says = "is a replica of " + kLayer + "mlp.down_proj.lora_B.weight"});
  check_refused([&] { read(shards / "model"); }, {.kind = ErrorKind::kUnsupported, .hint = "adapter_NAME"});
  fs::remove(s.rank(1));
  check_refused(
      [&] { read(s.temp / "shards"); },
      {.path = shards, .says = "1 of the 2 ranks (tp 2 × pp 1) is missing: dp_rank_00_tp_rank_01_pp_rank_00"});
  fs::remove(shards / "mp_metadata_pp_rank_0.json");
  check_refused([&] { read(shards); }, {.says = "no metadata for adapters"});
}

TEST_CASE("An adapter that has lost its lora_A, or is told to drop its lora_B, is refused wherever it goes") {
  const Sharded sharded;
  const std::string a = kLayer + "mlp.down_proj.lora_A.weight", b = kLayer + "mlp.down_proj.lora_B.weight";
  Request to_shards = shard_request(sharded.temp / "model", sharded.temp / "none", {.layout = "optimum", .tp = 2});
  to_shards.adapters = {sharded.temp / "peft"};
  for (Request request : {to_shards, convert_request(sharded.temp / "shards", sharded.temp / "none", {.layout = "hf"}),
                          convert_request(sharded.temp / "peft", sharded.temp / "none", {.layout = "hf"})}) {
    request.names.drop.emplace_back("drop", "down_proj.lora_B");
    check_refused([&] { request.adapters.empty() ? plan_convert(request) : plan_shard(request); },
                  {.tensor = b, .says = "is missing, although the module has a lora_A", .hint = "`drop`"});
  }
  for (int rank : {0, 1}) {
    TensorMap tensors = read_torch_tensors(sharded.rank(rank));
    for (auto it = tensors.begin(); it != tensors.end();) it = it->first == a ? tensors.erase(it) : std::next(it);
    write_torch(sharded.rank(rank), tensors);
  }
  check_refused(
      [&] { plan_convert(convert_request(sharded.temp / "shards", sharded.temp / "none", {.layout = "hf"})); },
      {.tensor = a, .says = "is missing"});
}

TEST_CASE("Shards of an adapter are not taken for a directory of PEFT") {
  const Sharded s;
  Request request = shard_request(s.temp / "model", s.temp / "none", {.layout = "optimum", .tp = 2});
  request.adapters = {s.temp / "shards"};
  check_refused([&] { plan_shard(request); },
                {.kind = ErrorKind::kUsage, .path = s.temp / "shards", .says = "sharded adapters", .hint = "convert"});
}

TEST_CASE("Adapters fit the manifests that are written with them, whatever the ranks have instead of a linear's own") {
  for (const LoraFuse fuse : {LoraFuse::kMean, LoraFuse::kExact}) {
    const Sharded s(fuse);
    fs::copy(s.temp / "peft", s.temp / "both", fs::copy_options::recursive);
    fs::copy(s.temp / "peft", s.temp / "both/x", fs::copy_options::recursive);
    Request request = shard_request(s.temp / "model", s.temp / "ranks", {.layout = "optimum", .tp = 2});
    request.adapters = {s.temp / "both"};
    request.target.lora_fuse = fuse;
    const Request back = convert_request(s.temp / "ranks", s.temp / "back", {.layout = "hf"});
    for (const bool is_back : {false, true}) {
      CAPTURE(static_cast<int>(fuse), is_back);
      const auto job = is_back ? plan_convert(back) : plan_shard(request);
      job->manifest = true;
      execute(*job, unsynced());
      const fs::path output = s.temp / (is_back ? "back" : "ranks");
      const fs::path file = output / kManifestFile;
      const Checkpoint found = is_back ? read_peft_adapters(local_storage(), {output}) : read(output);
      CHECK(verify_manifest(found.map, parse_manifest(read_file(file), file), file, unsynced()).same());
    }
  }
}

}  // namespace
}  // namespace reshard::test
