// Infers metadata for shards that were saved without it (NxD's own checkpoints) from stored names and shapes and the
// model.

#include "reshard/layouts/ranks/inferred_stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "reshard/base/error.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/map/metadata_rules.h"
#include "reshard/layouts/ranks/sharded_checkpoint.h"
#include "reshard/specs/model/quantization.h"

namespace reshard {
namespace {

/// Infers the metadata of one stage's state dict, name by name.
class Derivation {
 public:
  Derivation(const Model& model, const ShardedCheckpoint& shards, const PartitionOptions& heads, const Container& file)
      : model_(model), tp_(shards.tp), allows_extra_(shards.allows_extra), heads_(heads), file_(file) {
    for (const ModelParameter& parameter : model.parameters) by_name_.emplace(parameter.name, &parameter);
    add_fused_names({});
    for (std::uint64_t layer = 0; layer < model.layers; ++layer) add_fused_names(layer);
    for (const TensorEntry& tensor : file.tensors) held_.emplace(tensor.name, &tensor);
  }

  StageMetadata run() {
    for (const TensorEntry& tensor : file_.tensors) {
      const auto whole = by_name_.find(tensor.name);
      if (whole != by_name_.end())
        add_own(tensor, *whole->second);
      else if (const auto fused = fused_.find(tensor.name); fused != fused_.end())
        add_fused(tensor, fused->second);
      else if (allows_extra_)
        metadata_.parameters.push_back({tensor.name, false, 0, 1, 1, {}});
      else
        throw Error(ErrorKind::kBadInput,
                    fmt::format("is not a parameter of {}, separate or fused, and there is no metadata to explain it",
                                model_.family->model_type))
            .in(file_.path)
            .tensor(tensor.name)
            .hint(is_quantized_tensor(tensor.name) && model_.quant_method.empty()
                      ? "the model is quantised, but config.json has no quantization_config: use the config.json that "
                        "came with the weights"
                      : fmt::format("config.json belongs to another model; {}if it is not a weight, such as a buffer, "
                                    "set `extra-tensors` to keep or drop it",
                                    model_.family_from == FamilyFrom::kConfig ? std::string(kSameFamily) + "; " : ""));
    }
    for (auto& [name, specs] : modules_) metadata_.modules.push_back({name, std::move(specs)});
    return std::move(metadata_);
  }

 private:
  /// Possible contents of a stored tensor whose name the model does not have.
  struct Fused {
    std::string module;
    std::string name;                // the fused projection
    std::vector<std::string> parts;  // fused linears; empty for grouped-query attention
    std::string letter;              // "q", "k", "v", "qkv"
    bool bias = false;
    std::uint32_t axis = 0;  // see FusedLinearsSpec
  };

  /// Adds the fused names of one layer, or those outside the layers.
  void add_fused_names(std::optional<std::uint64_t> layer) {
    const Family& family = *model_.family;
    for (const bool bias : {false, true}) {
      const std::string suffix = bias ? ".bias" : ".weight";
      const auto add_fused = [&](const Family::Fused& fused) {
        if (const auto module = module_in(fused.module, layer))
          fused_.emplace(*module + "." + fused.name + suffix,
                         Fused{*module, fused.name, fused.linears, {}, bias, fused.axis});
      };
      for (const Family::Fused& fused : family.fused) add_fused(fused);
      if (!family.attention) continue;
      const Family::Attention& a = *family.attention;
      add_fused({a.module, a.fused, {a.query, a.key, a.value}, 0});
      const auto module = module_in(a.module, layer);
      if (!module) continue;
      for (const char* letter : {"q", "k", "v", "qkv"})
        fused_.emplace(*module + "." + a.fused + suffix + "_" + letter, Fused{*module, a.fused, {}, letter, bias});
    }
  }

  /// Returns a hint if the tensor is one of more parts than there are ranks: the last ranks are probably missing.
  std::string hint_for_shape(const Dims& part, const Dims& whole) const {
    for (std::size_t dim = 0; dim < std::min(part.size(), whole.size()); ++dim) {
      Dims others = whole;
      others[dim] = part[dim];
      if (part.size() != whole.size() || others != part || part[dim] == 0 || whole[dim] % part[dim] != 0) continue;
      const std::uint64_t ranks = whole[dim] / part[dim];
      if (ranks > tp_)
        return fmt::format("the last ranks are missing: it is one of {} parts, and there are {} ranks; or ", ranks,
                           tp_);
    }
    return {};
  }

