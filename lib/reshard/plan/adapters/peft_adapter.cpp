#include "reshard/plan/adapters/peft_adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "reshard/base/error.h"
#include "reshard/base/pattern.h"
#include "reshard/base/strings.h"
#include "reshard/formats/read_container.h"
#include "reshard/layouts/interrupted_swap.h"
#include "reshard/layouts/peft/adapter_folders.h"
#include "reshard/specs/peft/adapter_metadata.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBaseLayer = ".base_layer";

bool is_peft_directory(Files& files, const fs::path& directory) {
  return files.is_directory(directory) && files.exists(directory / kAdapterConfigFile);
}

PeftAdapter read_one(Files& files, const std::string& name, const fs::path& directory) {
  if (has_control(name))
    throw Error(ErrorKind::kBadInput, "holds a control character, which the name of an adapter cannot").in(directory);
  PeftAdapter adapter{name, directory, read_adapter_config(files, directory / kAdapterConfigFile), {}};
  if (files.exists(directory / kAdapterSafetensorsFile))
    adapter.file = read_container(files, directory / kAdapterSafetensorsFile, Format::kSafetensors);
  else if (files.exists(directory / kAdapterPytorchFile))
    adapter.file = read_container(files, directory / kAdapterPytorchFile, Format::kPytorch);
  else
    throw Error(ErrorKind::kBadInput, fmt::format("holds an adapter_config.json, but neither {} nor {}",
                                                  kAdapterSafetensorsFile, kAdapterPytorchFile))
        .in(directory);
  return adapter;
}

/// What adapters contain besides matrices for the model's linears.
struct Other {
  const char* pattern;  // found in the name of a tensor
  const char* what;
  const char* hint;
};
constexpr Other kOthers[] = {
    {R"(\.lora_(A|B)\.[^.]+\.weight$|\.lora_embedding_[AB]\.[^.]+$|\.modules_to_save\.)",
     "has an adapter's name in it, as in the memory of PEFT", "save the adapter with save_pretrained"},
    {R"(\.token_adapter\.|\.trainable_tokens)", "is of trainable tokens, which are not sharded",
     "merge the adapter into the model (merge_and_unload) and shard that"},
    {R"(^(score|classifier|classification_head|qa_outputs|v_head|summary)\.)",
     "is of a head that the adapter adds to the model, which is not sharded",
     "save the adapter without the head, or merge it into the model (merge_and_unload) and shard that"},
    {R"((^|\.)(language_model|text_model|vision_tower|vision_model|visual|multi_modal_projector|connector|thinker)\.)",
     "adapts a part of a model of several parts, whose names are not those of its language model",
     "merge the adapter into the model (merge_and_unload) and shard that"},
};

/// Sorts the tensors of one adapter's file.
class Sorter {
 public:
  Sorter(const AdapterSource& adapter, const Model& model, const std::vector<FusedLayer>& fused) : adapter_(adapter) {
    content_.name = adapter.name;
    for (const ModelParameter& parameter : model.parameters) parameters_.emplace(parameter.name, &parameter);
    for (const FusedLayer& layer : fused)
      for (const std::string& linear : layer.linears) fused_.emplace(linear, &layer);
  }

  AdapterContent run() {
    for (const LogicalTensor& tensor : adapter_.tensors) sort(tensor);
    for (const auto& [module, tensors] : own_) validate_pairs(module, tensors);
    for (const auto& [module, tensors] : own_) validate_fused(module, tensors);
    return std::move(content_);
  }

 private:
  Error error(const LogicalTensor& tensor, ErrorKind kind, const std::string& message) const {
    return Error(kind, message).in(adapter_.path).tensor(tensor.name);
  }

