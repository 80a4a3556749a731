// Wrappers of modules leave parts in the names of a model's tensors: torch.compile, FSDP, activation checkpointing, DDP.

#include <functional>
#include <string>

#include "reshard/specs/stages/stage_json.h"
#include "support/checkpoints.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/trained.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

std::string replaced(std::string name, const std::string& part, const std::string& by) {
  if (const std::size_t at = name.find(part); at != name.npos) name.replace(at, part.size(), by);
  return name;
}

/// What stands before all names.
const std::string kInFront[] = {"module.", "module._orig_mod.", "model.",           "policy.",
                                "actor.",  "state_dict.model.", "base_model.model."};

/// The name of a tensor where `wrapper` is around all of the model, the base model, or attention.
std::string wrapped(const std::string& name, const std::string& wrapper) {
  if (wrapper == "model.module.") return replaced(name, "model.", wrapper);
  if (wrapper == "self_attn.module.") return replaced(name, "self_attn.", wrapper);
  if (std::find(std::begin(kInFront), std::end(kInFront), wrapper) != std::end(kInFront)) return wrapper + name;
  return wrapper + replaced(name, "self_attn.", "self_attn." + wrapper);
}

using NewName = std::function<std::string(const std::string&)>;

TensorMap renamed(const TensorMap& tensors, const NewName& new_name) {
  TensorMap others;
  for (const auto& [name, tensor] : tensors) others[new_name(name)] = tensor;
  return others;
}

TensorMap wrapped(const TensorMap& tensors, const std::string& wrapper) {
  return renamed(tensors, [&](const std::string& name) { return wrapped(name, wrapper); });
}

/// Renames the tensors of all ranks of `input`, in safetensors, and those in their metadata, which `keeps_metadata` does
/// not remove.
void rename_ranks(const Input& input, const NewName& new_name, bool keeps_metadata) {
  for (const auto& entry : fs::recursive_directory_iterator(input.path())) {
    const fs::path& path = entry.path();
    if (path.filename().string().starts_with("mp_metadata")) {
      if (!keeps_metadata) {
        fs::remove(path);
        continue;
      }
      StageMetadata metadata = read_metadata(path);
      for (ParallelParameter& parameter : metadata.parameters) parameter.name = new_name(parameter.name);
      for (ModuleSpecs& module : metadata.modules) {
        module.module_fully_qualified_name = new_name(module.module_fully_qualified_name + ".");
        module.module_fully_qualified_name.pop_back();
      }
      write_file(path, metadata_text(metadata));
    } else if (path.extension() == ".safetensors") {
      write_safetensors(path, renamed(read_tensors(path), new_name));
    }
  }
}

/// A change of names, and the `rename` that takes it back.
struct Change {
  std::string part, by, rename;

  std::string operator()(const std::string& name) const { return replaced(name, part, by); }
};

const Change kChanges[] = {{"", "mod.", "^mod\\.="},
                           {"", "a.model.b.", "^a\\.model\\.b\\.="},
                           {"self_attn.", "attention.self.", "attention\\.self\\.=self_attn."},
                           {"layers.", "blocks.", "\\bblocks\\.=layers."}};

TinyModel any_model(Random& random) {
  return {.kv_heads = pick(random, 1, 2) * 2, .tied = random() % 2 == 0, .attention_bias = random() % 2 == 0};
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

TEST_CASE("Ranks are read under any wrapper and under any renamed name, with metadata and without") {
  for (const std::uint64_t seed : seeds(24)) {
    Random random(seed);
    const bool has_metadata = random() % 2 == 0, is_wrapped = random() % 2 == 0,
               is_changed = !is_wrapped || random() % 2;
    const std::string wrapper = kWrappers[random() % std::size(kWrappers)];
    const Change& change = kChanges[random() % std::size(kChanges)];
    RequestFields to{.layout = "presharded", .tp = static_cast<std::uint32_t>(1 << pick(random, 0, 2))};
    if (has_metadata || random() % 2)
      to = {.layout = "ranks",
            .format = Format::kSafetensors,
            .tp = to.tp,
            .pp = static_cast<std::uint32_t>(pick(random, 1, 2))};
    CAPTURE(seed, has_metadata, is_wrapped, wrapper, is_changed, change.rename, to.layout, *to.tp);
    const Input input(any_model(random), to, seed);
    rename_ranks(
        input,
        [&](const std::string& name) {
          const std::string other = is_changed ? change(name) : name;
          return is_wrapped ? wrapped(other, wrapper) : other;
        },
        has_metadata);
    Request request = consolidate_request(input.path(), input / "whole");
    if (is_changed) request.names.renames.push_back(parse_rename("rename", change.rename));
    const auto job = plan_consolidate(request);
    CHECK_THAT(joined_notes(*job), !Says("matches no tensor"));
    execute(*job, unsynced());
    CHECK((read_model(input / "whole") == input.tensors));
  }
}

TEST_CASE("Names that have to be changed before a model is known are changed in every layout of a trainer") {
  for (const std::string kind : kTrainedKinds)
    for (const Change& change : kChanges) {
      CAPTURE(kind, change.rename);
      const Input input({}, {}, 1, DType::kF32);  // DeepSpeed has no other master weights of these
      Random random(7);
      write_trained(kind, input / "run", renamed(input.tensors, change), 0, random);
      fs::copy_file(input / "model/config.json", input / "run/config.json");
      RequestFields to{.layout = "presharded", .tp = 2};
      if (kind == "zero-2") to.source_options = {"weights=model"};
      Request request = shard_request(input / "run", input / "ranks", to);
      request.names.renames.push_back(parse_rename("rename", change.rename));
      execute(*plan_shard(request), unsynced());
      CHECK((consolidated(input / "ranks", input / "whole") == input.tensors));
    }
}

TEST_CASE("Names of whole tensors are changed before the model is read, and patterns match those of the files") {
  for (const Change& change : kChanges) {
    CAPTURE(change.rename);
    const Input input({.tied = true});
    TensorMap stored = renamed(input.tensors, change);
    const std::string extra = change("model.layers.0.self_attn.extra");
    stored[extra] = {DType::kU8, {1}, "x"};
    write_safetensors(input / "model/model.safetensors", stored);
    Request request = shard_request(input / "model", input / "out", {.layout = "presharded", .tp = 2});
    request.names.renames.push_back(parse_rename("rename", change.rename));
    request.names.drop.emplace_back("drop", "^" + extra + "$");
    const auto job = plan_shard(request);
    CHECK_THAT(joined_notes(*job), !Says("matches no tensor"));
    execute(*job, unsynced());
    CHECK((consolidated(input / "out", input / "whole") == input.tensors));
    request = convert_request(input / "model", input / "copy", {});
    request.names.renames.push_back(parse_rename("rename", "^=thinker."));  // away from the model's names
    request.allow_missing = true;
    execute(*plan_convert(request), unsynced());
    const std::string prefix = change.part.empty() ? change.by : "";  // before all names, so it is taken out first
    CHECK((read_model(input / "copy") ==
           renamed(stored, [&](const std::string& name) { return "thinker." + name.substr(prefix.size()); })));
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