  [[noreturn]] void fail_shape(const TensorEntry& tensor, const Dims& whole) const {
    throw Error(ErrorKind::kBadInput,
                fmt::format("has the shape {}, which is neither all of {} nor one of {} parts of it",
                            to_string(tensor.shape), to_string(whole), tp_))
        .in(file_.path)
        .tensor(tensor.name)
        .hint(hint_for_shape(tensor.shape, whole) +
              "config.json belongs to another model, or the parameter was split in a way that needs metadata");
  }

  /// Returns the dim along which the tensor is one of tp_ parts; std::nullopt if it is whole.
  std::optional<std::uint32_t> split_dim(const TensorEntry& tensor, const Dims& whole) const {
    if (tensor.shape == whole) return std::nullopt;
    for (std::uint32_t dim = 0; dim < std::min<std::size_t>(2, whole.size()); ++dim) {
      Dims part = whole;
      if (part[dim] % tp_ != 0) continue;
      part[dim] /= tp_;
      if (part == tensor.shape) return dim;
    }
    fail_shape(tensor, whole);
  }

  /// Returns the model's split of the parameter if the tensor is one part of it.
  std::optional<ParallelParameter> own_split(const TensorEntry& tensor, const ModelParameter& parameter) const {
    if (!parameter.split_dim || split_problem(parameter, tp_, false)) return std::nullopt;
    ParallelParameter own = own_parameter(parameter, tp_);
    const auto shape = stored_shape(partition_rule(own, tp_), 0, {parameter.shape});
    if (shape != tensor.shape) return std::nullopt;
    return own;
  }

  /// Whether this is the weight of an output projection whose query projections use grouped-query attention.
  bool is_grouped_output(const ModelParameter& parameter) const {
    if (!model_.family->attention || parameter.is_bias) return false;
    const Family::Attention& a = *model_.family->attention;
    const auto module = module_in(a.module, parameter.layer);
    if (!module) return false;
    const std::string fused = *module + "." + a.fused + ".weight_q";
    return parameter.module == *module + "." + a.output && (held_.count(fused) > 0 || held_.count(fused + "kv") > 0);
  }

  void add_own(const TensorEntry& tensor, const ModelParameter& parameter) {
    if (parameter.any_shape || parameter.scalar) {
      metadata_.parameters.push_back({tensor.name, false, 0, 1, 1, {}});
      return;
    }
    // An alias of a tensor in this file has the rule of its source.
    const auto source = held_.find(parameter.tied_to);
    if (source != held_.end() && source->second->shape == tensor.shape) return;
    if (is_grouped_output(parameter)) {  // its heads follow those of the projections
      metadata_.parameters.push_back({tensor.name, true, 1, 1, tp_, {}});
      return;
    }
    if (const auto own = own_split(tensor, parameter)) {
      metadata_.parameters.push_back(*own);
      return;
    }
    const auto dim = split_dim(tensor, parameter.shape);
    if (dim && !parameter.packed.empty()) fail_shape(tensor, parameter.shape);
    metadata_.parameters.push_back({tensor.name, dim.has_value(), dim.value_or(0), 1, dim ? tp_ : 1, {}});
  }

  std::uint64_t size_of(const std::string& module, const std::string& linear, std::uint32_t axis) const {
    const auto found = by_name_.find(module + "." + linear + ".weight");
    if (found == by_name_.end())
      throw Error(ErrorKind::kInternal, "a family fuses a linear that it does not have").tensor(module + "." + linear);
    return found->second->shape[axis];
  }

  void add_fused(const TensorEntry& tensor, const Fused& fused) {
    if (fused.letter.empty()) {
      FusedLinearsSpec spec{fused.name, fused.parts, fused.bias, fused.axis, {}, tp_};
      for (const std::string& part : fused.parts) spec.original_dims.push_back(size_of(fused.module, part, fused.axis));
      const auto stride = static_cast<std::uint32_t>(fused.parts.size());
      metadata_.parameters.push_back({tensor.name, true, fused.axis, stride, tp_, {}});
      if (!fused.bias) modules_[fused.module].emplace_back(std::move(spec));
      return;
    }
    metadata_.parameters.push_back({tensor.name, fused.letter != "qkv", 0, 1, tp_, {}});
    if (!fused.bias && (fused.letter == "q" || fused.letter == "qkv"))
      modules_[fused.module].emplace_back(attention_spec(tensor, fused));
  }