  /// The error for a tensor of no module of the model; `message` where nothing else explains it.
  Error unknown(const LogicalTensor& tensor, const std::string& name, const char* message) const {
    if (!adapter_.config.target_parameters.empty() && name.find(".experts.") != name.npos)
      return error(tensor, ErrorKind::kUnsupported,
                   "adapts experts that are packed in one tensor (target_parameters), which is not supported");
    for (const Other& other : kOthers)
      if (Pattern(other.pattern).found_in(name))
        return error(tensor, ErrorKind::kUnsupported, other.what).hint(other.hint);
    const bool is_own = lora_name(name) && parameters_.count(lora_name(name)->module + ".weight") > 0;
    if (is_own) return error(tensor, ErrorKind::kUnsupported, message);
    return error(tensor, ErrorKind::kBadInput, message).hint("config.json belongs to another model than the adapter");
  }

  void sort(const LogicalTensor& tensor) {
    if (!tensor.name.starts_with(kPeftPrefix))
      throw error(tensor, ErrorKind::kBadInput, "does not begin with base_model.model., as PEFT names tensors");
    const std::string name = tensor.name.substr(kPeftPrefix.size());
    if (const auto lora = lora_name(name)) return sort_lora(tensor, *lora);
    const std::size_t leaf = std::min(name.rfind('.'), name.size());
    std::string module = name.substr(0, leaf);
    const bool wrapped = module.ends_with(kBaseLayer);
    if (wrapped) module.resize(module.size() - kBaseLayer.size());
    const auto found = parameters_.find(module + name.substr(leaf));
    if (found == parameters_.end()) throw unknown(tensor, name, "is neither an adapter's nor the model's");
    if (fused_.count(module))
      throw error(tensor, ErrorKind::kUnsupported, "is a copy of a linear that is fused with others");
    validate_shape(tensor, found->second->shape);
    if (!wrapped && adapter_.config.saves(module))
      content_.saved_modules.insert(module);
    else
      content_.plain.insert(tensor.name);
  }

  void sort_lora(const LogicalTensor& tensor, const LoraName& name) {
    const auto found = parameters_.find(name.module + ".weight");
    if (found == parameters_.end() || found->second->shape.size() != 2)
      throw unknown(tensor, tensor.name.substr(kPeftPrefix.size()), "adapts a module that the model does not have");
    const std::string kind = name.component + (name.rest.empty() ? "" : "." + name.rest);
    const bool transposed = is_transposed(*found->second);
    const std::uint64_t out = found->second->shape[transposed ? 1 : 0];
    const std::uint64_t in = found->second->shape[transposed ? 0 : 1];
    const std::uint64_t r = adapter_.config.rank_of(name.module);
    const bool embedding = found->second->plan == TensorParallelPlan::kEmbeddingRowwise;
    if (!embedding && kind == "lora_A.weight")
      validate_shape(tensor, {r, in});
    else if (!embedding && kind == "lora_B.weight")
      validate_shape(tensor, {out, r});
    else if (!embedding && (kind == "lora_B.bias" || kind == "lora_magnitude_vector"))
      validate_shape(tensor, {out});
    else if (embedding && kind == "lora_embedding_A")
      validate_shape(tensor, {r, out});
    else if (embedding && kind == "lora_embedding_B")
      validate_shape(tensor, {in, r});
    else
      throw unknown(tensor, tensor.name.substr(kPeftPrefix.size()), "is of a kind of adapter that is not known");
    own_[name.module].insert(kind);
    const auto layer = fused_.find(name.module);
    const std::string& module = layer == fused_.end() ? name.module : layer->second->module;
    content_.lora[module].insert(kind);
    if (transposed) content_.transposed.insert(module);
  }

  void validate_shape(const LogicalTensor& tensor, const Dims& expected) const {
    if (tensor.shape != expected)
      throw error(tensor, ErrorKind::kBadInput,
                  fmt::format("is {}, but the model and the adapter's config make it {}", to_string(tensor.shape),
                              to_string(expected)))
          .hint("config.json belongs to another model, or adapter_config.json says another rank");
  }

