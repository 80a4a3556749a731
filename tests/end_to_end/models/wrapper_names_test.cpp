// Wrappers of modules leave parts in the names of a model's tensors: torch.compile, FSDP, activation checkpointing, DDP.

#include <string>

#include "support/checkpoints.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

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
      const Input input;
      write_safetensors(input / "model/model.safetensors", wrapped(input.tensors, wrapper));
      const auto job = plan_shard(shard_request(input / "model", input / "out", 2));
      CHECK_THAT(joined_notes(*job), Says("names of tensors are read without "));
      execute(*job, unsynced());
      CHECK((consolidated(input / "out", input / "whole") == input.tensors));
      CHECK((consolidated(input / "model/model.safetensors", input / "one") == input.tensors));
      convert(input / "model", input / "torch", {.format = Format::kPytorch});
      CHECK((converted(input / "torch", input / "back") == input.tensors));
    }
  }
}

TEST_CASE("What wrappers leave in the names of ranks is taken out, with a note") {
  for (const std::string& wrapper : kWrappers) {
    DYNAMIC_SECTION(wrapper) {
      const Input input({}, {.layout = "presharded", .tp = 2});
      for (const std::uint32_t rank : {0, 1})
        write_safetensors(input.rank_file(rank), wrapped(read_tensors(input.rank_file(rank)), wrapper));
      CHECK_THAT(joined_notes(*plan_consolidate(consolidate_request(input.path(), input / "whole"))),
                 Says("names of tensors are read without "));
      CHECK((input.whole() == input.tensors));
    }
  }
}

TEST_CASE("What stands before all names of a model without a head is taken out as well, and nothing of its own") {
  const Input input({.tied = true});
  for (const std::string prefix : {"", "model.", "policy.model."}) {
    DYNAMIC_SECTION(prefix) {
      TensorMap stored;
      for (const auto& [name, tensor] : input.tensors) stored[prefix + name] = tensor;
      write_model(input / "model", input.model, stored);
      CHECK((converted(input / "model", input / "out") == input.tensors));
    }
  }
}

TEST_CASE("Two names that become one are an error, and a module of one's own may be called module") {
  const Input input;
  TensorMap tensors = input.tensors;
  tensors["_orig_mod.model.norm.weight"] = tensors["model.norm.weight"];
  write_safetensors(input / "model/model.safetensors", tensors);
  check_refused([&] { plan_shard(shard_request(input / "model", input / "out", 2)); },
                {.path = input / "model/model.safetensors",
                 .says = "gets the name model.norm.weight",
                 .hint = "keep one of the two in the file"});

  const TensorMap own{{"module.linear.weight", {DType::kU8, {2}, "ab"}}};
  write_safetensors(input / "own/model.safetensors", own);
  CHECK((converted(input / "own", input / "copy") == own));
}

TEST_CASE("The _extra_state of TransformerEngine's modules is left out, with a note") {
  const Input input;
  TensorMap with_states = input.tensors;
  with_states["model.layers.0.self_attn.q_proj._extra_state"] = {DType::kU8, {3}, "abc"};
  write_safetensors(input / "model/model.safetensors", with_states);
  const auto job = plan_shard(shard_request(input / "model", input / "out", 2));
  CHECK_THAT(joined_notes(*job), Says("left out _extra_state"));
  execute(*job, unsynced());
  CHECK((consolidated(input / "out", input / "whole") == input.tensors));
}

}  // namespace
}  // namespace reshard::test