  /// The number of rows of a tensor on a rank; 0 if the rank does not have it.
  std::uint64_t rows_held(const std::string& name) const {
    const auto found = held_.find(name);
    return found == held_.end() || found->second->shape.empty() ? 0 : found->second->shape.front();
  }

  /// The number of columns of a weight on a rank, if the rank has it.
  std::optional<std::uint64_t> columns_held(const std::string& name) const {
    const auto found = held_.find(name);
    if (found == held_.end() || found->second->shape.size() != 2) return std::nullopt;
    return found->second->shape[1];
  }

  /// Infers the replication of key/value heads and the existence of padding heads from a rank's number of rows.
  GQAQKVColumnParallelLinearSpec attention_spec(const TensorEntry& tensor, const Fused& fused) const {
    const bool one_weight = fused.letter == "qkv";
    const std::string prefix = fused.module + "." + fused.name + ".weight_";
    const std::uint64_t rows = tensor.shape.empty() ? 0 : tensor.shape.front();
    const auto columns = columns_held(fused.module + "." + model_.family->attention->output + ".weight");
    const auto fits = [&](const GQAQKVColumnParallelLinearSpec& spec) {
      const std::uint64_t q = spec.q_output_size_per_partition;
      const std::uint64_t kv = spec.kv_output_size_per_partition;
      if (columns && *columns != q) return false;  // the output projection has the same heads
      // A layer that shares another layer's keys has none.
      return one_weight ? rows == q + 2 * kv
                        : rows == q && (rows_held(prefix + "k") == kv || held_.count(prefix + "k") == 0);
    };
    PartitionOptions options = heads_;
    options.attention = attention_form_of(true, one_weight);
    for (const bool pad : {false, true}) {
      if (heads_.pad_heads && !pad) continue;
      options.pad_heads = pad;
      std::vector<std::uint64_t> multipliers = legal_multipliers(model_.heads, model_.kv_heads, tp_, pad);
      // Tries the usual multiplier before others that result in the same number of rows.
      multipliers.insert(multipliers.begin(), usual_multiplier(model_.kv_heads, tp_));
      if (heads_.kv_size_multiplier) multipliers = {*heads_.kv_size_multiplier};
      for (const std::uint64_t multiplier : multipliers) {
        if (!multiplier_problem(model_.heads, model_.kv_heads, tp_, multiplier, pad).empty()) continue;
        options.kv_size_multiplier = multiplier;
        GQAQKVColumnParallelLinearSpec spec = gqa_spec(model_, tp_, options);
        spec.bias = held_.count(fused.module + "." + fused.name + ".bias_" + fused.letter) > 0;
        if (fits(spec)) return spec;
      }
    }
    throw Error(ErrorKind::kBadInput,
                fmt::format("a rank has {} rows of it{}, which {} query and {} key/value heads of {} elements over {} "
                            "ranks cannot make",
                            rows, one_weight ? "" : fmt::format(" and {} of keys", rows_held(prefix + "k")),
                            model_.heads, model_.kv_heads, model_.head_dim, tp_))
        .in(file_.path)
        .tensor(tensor.name)
        .hint(heads_.kv_size_multiplier || heads_.pad_heads
                  ? "the last ranks are missing, config.json belongs to another model, or the shards were made with "
                    "another multiplier or padding"
                  : "the last ranks are missing, or config.json belongs to another model");
  }

  const Model& model_;
  std::uint32_t tp_;
  bool allows_extra_;
  PartitionOptions heads_;
  const Container& file_;
  std::unordered_map<std::string, const ModelParameter*> by_name_;
  std::unordered_map<std::string, Fused> fused_;
  std::unordered_map<std::string, const TensorEntry*> held_;
  std::map<std::string, std::vector<TransformationSpec>> modules_;
  StageMetadata metadata_;
};

}  // namespace

void infer_stages(ShardedCheckpoint& checkpoint, const Model& model, const PartitionOptions& heads) {
  checkpoint.metadata.clear();
  for (const auto& files : checkpoint.files)
    checkpoint.metadata.push_back(Derivation(model, checkpoint, heads, files.front()).run());
}

}  // namespace reshard
