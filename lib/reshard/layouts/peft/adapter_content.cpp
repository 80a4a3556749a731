#include "reshard/layouts/peft/adapter_content.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/pattern.h"
#include "reshard/base/strings.h"
#include "reshard/specs/peft/adapter_metadata.h"

namespace reshard {
namespace {

constexpr const char* kMagnitude = "lora_magnitude_vector";  // of DoRA

/// Contents of adapters other than matrices for the model's linears.
struct Other {
  const char* pattern;  // found in the name of a tensor
  const char* what;
  const char* hint;
};
constexpr Other kOthers[] = {
    {R"(\.lora_(A|B)\.[^.]+\.weight$|\.lora_embedding_[AB]\.[^.]+$|\.modules_to_save\.)",
     "contains the name of an adapter, as in a PEFT model's state dict", "save the adapter with save_pretrained"},
    {R"(\.token_adapter\.|\.trainable_tokens)", "belongs to trainable tokens, which are not sharded",
     "merge the adapter into the model (merge_and_unload) and shard that"},
    {R"(^(score|classifier|classification_head|qa_outputs|v_head|summary)\.)",
     "belongs to a head that the adapter adds to the model, which is not sharded",
     "save the adapter without the head, or merge it into the model (merge_and_unload) and shard that"},
    {R"((^|\.)(language_model|text_model|vision_tower|vision_model|visual|multi_modal_projector|connector|thinker)\.)",
     "adapts part of a multimodal model, whose names differ from those of its language model",
     "merge the adapter into the model (merge_and_unload) and shard that"},
};

/// Validates the shapes of an adapter's tensors against the model and the config's ranks, and groups the tensors by
/// module of the ranks, in which `fused` linears are one module. Either all or none of these linears must be adapted.
/// \throws Error kBadInput or kUnsupported, naming the tensor or the module.
class Sorter {
 public:
  Sorter(const Adapter& adapter, const Model& model, const std::vector<FusedLayer>& fused) : adapter_(adapter) {
    if (const Json* rows = model.config ? find_key(*model.config, "vocab_size") : nullptr; rows != nullptr)
      vocabulary_ = rows->is_number_unsigned() ? rows->get<std::uint64_t>() : 0;
    content_.name = adapter.name;
    for (const ModelParameter& parameter : model.parameters) parameters_.emplace(parameter.name, &parameter);
    for (const FusedLayer& layer : fused)
      for (const std::string& linear : layer.linears) fused_.emplace(linear, &layer);
  }

  AdapterContent run(std::span<const LogicalTensor> held) {
    for (const LogicalTensor& tensor : held) sort(tensor);
    validate_pairs(adapter_, held);
    for (const auto& [module, tensors] : own_) validate_fused(module, tensors);
    return std::move(content_);
  }

 private:
  Error error(const LogicalTensor& tensor, ErrorKind kind, const std::string& message) const {
    return Error(kind, message).in(adapter_.path).tensor(tensor.name);
  }

  /// Returns the error for a tensor that belongs to no module of the model: `message`, unless a better one is known.
  Error unknown(const LogicalTensor& tensor, const std::string& name, const std::string& message) const {
    if (!adapter_.config.target_parameters.empty() && name.find(".experts.") != name.npos)
      return error(tensor, ErrorKind::kUnsupported,
                   "adapts experts that are packed in one tensor (target_parameters), which is not supported");
    for (const Other& other : kOthers)
      if (Pattern(other.pattern).found_in(name))
        return error(tensor, ErrorKind::kUnsupported, other.what).hint(other.hint);
    const bool is_own = lora_name(name) && parameters_.count(lora_name(name)->module + ".weight") > 0;
    if (is_own)
      return error(tensor, ErrorKind::kUnsupported, message)
          .hint("merge the adapter into the model (merge_and_unload) and shard that");
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
    validate_shape(tensor, *found->second, found->second->shape, "config.json belongs to another model");
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
    using Shapes = std::map<std::string, Dims>;
    const Shapes shapes =
        embedding
            ? Shapes{{"lora_embedding_A", {r, out}}, {"lora_embedding_B", {in, r}}}
            : Shapes{
                  {"lora_A.weight", {r, in}}, {"lora_B.weight", {out, r}}, {"lora_B.bias", {out}}, {kMagnitude, {out}}};
    const auto expected = shapes.find(kind);
    if (expected == shapes.end())
      throw unknown(tensor, tensor.name.substr(kPeftPrefix.size()),
                    fmt::format("is {}{}, which is not sharded", printable(kind),
                                name.component == kMagnitude ? " of DoRA"
                                : embedding                  ? " of an embedding"
                                                             : ""));
    validate_shape(tensor, *found->second, expected->second,
                   "config.json belongs to another model, or adapter_config.json declares another rank");
    own_[name.module].insert(kind);
    const auto layer = fused_.find(name.module);
    const std::string& module = layer == fused_.end() ? name.module : layer->second->module;
    content_.lora[module].insert(kind);
    if (transposed) content_.transposed.insert(module);
  }

