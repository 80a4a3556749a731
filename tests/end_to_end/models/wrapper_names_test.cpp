// Wrappers of modules leave parts in the names of a model's tensors: torch.compile, FSDP, activation checkpointing, DDP.

#include <string>
#include <utility>

#include "reshard/layouts/core/checkpoint.h"
#include "support/checkpoints.h"
#include "support/files.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/random.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// A tiny model in `directory`.
TensorMap tiny_model(const fs::path& directory) {
  const TinyModel model;
  Random random(1);
  const TensorMap tensors = random_tensors(model, random);
  write_model(directory, model, tensors);
  return tensors;
}

std::string replaced(std::string name, const std::string& part, const std::string& by) {
  if (const std::size_t at = name.find(part); at != name.npos) name.replace(at, part.size(), by);
  return name;
}

/// What stands before all names.
const std::string kInFront[] = {"module.", "module._orig_mod.", "model.",           "policy.",
                                "actor.",  "state_dict.model.", "base_model.model."};

/// The tensors as they are called where `wrapper` is around all of the model, the base model, or attention.
TensorMap wrapped(const TensorMap& tensors, const std::string& wrapper) {
  TensorMap renamed;
  for (const auto& [name, tensor] : tensors) {
    if (wrapper == "model.module.")
      renamed[replaced(name, "model.", wrapper)] = tensor;
    else if (wrapper == "self_attn.module.")
      renamed[replaced(name, "self_attn.", wrapper)] = tensor;
    else if (std::find(std::begin(kInFront), std::end(kInFront), wrapper) != std::end(kInFront))
      renamed[wrapper + name] = tensor;
    else
      renamed[wrapper + replaced(name, "self_attn.", "self_attn." + wrapper)] = tensor;
  }
  return renamed;
}

bool has_note(const std::vector<std::string>& notes, const std::string& says) {
  return std::any_of(notes.begin(), notes.end(), [&](const std::string& note) { return note.find(says) != note.npos; });
}

const std::string kWrappers[] = {"_orig_mod.",
                                 "_fsdp_wrapped_module.",
                                 "_checkpoint_wrapped_module.",
                                 "module.",
                                 "module._orig_mod.",
                                 "model.module.",
                                 "self_attn.module.",
                                 "model.",
                                 "policy.",
                                 "actor.",
                                 "state_dict.model.",
                                 "base_model.model."};

TEST_CASE("What wrappers leave in the names of whole tensors is taken out, with a note") {
  for (const std::string& wrapper : kWrappers) {
    DYNAMIC_SECTION(wrapper) {
      const TempDir temp;
      const TensorMap tensors = tiny_model(temp / "model");
      write_safetensors(temp / "model/model.safetensors", wrapped(tensors, wrapper));
      const auto job = plan_shard(shard_request(temp / "model", temp / "out", 2));
      CHECK(has_note(job->notes, "names of tensors are read without "));
      shard(shard_request(temp / "model", temp / "out", 2));
      CHECK((consolidated(temp / "out", temp / "whole") == tensors));

      ConvertRequest to_torch = convert_request(temp / "model", temp / "torch");
      to_torch.target.format = Format::kPytorch;
      convert(to_torch);
      ConsolidateRequest lone;
      lone.source.path = temp / "model/model.safetensors";
      lone.output_directory = temp / "one";
      consolidate(lone);
      CHECK((read_tensors(temp / "one/model.safetensors") == tensors));
      convert(convert_request(temp / "torch", temp / "back"));
      for (const auto& [name, tensor] : read_whole(temp / "back")) CHECK((tensors.at(name) == tensor));
    }
  }
}

TEST_CASE("What wrappers leave in the names of ranks is taken out, with a note") {
  for (const std::string& wrapper : kWrappers) {
    DYNAMIC_SECTION(wrapper) {
      const TempDir temp;
      const TensorMap tensors = tiny_model(temp / "model");
      ShardRequest request = shard_request(temp / "model", temp / "out", 2);
      request.target.layout = layout("presharded");
      shard(request);
      for (const char* rank : {"tp0", "tp1"}) {
        const fs::path file = temp / "out/weights" / (std::string(rank) + "_sharded_checkpoint.safetensors");
        write_safetensors(file, wrapped(read_tensors(file), wrapper));
      }
      const Checkpoint checkpoint = read_checkpoint(temp / "out", {ConfigUse::kStrict});
      CHECK(has_note(checkpoint.notes, "names of tensors are read without "));
      CHECK((consolidated(temp / "out", temp / "whole") == tensors));
    }
  }
}

TEST_CASE("What stands before all names of a model without a head is taken out as well, and nothing of its own") {
  const TempDir temp;
  TinyModel model;
  model.tied = true;
  Random random(1);
  const TensorMap tensors = random_tensors(model, random);
  for (const std::string prefix : {"", "model.", "policy.model."}) {
    DYNAMIC_SECTION(prefix) {
      TensorMap stored;
      for (const auto& [name, tensor] : tensors) stored[prefix + name] = tensor;
      write_model(temp / "model", model, stored);
      convert(convert_request(temp / "model", temp / "out"));
      CHECK((read_model(temp / "out") == tensors));
    }
  }
}

TEST_CASE("Two names that become one are an error, and a module of one's own may be called module") {
  const TempDir temp;
  TensorMap tensors = tiny_model(temp / "model");
  tensors["_orig_mod.model.norm.weight"] = tensors["model.norm.weight"];
  write_safetensors(temp / "model/model.safetensors", tensors);
  check_refused([&] { plan_shard(shard_request(temp / "model", temp / "out", 2)); },
                {.path = temp / "model/model.safetensors",
                 .says = "gets the name model.norm.weight",
                 .hint = "keep one of the two in the file"});

  fs::create_directories(temp / "own");
  const TensorMap own{{"module.linear.weight", {DType::kU8, {2}, "ab"}}};
  write_safetensors(temp / "own/model.safetensors", own);
  convert(convert_request(temp / "own", temp / "copy"));
  CHECK((read_tensors(temp / "copy/model.safetensors") == own));
}

TEST_CASE("The _extra_state of TransformerEngine's modules is left out, with a note") {
  const TempDir temp;
  const TensorMap tensors = tiny_model(temp / "model");
  TensorMap with_states = tensors;
  with_states["model.layers.0.self_attn.q_proj._extra_state"] = {DType::kU8, {3}, "abc"};
  write_safetensors(temp / "model/model.safetensors", with_states);
  CHECK(has_note(plan_shard(shard_request(temp / "model", temp / "out", 2))->notes, "_extra_state is left out"));
  shard(shard_request(temp / "model", temp / "out", 2));
  CHECK((consolidated(temp / "out", temp / "whole") == tensors));
}

}  // namespace
}  // namespace reshard::test
