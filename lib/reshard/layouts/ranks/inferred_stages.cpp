// Infers metadata for shards that were saved without it (NxD's own checkpoints) from stored names and shapes and the
// model.

#include "reshard/layouts/ranks/inferred_stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "reshard/base/error.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/core/strangers.h"
#include "reshard/layouts/ranks/sharded_checkpoint.h"
#include "reshard/layouts/rules/fit_form.h"
#include "reshard/layouts/rules/metadata_rules.h"
#include "reshard/specs/model/quantization.h"
#include "reshard/specs/peft/adapter_metadata.h"

namespace reshard {
namespace {

constexpr const char* kLoraA = "lora_A";
constexpr const char* kOutputPlace = ".lora_B";  // the matrix of an adapter with its module's outputs

/// Infers the metadata of one stage's state dict, name by name.
class Derivation {
 public:
  Derivation(const Model& model, const ShardedCheckpoint& shards, const PartitionOptions& heads, const Container& file)
      : model_(model), tp_(shards.tp), allows_extra_(shards.allows_extra), heads_(heads), file_(file), held_(file) {
    for (const ModelParameter& parameter : model.parameters) by_name_.emplace(parameter.name, &parameter);
    add_fused_names({});
    for (std::uint64_t layer = 0; layer < model.layers; ++layer) add_fused_names(layer);
  }