  /// lora_A and lora_B come in pairs.
  void validate_pairs(const std::string& module, const std::set<std::string>& tensors) const {
    for (const auto& [a, b] : {std::pair("lora_A.weight", "lora_B.weight"), {"lora_embedding_A", "lora_embedding_B"}}) {
      if (tensors.count(a) == tensors.count(b)) continue;
      const std::string lost = tensors.count(a) ? b : a;
      const std::string left = tensors.count(a) ? a : b;
      throw Error(ErrorKind::kBadInput,
                  fmt::format("is missing, though the {} of the module is there", left.substr(0, left.find('.'))))
          .in(adapter_.path)
          .tensor(fmt::format("{}{}.{}", kPeftPrefix, module, lost))
          .hint("save the adapter again, or fetch the file again");
    }
  }

  /// What is fused is adapted as a whole, and all alike.
  void validate_fused(const std::string& module, const std::set<std::string>& tensors) const {
    const auto layer = fused_.find(module);
    if (layer == fused_.end()) return;
    std::vector<std::string> missing;
    for (const std::string& linear : layer->second->linears) {
      const auto other = own_.find(linear);
      if (other == own_.end())
        missing.push_back(linear);
      else if (other->second != tensors)
        throw Error(ErrorKind::kUnsupported,
                    fmt::format("{} and {} become one linear, but are adapted in different ways", module, linear))
            .in(adapter_.path);
    }
    if (!missing.empty())
      throw Error(ErrorKind::kUnsupported, fmt::format("adapts {}, but not {}, with which it becomes the one linear {}",
                                                       module, list_names(missing), layer->second->module))
          .in(adapter_.path)
          .hint("an adapter must take all of them or none");
  }

  const AdapterSource& adapter_;
  std::unordered_map<std::string, const ModelParameter*> parameters_;
  std::unordered_map<std::string, const FusedLayer*> fused_;  // by linear
  std::map<std::string, std::set<std::string>> own_;          // module of the model → tensors
  AdapterContent content_;
};

}  // namespace

std::vector<PeftAdapter> read_peft_adapters(Files& files, const std::vector<fs::path>& directories) {
  std::vector<PeftAdapter> adapters;
  const auto add = [&](const std::string& name, const fs::path& directory) {
    for (const PeftAdapter& other : adapters)
      if (other.name == name)
        throw Error(ErrorKind::kUsage, fmt::format("is the second adapter called \"{}\", after {}", printable(name),
                                                   other.directory.string()))
            .in(directory)
            .hint("rename its directory");
    adapters.push_back(read_one(files, name, directory));
  };
  for (const fs::path& directory : directories) {
    validate_not_swapping(files, directory);
    const std::size_t before = adapters.size();
    const fs::path full = files.resolve(directory);
    if (is_peft_directory(files, directory))
      add(&directory == &directories.front() ? kDefaultAdapter : full.filename().string(), directory);
    std::vector<fs::path> folders;
    if (files.is_directory(directory))
      for (const DirectoryEntry& entry : files.list(directory))
        if (is_peft_directory(files, directory / entry.name) && !entry.name.starts_with("."))
          folders.push_back(directory / entry.name);
    std::erase_if(folders, [&](const fs::path& folder) {  // shards, not an adapter of PEFT's
      return files.is_directory(folder / kAdapterShardsFolder);
    });
    for (const fs::path& folder : folders) add(folder.filename().string(), folder);
    if (adapters.size() == before)
      throw Error(ErrorKind::kBadInput, files.exists(directory)
                                            ? "holds no adapter: no adapter_config.json, nor folders with one"
                                            : "no such directory")
          .in(directory)
          .hint("give a directory that PEFT has saved an adapter in");
  }
  return adapters;
}

AdapterContent adapter_content(const AdapterSource& adapter, const Model& model, const std::vector<FusedLayer>& fused) {
  return Sorter(adapter, model, fused).run();
}

}  // namespace reshard