  /// \param adapted  the weight of the tensor's module.
  void validate_shape(const LogicalTensor& tensor, const ModelParameter& adapted, const Dims& expected,
                      const char* hint) const {
    if (tensor.shape == expected) return;
    if (!adapted.layer) validate_vocabulary(tensor, expected);  // embeddings and heads
    throw error(tensor, ErrorKind::kBadInput,
                fmt::format("is {}, but the model and the adapter's config make it {}", to_string(tensor.shape),
                            to_string(expected)))
        .hint(hint);
  }

  /// \throws Error kBadInput if only the size of the vocabulary differs, as after tokens were added.
  void validate_vocabulary(const LogicalTensor& tensor, const Dims& expected) const {
    const auto dim = std::find(expected.begin(), expected.end(), vocabulary_);
    if (dim == expected.end() || tensor.shape.size() != expected.size()) return;
    const std::uint64_t rows = tensor.shape[static_cast<std::size_t>(dim - expected.begin())];
    Dims resized = expected;
    resized[static_cast<std::size_t>(dim - expected.begin())] = rows;
    if (resized != tensor.shape) return;
    throw error(tensor, ErrorKind::kBadInput,
                fmt::format("is for a vocabulary of {} tokens, but vocab_size in config.json is {}: the adapter was "
                            "trained with another vocabulary than its base model's",
                            rows, vocabulary_))
        .hint(
            fmt::format("give a base model with {0} tokens (resize_token_embeddings({0}), saved with its config.json), "
                        "or merge the adapter into such a model (merge_and_unload) and shard that",
                        rows));
  }

  /// Validates that all linears of a fused one are adapted, and in the same way.
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
          .hint("an adapter must adapt all of them or none");
  }

  const Adapter& adapter_;
  std::uint64_t vocabulary_ = 0;  // vocab_size; 0 if unknown
  std::unordered_map<std::string, const ModelParameter*> parameters_;
  std::unordered_map<std::string, const FusedLayer*> fused_;  // by linear
  std::map<std::string, std::set<std::string>> own_;          // module of the model → tensors
  AdapterContent content_;
};

}  // namespace

std::vector<std::vector<LogicalTensor>> tensors_by_adapter(const TargetContext& context) {
  std::map<std::string_view, std::size_t> adapters;  // by prefix
  for (std::size_t i = 0; i < context.adapters.size(); ++i) adapters.emplace(context.adapters[i].prefix, i);
  std::vector<std::vector<LogicalTensor>> tensors(context.adapters.size());
  for (LogicalTensor tensor : context.logical) {
    auto owner = adapters.find(std::string_view(tensor.name).substr(0, tensor.name.find('/') + 1));
    if (owner == adapters.end()) owner = adapters.begin();  // the default adapter, which has no prefix
    tensor.name.erase(0, owner->first.size());
    tensors[owner->second].push_back(std::move(tensor));
  }
  return tensors;
}

void validate_pairs(const Adapter& adapter, std::span<const LogicalTensor> tensors) {
  std::set<std::string_view> names;
  for (const LogicalTensor& tensor : tensors) names.insert(tensor.name);
  for (const LogicalTensor& tensor : tensors) {
    const auto name = lora_name(tensor.name);
    if (!name || (name->rest != "weight" && !name->rest.empty())) continue;
    for (const auto& [a, b] : {std::pair("lora_A", "lora_B"), {"lora_embedding_A", "lora_embedding_B"}}) {
      if (name->component != a && name->component != b) continue;
      const std::string lost = fmt::format("{}.{}{}", name->module, name->component == a ? b : a,
                                           tensor.name.substr(name->module.size() + 1 + name->component.size()));
      if (names.count(lost) > 0) continue;
      throw Error(ErrorKind::kBadInput, fmt::format("is missing, although the module has a {}", name->component))
          .in(adapter.path)
          .tensor(lost)
          .hint("save the adapter again, or fetch the file again; `drop` and `keep` must treat both alike");
    }
  }
}

AdapterContent adapter_content(const Adapter& adapter, const Model& model, const std::vector<FusedLayer>& fused,
                               std::span<const LogicalTensor> tensors) {
  return Sorter(adapter, model, fused).run(tensors);
}

}  // namespace reshard