  /// \param rules  rules of tensors to leave out.
  StageMetadata run(const std::vector<PartitionRule>& rules) {
    std::unordered_set<std::string_view> explained;
    for (const PartitionRule& rule : rules) explained.insert(rule.stored_name);
    for (const TensorEntry& tensor : file_.tensors) {
      if (explained.count(tensor.name) > 0) continue;
      // Some models have adapters of their own: the whole name counts first.
      const auto own = by_name_.find(tensor.name);
      const std::string name = without_base_layer(tensor.name);
      const auto base = by_name_.find(name);
      if (own != by_name_.end())
        add_own(tensor, *own->second);
      else if (const auto lora = lora_name(tensor.name))
        add_lora(tensor, *lora);
      else if (base != by_name_.end())
        add_own(tensor, *base->second);
      else if (const auto fused = fused_.find(name); fused != fused_.end())
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

  /// Returns the matrices of an adapter that were gathered over the ranks, and the dim along which ranks split each.
  /// \throws Error kUnsupported if gathering lost some rows.
  std::unordered_map<std::string, std::uint32_t> gathered() const {
    std::unordered_map<std::string, std::uint32_t> whole;
    std::vector<const TensorEntry*> lost;
    bool is_gathered = false;
    for (const TensorEntry& tensor : file_.tensors) {
      const auto split = tp_ > 1 ? lora_split(tensor) : std::nullopt;
      if (!split) continue;
      const std::uint64_t size = tensor.shape[split->dim];
      if (size == split->size) {
        whole.emplace(tensor.name, split->dim);
        is_gathered =
            is_gathered || split->query > 0 || split->key_value == 0;  // one rank may have all key/value heads
      } else if (split->query > 0) {
        lost.push_back(&tensor);
        is_gathered = is_gathered || is_first_replica(size, *split);
      }
    }
    if (!is_gathered) return {};
    if (!lost.empty())
      throw Error(ErrorKind::kUnsupported,
                  fmt::format("has {} rows: the adapter was gathered (merge_sharded_lora) with replicated key/value "
                              "heads, which keeps the rows of one replica and loses the other query heads",
                              lost.front()->shape[0]))
          .in(file_.path)
          .tensor(lost.front()->name)
          .hint("save the adapter again with merge_sharded_lora=False");
    return whole;
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

  bool is_key_or_value(const std::string& name) const {
    const auto& attention = model_.family->attention;
    return attention &&
           (name.find("." + attention->key + ".") != name.npos || name.find("." + attention->value + ".") != name.npos);
  }

  [[noreturn]] void fail_shape(const TensorEntry& tensor, const Dims& whole) const {
    throw Error(ErrorKind::kBadInput,
                fmt::format("has the shape {}, which is neither all of {} nor one of {} parts of it",
                            to_string(tensor.shape), to_string(whole), tp_))
        .in(file_.path)
        .tensor(tensor.name)
        .hint(hint_for_shape(tensor.shape, whole) +
              (is_key_or_value(tensor.name) ? "num_key_value_heads in config.json is wrong, " : "") +
              "config.json belongs to another model, or the parameter was split in a way that needs metadata");
  }

  /// How ranks split a matrix of an adapter.
  struct LoraSplit {
    std::uint32_t dim = 0;
    std::uint64_t size = 0;       // size of the whole matrix along that dim
    std::uint64_t query = 0;      // its rows for query heads, if it is one of grouped-query attention
    std::uint64_t key_value = 0;  // its rows for key/value heads, likewise
  };

  /// Returns std::nullopt for other tensors, and for matrices that every rank has.
  std::optional<LoraSplit> lora_split(const TensorEntry& tensor) const {
    const auto name = lora_name(tensor.name);
    if (!name || tensor.shape.size() != 2) return std::nullopt;
    const std::uint32_t dim = name->component == kLoraA ? 1 : 0;
    const auto found = fused_.find(name->module + "." + name->rest);
    if (found == fused_.end()) {
      const auto own = by_name_.find(name->module + ".weight");
      if (own == by_name_.end() || own->second->split_dim != dim) return std::nullopt;
      return LoraSplit{dim, own->second->shape[dim]};
    }
    const Fused& fused = found->second;
    if (fused.axis != dim) return std::nullopt;
    LoraSplit split{dim};
    if (fused.letter.empty()) {
      for (const std::string& part : fused.parts) split.size += size_of(fused.module, part, dim);
      return split;
    }
    const Family::Attention& attention = *model_.family->attention;
    if (fused.letter[0] == 'q') split.query = size_of(fused.module, attention.query, dim);
    const std::uint64_t heads = size_of(fused.module, attention.key, dim);
    if (fused.letter != "q") split.key_value = fused.letter == "qkv" ? 2 * heads : heads;
    split.size = split.query + split.key_value;
    return split;
  }

  /// Whether a matrix has the rows of one replica of the key/value heads, and cannot be a rank's part.
  bool is_first_replica(std::uint64_t rows, const LoraSplit& split) const {
    bool is_replica = false;
    for (const std::uint64_t multiplier : legal_multipliers(model_.heads, model_.kv_heads, tp_)) {
      if (rows * tp_ == split.query + split.key_value * multiplier) return false;
      is_replica = is_replica || (multiplier > 1 && rows == split.query / multiplier + split.key_value);
    }
    return is_replica;
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
    const auto holds_fused = [&](const std::string& place) {
      const std::string fused = *module + "." + a.fused + place + ".weight_q";
      return held_.has(fused) || held_.has(fused + "kv");
    };
    return parameter.module == *module + "." + a.output && (holds_fused("") || holds_fused(kOutputPlace));
  }

  /// Adds the spec of attention whose output projection alone is adapted, and whose heads may have another order. The
  /// shapes do not show it.
  void add_grouped_output(const TensorEntry& tensor, const ModelParameter& parameter) {
    const std::uint64_t multiplier = heads_.kv_size_multiplier.value_or(usual_multiplier(model_.kv_heads, tp_));
    if (!model_.family->attention || multiplier == 1) return;
    const Family::Attention& a = *model_.family->attention;
    const auto module = module_in(a.module, parameter.layer);
    if (!module || parameter.module != *module + "." + a.output) return;
    if (!heads_.kv_size_multiplier || !heads_.replication)
      throw Error(
          ErrorKind::kBadInput,
          fmt::format("the order of its heads is unknown: {} ranks replicate {} key/value heads, and the adapter "
                      "lacks the query projections, which would show how",
                      tp_, model_.kv_heads))
          .in(file_.path)
          .tensor(tensor.name)
          .hint(
              "set `from-kv-size-multiplier` to the trainer's kv_replicator, and `from-kv-replication` to tiled for "
              "trn1 or adjacent for trn2");
    if (!multiplier_problem(model_.heads, model_.kv_heads, tp_, multiplier, heads_.pad_heads).empty())
      throw Error(ErrorKind::kBadInput, fmt::format("{} ranks do not place {} key/value heads in {} replicas", tp_,
                                                    model_.kv_heads, multiplier))
          .in(file_.path)
          .hint("set `from-kv-size-multiplier`, the trainer's kv_replicator");
    PartitionOptions options = heads_;
    options.attention = attention_form_of(true, false);
    options.kv_size_multiplier = multiplier;
    modules_[*module].emplace_back(gqa_spec(model_, tp_, options));
  }

  /// Adds a matrix of an adapter: lora_B has the outputs of its module's weight, lora_A the inputs.
  void add_lora(const TensorEntry& tensor, const LoraName& name) {
    const bool has_inputs = name.component == kLoraA;
    const auto refuse = [&](ErrorKind kind, const std::string& message, const char* hint) {
      throw Error(kind, message).in(file_.path).tensor(tensor.name).hint(hint);
    };
    const auto whole = [&](const ModelParameter& weight) {
      return has_inputs ? Dims{tensor.shape[0], weight.shape[1]} : Dims{weight.shape[0], tensor.shape[1]};
    };
    if ((!has_inputs && name.component != "lora_B") || tensor.shape.size() != 2)
      refuse(ErrorKind::kUnsupported,
             fmt::format("is {} {}, but NxD's adapters have lora_A and lora_B, which are matrices", name.component,
                         to_string(tensor.shape)),
             "save the adapter merged into the weights (merge_lora)");
    if (const auto fused = fused_.find(name.module + "." + name.rest); fused != fused_.end()) {
      if (!has_inputs) return add_fused(tensor, fused->second, kOutputPlace);
      const Dims all = whole(*by_name_.at(fused->second.module + "." + fused->second.parts.front() + ".weight"));
      if (tensor.shape != all) fail_shape(tensor, all);
      metadata_.parameters.push_back({tensor.name, false, 0, 1, 1, {}});
      return;
    }
    const auto own = by_name_.find(name.module + ".weight");
    if (own == by_name_.end() || own->second->shape.size() != 2)
      refuse(ErrorKind::kBadInput, "adapts a module that the model does not have",
             "config.json belongs to another model than the adapter");
    if (!own->second->packed.empty() || is_transposed(*own->second))
      refuse(ErrorKind::kUnsupported, "adapts a linear whose matrix NxD does not store like this family",
             "save the adapter merged into the weights (merge_lora)");
    const bool is_grouped = has_inputs && is_grouped_output(*own->second);
    const auto dim = is_grouped ? 1u : split_dim(tensor, whole(*own->second));
    if (has_inputs && dim && !is_grouped) add_grouped_output(tensor, *own->second);
    metadata_.parameters.push_back({tensor.name, dim.has_value(), dim.value_or(0), 1, dim ? tp_ : 1, {}});
  }

  void add_own(const TensorEntry& tensor, const ModelParameter& parameter) {
    if (parameter.shape_known != ShapeKnown::kExactly) {
      metadata_.parameters.push_back({tensor.name, false, 0, 1, 1, {}});
      return;
    }
    // An alias of a tensor in this file has the rule of its source.
    const TensorEntry* source = held_.find(parameter.tied_to);
    if (source != nullptr && source->shape == tensor.shape) return;
    if (is_grouped_output(parameter)) {  // its heads follow those of the projections
      metadata_.parameters.push_back({tensor.name, true, 1, 1, tp_, {}});
      return;
    }
    if (const auto own = own_split(tensor, parameter)) {
      metadata_.parameters.push_back(*own);
      metadata_.parameters.back().name = tensor.name;
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

  /// \param place  precedes "weight" in the names of an adapter's matrices.
  void add_fused(const TensorEntry& tensor, const Fused& fused, const std::string& place = {}) {
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
      modules_[fused.module].emplace_back(attention_spec(tensor, fused, place));
  }

  /// The number of rows of a tensor on a rank; 0 if the rank does not have it.
  std::uint64_t rows_held(const std::string& name) const {
    const TensorEntry* found = held_.find(name);
    return found == nullptr || found->shape.empty() ? 0 : found->shape.front();
  }

  /// The number of columns of a weight on a rank, if the rank has it.
  std::optional<std::uint64_t> columns_held(const std::string& name) const {
    const TensorEntry* found = held_.find(name);
    if (found == nullptr || found->shape.size() != 2) return std::nullopt;
    return found->shape[1];
  }

  /// Infers the replication of key/value heads and the existence of padding heads from a rank's number of rows.
  GQAQKVColumnParallelLinearSpec attention_spec(const TensorEntry& tensor, const Fused& fused,
                                                const std::string& place) const {
    const bool one_weight = fused.letter == "qkv";
    const std::string prefix = fused.module + "." + fused.name + place + ".weight_";
    const std::uint64_t rows = tensor.shape.empty() ? 0 : tensor.shape.front();
    const auto columns = columns_held(fused.module + "." + model_.family->attention->output +
                                      (place.empty() ? "" : ".lora_A") + ".weight");
    const auto fits = [&](const GQAQKVColumnParallelLinearSpec& spec) {
      const std::uint64_t q = spec.q_output_size_per_partition;
      const std::uint64_t kv = spec.kv_output_size_per_partition;
      if (columns && *columns != q) return false;  // the output projection has the same heads
      // A layer that shares another layer's keys has none.
      return one_weight ? rows == q + 2 * kv : rows == q && (rows_held(prefix + "k") == kv || !held_.has(prefix + "k"));
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
        spec.bias = held_.has(fused.module + "." + fused.name + ".bias_" + fused.letter);
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
  HeldTensors held_;
  std::map<std::string, std::vector<TransformationSpec>> modules_;
  StageMetadata metadata_;
};

/// Replaces a matrix by the rows or columns of one rank.
void cut(TensorEntry& tensor, std::uint32_t dim, std::uint32_t tp_rank, std::uint32_t tp) {
  if (tensor.strides.empty()) tensor.strides = c_strides(tensor.shape);
  tensor.shape[dim] /= tp;
  tensor.size_bytes /= tp;
  tensor.offset_bytes += tp_rank * tensor.shape[dim] * tensor.strides[dim] * (bits(tensor.dtype) / 8);
}

/// Cuts the matrices of adapters that were gathered over the ranks before they were saved, and are the same in each
/// file, to those of the rank.
void cut_gathered(ShardedCheckpoint& checkpoint, const Model& model, const PartitionOptions& heads) {
  for (std::uint32_t pp_rank = 0; pp_rank < checkpoint.pp; ++pp_rank) {
    const auto gathered = Derivation(model, checkpoint, heads, checkpoint.files[pp_rank].front()).gathered();
    const auto cut_in = [&](Container& file, std::uint32_t tp_rank) {
      for (TensorEntry& tensor : file.tensors)
        if (const auto found = gathered.find(tensor.name); found != gathered.end())
          cut(tensor, found->second, tp_rank, checkpoint.tp);
    };
    if (gathered.empty()) continue;
    for (std::uint32_t i = 0; i < checkpoint.files[pp_rank].size(); ++i)
      cut_in(checkpoint.files[pp_rank][i], i % checkpoint.tp);
    for (ShardedCheckpoint::Copy& copy : checkpoint.copies)
      if (copy.rank.pp_rank == pp_rank) cut_in(copy.file, copy.rank.tp_rank);
  }
}

}  // namespace

void infer_stages(ShardedCheckpoint& checkpoint, const Model& model, const PartitionOptions& heads) {
  if (checkpoint.ep > 1 && checkpoint.rules.empty())
    throw Error(ErrorKind::kUnsupported,
                fmt::format("belongs to an expert-parallel rank of NxD (ep_rank), without metadata about the "
                            "distribution of its experts, and NxD's names for those of {} are unknown",
                            model.family->model_type))
        .in(checkpoint.files.front().back().path)
        .hint(kHintForExperts);
  cut_gathered(checkpoint, model, heads);
  checkpoint.metadata.clear();
  checkpoint.rules.resize(checkpoint.pp);
  for (std::uint32_t pp_rank = 0; pp_rank < checkpoint.pp; ++pp_rank)
    checkpoint.metadata.push_back(
        Derivation(model, checkpoint, heads, checkpoint.files[pp_rank].front()).run(checkpoint.rules[pp_rank]));
  if (std::all_of(checkpoint.rules.begin(), checkpoint.rules.end(), [](const auto& stage) { return stage.empty(); }))
    checkpoint.rules.clear();
}

}  // namespace reshard
