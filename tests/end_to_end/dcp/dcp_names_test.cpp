// Checkpoints of torch.distributed.checkpoint that are written with another program's names: golden ones, and refusals.
// titan_property_test.cpp draws others.

#include <algorithm>

#include "reshard/base/strings.h"
#include "reshard/layouts/core/checkpoint.h"
#include "support/checkpoints.h"
#include "support/families.h"
#include "support/golden.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

RequestFields with_names(const std::string& names, const fs::path& config = {}) {
  return {.layout = "dcp", .options = {"names=" + names, "fsdp=2"}, .config = config};
}

TEST_CASE("What torchtitan has, and the model has no values for, is noted") {
  const TempDir temp;
  write_case(family_case("qwen3_moe"), temp / "model");
  const auto job = plan_convert(convert_request(temp / "model", temp / "dcp", with_names("torchtitan-0.2")));
  CHECK_THAT(join(job->notes.texts(), "\n"), Says("layers.*.moe.expert_bias"));
}

TEST_CASE("What torchtitan 0.2 wrote is written again, chunk by chunk") {
  const fs::path golden_case = testdata("golden/dcp/titan-llama3-v0.2.2");
  const auto golden = golden_of(golden_case);
  const TempDir temp;
  convert(golden_case / "sharded", temp / "dcp", with_names("torchtitan-0.2", golden_case / "original"));
  const DcpMetadata metadata = dcp::metadata_of(temp / "dcp");
  const dcp::Content content = dcp::read(temp / "dcp");
  const auto& tensors = golden["folders"]["sharded"]["tensors"];
  CHECK(metadata.tensors.size() == tensors.size());
  for (const DcpTensor& tensor : metadata.tensors) {
    CAPTURE(tensor.name);
    const auto& expected = tensors.at(tensor.name);
    CHECK(tensor.shape == expected["shape"].get<Dims>());
    REQUIRE(tensor.chunks.size() == expected["chunks"].size());
    for (std::size_t c = 0; c < tensor.chunks.size(); ++c) {
      const auto& chunk = expected["chunks"][c];
      const Box& box = tensor.chunks[c].box;
      CHECK(box == Box{chunk["offsets"].get<Dims>(), chunk["sizes"].get<Dims>()});
      CHECK(metadata.files[tensor.chunks[c].place.file] == chunk["file"].get<std::string>());
      CHECK(sha256_hex(dcp::slice(content.tensors.at(tensor.name), box.begin, box.size)) ==
            chunk["sha256"].get<std::string>());
    }
  }
}

TEST_CASE("torchtitan's names are not taken for the model's own where no config.json translates them") {
  const fs::path source = testdata("golden/dcp/titan-llama3-v0.2.2/sharded");
  const TempDir temp;
  const auto refused = [&](const std::function<void()>& action, const char* hint) {
    check_refused(action, {.path = source,
                           .says = "its tensors have torchtitan's names, and only the model's config.json defines",
                           .hint = hint,
                           .unwritten = temp / "out"});
  };
  refused([&] { consolidated(source, temp / "out"); }, "set `config` to the model's config.json");
  refused([&] { convert(source, temp / "out"); }, "set `config`");
  write_file(temp / "unknown/config.json", R"({"model_type": "nobodys"})");
  refused([&] { convert(source, temp / "out", {.config = temp / "unknown"}); },
          "has the unknown model_type \"nobodys\"");

  // What keeps the names needs no config.json.
  CHECK(read_checkpoint(local_storage(), source, {}).names_of == "torchtitan");
  convert(source, temp / "dcp", with_names("hf"));
  CHECK(dcp::read(temp / "dcp").tensors.count("tok_embeddings.weight") == 1);
}

TEST_CASE("Names that nobody knows are refused with those that the family has") {
  const Input llama, granite({.model_type = "granite"});
  const fs::path out = llama / "dcp";
  const auto refused = [&](const fs::path& model, const char* names, const Refusal& refusal) {
    check_refused([&] { convert(model, out, with_names(names)); },
                  with_common(refusal, {.kind = ErrorKind::kUsage, .unwritten = out}));
  };
  refused(llama.path(), "torchtitan-0.3",
          {.says = "\"torchtitan-0.3\" is not a program with known names for family llama",
           .hint = "hf, torchtitan, torchtitan-main, torchtitan-0.2"});
  refused(granite.path(), "torchtitan", {.hint = ": hf alone"});
  fs::remove(llama / "model/config.json");
  refused(llama.path(), "torchtitan", {.says = "`names`: the model that they apply to is unknown"});
}

TEST_CASE("A tensor without a name, an expert that is missing, and one of another dtype are refused") {
  const Input biased({.attention_bias = true});
  const fs::path out = biased / "dcp";
  check_refused([&] { convert(biased.path(), out, with_names("torchtitan")); },
                {.kind = ErrorKind::kUnsupported,
                 .tensor = "model.layers.0.self_attn.q_proj.bias",
                 .says = "has no name in torchtitan",
                 .unwritten = out});

  TensorMap model = write_case(family_case("qwen3_moe"), biased / "moe");
  const std::string expert = std::find_if(model.begin(), model.end(), [](const auto& one) {
                               return one.first.ends_with("mlp.experts.1.up_proj.weight");
                             })->first;
  const auto refused = [&](const Refusal& refusal) {
    fs::remove(biased / "moe/model.safetensors");
    write_safetensors(biased / "moe/model.safetensors", model);
    Request request = convert_request(biased / "moe", out, with_names("torchtitan"));
    request.allow_missing = true;  // a stack cannot lack one
    return check_refused([&] { convert(request); }, with_common(refusal, {.unwritten = out}));
  };
  model.at(expert) = {DType::kF32, model.at(expert).shape, model.at(expert).bytes + model.at(expert).bytes};
  refused({.kind = ErrorKind::kUnsupported,
           .tensor = expert,
           .says = "which is in the same entry layers.1.moe.routed_experts.inner_experts.w3_EFD"});
  model.erase(expert);
  const Error missing =
      refused({.says = "contains 3 tensors, but model.layers.1.mlp.experts.1.up_proj.weight is missing"});
  CHECK_THAT(missing.tensor(), Says("moe.routed_experts.inner_experts.w3_EFD"));
}

}  // namespace
}  // namespace reshard::test
