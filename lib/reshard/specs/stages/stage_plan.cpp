#include "reshard/specs/stages/stage_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <tuple>

#include "reshard/base/strings.h"
#include "reshard/specs/model/quantization.h"

namespace reshard {
namespace {

constexpr std::uint64_t kMaxTriedDegree = 512;

/// Returns the requested multiplier, or the usual one, or else the smallest other one that places whole heads.
std::uint64_t multiplier_for(const Model& model, std::uint64_t tp, const PartitionOptions& options) {
  if (options.kv_size_multiplier) return *options.kv_size_multiplier;
  const std::uint64_t usual = usual_multiplier(model.kv_heads, tp);
  if (multiplier_problem(model.heads, model.kv_heads, tp, usual, options.pad_heads).empty()) return usual;
  const std::vector<std::uint64_t> legal = legal_multipliers(model.heads, model.kv_heads, tp, options.pad_heads);
  return legal.empty() ? usual : legal.front();
}

PartitionOptions with_multiplier(PartitionOptions options, std::uint64_t multiplier) {
  options.kv_size_multiplier = multiplier;
  return options;
}

Error attention_error(const Model& model, std::uint64_t tp, const PartitionOptions& options,
                      const std::string& problem) {
  const std::uint64_t multiplier = multiplier_for(model, tp, options);
  Error error(ErrorKind::kUsage,
              fmt::format("the attention heads ({} query, {} key/value) cannot be placed on {} ranks with a key/value "
                          "multiplier of {}: {}",
                          model.heads, model.kv_heads, tp, multiplier, problem));
  std::vector<std::uint64_t> legal = legal_multipliers(model.heads, model.kv_heads, tp, options.pad_heads);
  std::erase_if(legal, [&](std::uint64_t m) {  // other sizes may not be divisible
    return tensor_parallel_problem(model, tp, with_multiplier(options, m)).has_value();
  });
  if (!legal.empty()) error.hint(fmt::format("multipliers that work for `tp` {}: {}", tp, list_numbers(legal)));
  return error;
}

/// Walks the state dict of one pipeline rank and adds the metadata of each parameter, or of the fused parameter that
/// contains it.
class StageBuilder {
 public:
  StageBuilder(const Model& model, std::uint32_t tp, std::uint32_t ep, const PartitionOptions& options)
      : model_(model), tp_(tp), ep_(ep), form_(attention_form(model, tp, options)) {
    const Family& family = *model.family;
    if (!model.quantized && !options.separate && options.fuse_linears.value_or(true)) fused_ = family.fused;
    if (form_ == AttentionForm::kFused && family.attention) {
      const auto& a = *family.attention;
      fused_.push_back({a.module, a.fused, {a.query, a.key, a.value}, 0});
    }
    if (is_grouped_query(form_)) gqa_ = gqa_spec(model, tp, options);
    for (const ModelParameter& parameter : model.parameters) by_name_.emplace(parameter.name, &parameter);
  }

  StagePlan build(std::uint32_t pp_rank, const PipelinePartition& partition,
                  const std::function<bool(const std::string&)>& holds) {
    StagePlan plan;
    std::set<std::string> done;
    std::vector<const ModelParameter*> held;
    for (const ModelParameter& parameter : model_.parameters)
      if (on_rank(parameter, pp_rank, partition) && (!parameter.optional || holds(parameter.name)))
        held.push_back(&parameter);
    put_tied_source_first(held);
    for (const ModelParameter* parameter : held) {
      if (!parameter->tied_to.empty()) {
        plan.tied.push_back({parameter->name, parameter->tied_to});
        continue;
      }
      for (ParallelParameter& stored : stored_parameters(*parameter))
        if (done.insert(stored.name).second) plan.metadata.parameters.push_back(std::move(stored));
    }
    add_modules(plan.metadata, pp_rank, partition);
    return plan;
  }

 private:
  bool on_rank(const ModelParameter& p, std::uint32_t pp_rank, const PipelinePartition& partition) const {
    if (p.layer) return partition.rank_of_layer(*p.layer) == pp_rank;
    return pp_rank == (p.stage == OuterStage::kLast ? partition.last_rank() : partition.first_rank());
  }

  /// A rank with a tied parameter also has the matrix under its own name.
  void put_tied_source_first(std::vector<const ModelParameter*>& held) const {
    std::vector<const ModelParameter*> sources;
    for (const ModelParameter* parameter : held) {
      if (parameter->tied_to.empty()) continue;
      const ModelParameter* source = by_name_.at(parameter->tied_to);
      if (std::find(held.begin(), held.end(), source) == held.end()) sources.push_back(source);
    }
    held.insert(held.begin(), sources.begin(), sources.end());
  }

  /// Returns the parameters of a rank's state dict for a Hugging Face parameter: itself, or the fused parameter that
  /// contains it.
  std::vector<ParallelParameter> stored_parameters(const ModelParameter& parameter) const {
    if (!parameter.is_bias && !parameter.name.ends_with(".weight")) return {own_parameter(parameter, tp_, ep_)};
    const std::string suffix = parameter.is_bias ? "bias" : "weight";
    const auto attention = gqa_ ? module_in(model_.family->attention->module, parameter.layer) : std::nullopt;
    if (attention) {
      const auto& a = *model_.family->attention;
      const std::string& module = *attention;
      const std::string fused = module + "." + a.fused + "." + suffix;
      const std::pair<const std::string&, const char*> projections[] = {
          {a.query, "_q"}, {a.key, "_k"}, {a.value, "_v"}};
      for (const auto& [projection, letter] : projections) {
        if (parameter.module != module + "." + projection) continue;
        if (gqa_->fuse_qkv) return {{fused + "_qkv", false, 0, 1, 1, {}}};
        return {{fused + letter, true, 0, 1, tp_, {}}};
      }
    }
    for (const Family::Fused& fused : fused_) {
      const auto module = module_in(fused.module, parameter.layer);
      if (!module) continue;
      for (const std::string& linear : fused.linears)
        if (parameter.module == *module + "." + linear)
          return {{*module + "." + fused.name + "." + suffix,
                   true,
                   fused.axis,
                   static_cast<std::uint32_t>(fused.linears.size()),
                   tp_,
                   {}}};
    }
    return {own_parameter(parameter, tp_, ep_)};
  }

  /// The metadata of every rank lists the modules of all layers, but the specs only of modules on that rank.
  void add_modules(StageMetadata& metadata, std::uint32_t pp_rank, const PipelinePartition& partition) const {
    add_modules_in({}, metadata, pp_rank, partition);
    for (std::uint64_t layer = 0; layer < model_.layers; ++layer) add_modules_in(layer, metadata, pp_rank, partition);
  }

  /// Adds the modules of one layer, or those outside the layers.
  void add_modules_in(std::optional<std::uint64_t> layer, StageMetadata& metadata, std::uint32_t pp_rank,
                      const PipelinePartition& partition) const {
    std::vector<ModuleSpecs> modules;
    const auto module_specs = [&](const std::string& name) -> ModuleSpecs& {
      for (ModuleSpecs& module : modules)
        if (module.module_fully_qualified_name == name) return module;
      return modules.emplace_back(ModuleSpecs{name, {}});
    };
    // Layers may have different modules: experts, or another mixer.
    const auto weight_of = [&](const std::optional<std::string>& module,
                               const std::string& linear) -> const ModelParameter* {
      const auto found = module ? by_name_.find(*module + "." + linear + ".weight") : by_name_.end();
      return found == by_name_.end() ? nullptr : found->second;
    };
    if (const auto& a = model_.family->attention) {
      const auto module = module_in(a->module, layer);
      if (const ModelParameter* query = weight_of(module, a->query)) {
        ModuleSpecs& attention = module_specs(*module);
        if (gqa_ && on_rank(*query, pp_rank, partition)) {
          GQAQKVColumnParallelLinearSpec spec = *gqa_;
          spec.bias = by_name_.count(query->module + ".bias") > 0;
          attention.specs.emplace_back(std::move(spec));
        }
      }
    }
    for (const Family::Fused& fused : fused_) {
      const auto name = module_in(fused.module, layer);
      const ModelParameter* first = weight_of(name, fused.linears.front());
      if (first == nullptr) continue;
      ModuleSpecs& module = module_specs(*name);
      if (on_rank(*first, pp_rank, partition)) module.specs.emplace_back(fused_spec(fused, *name));
    }
    for (ModuleSpecs& module : modules) metadata.modules.push_back(std::move(module));
  }

  FusedLinearsSpec fused_spec(const Family::Fused& fused, const std::string& module) const {
    FusedLinearsSpec spec{fused.name, fused.linears, false, fused.axis, {}, tp_};
    const Dims& first = by_name_.at(module + "." + fused.linears.front() + ".weight")->shape;
    for (const std::string& linear : fused.linears) {
      const std::string name = module + "." + linear + ".weight";
      if (by_name_.count(name) == 0)
        throw Error(ErrorKind::kBadInput,
                    fmt::format("is not in the model, and so {} of its layer cannot be fused", fused.linears.front()))
            .tensor(name)
            .hint("\"fused\" in the model's description may only list linears that are all in a layer, or all absent");
      const ModelParameter& weight = *by_name_.at(name);
      Dims alike = weight.shape;
      if (alike.size() == first.size()) alike[fused.axis] = first[fused.axis];
      if (alike != first)
        throw Error(ErrorKind::kBadInput, fmt::format("has the shape {}, and cannot be fused with {} of {}",
                                                      to_string(weight.shape), fused.linears.front(), to_string(first)))
            .tensor(weight.name)
            .hint(
                "\"fused\" in the model's description may only list linears that differ only in the dim that is split");
      spec.original_dims.push_back(weight.shape[fused.axis]);
    }
    spec.bias = by_name_.count(module + "." + fused.linears.front() + ".bias") > 0;
    return spec;
  }

  const Model& model_;
  std::uint32_t tp_;
  std::uint32_t ep_;
  AttentionForm form_;
  std::vector<Family::Fused> fused_;
  std::optional<GQAQKVColumnParallelLinearSpec> gqa_;
  std::map<std::string, const ModelParameter*> by_name_;
};

}  // namespace

ParallelParameter own_parameter(const ModelParameter& parameter, std::uint32_t tp, std::uint32_t ep) {
  ParallelParameter own{parameter.name, false, 0, 1, 1, {}};
  if (ep > 1 && parameter.expert)
    own.expert_rank = static_cast<std::uint32_t>(*parameter.expert / (parameter.experts / ep));
  else if (ep > 1 && parameter.experts != 0)
    own.expert_partitions = ep;
  if (!parameter.split_dim) return own;
  own.tensor_model_parallel = true;
  own.partition_dim = *parameter.split_dim;
  own.num_partitions = tp;
  if (parameter.packed.empty()) return own;
  const PackedPart& first = parameter.packed.front();
  const bool alike = std::all_of(parameter.packed.begin(), parameter.packed.end(),
                                 [&](const PackedPart& part) { return part == first && !part.replicated; });
  if (alike)
    own.partition_stride = static_cast<std::uint32_t>(parameter.packed.size());
  else
    own.packed = parameter.packed;
  return own;
}

std::optional<std::string> split_problem(const ModelParameter& parameter, std::uint64_t tp, bool whole_heads) {
  if (!parameter.split_dim) return std::nullopt;
  if (parameter.partial_block && tp > 1)
    return fmt::format("dim {} is not a whole number of quantisation blocks, so it cannot be split",
                       *parameter.split_dim);
  if (whole_heads && parameter.heads != 0 && parameter.heads % tp != 0)
    return fmt::format("dim {} has {} groups of heads, which {} ranks do not divide", *parameter.split_dim,
                       parameter.heads, tp);
  const auto problem = [&](std::uint64_t size) {
    const bool blocks = parameter.linear_size != 0 && parameter.block > 1;
    return fmt::format("dim {} has {} {}{}, which {} ranks do not divide", *parameter.split_dim, size,
                       blocks ? fmt::format("blocks of {} elements", parameter.block) : "elements",
                       parameter.packed.empty() ? "" : " in one of the matrices packed in it", tp);
  };
  for (const PackedPart& part : parameter.packed)
    if (!part.replicated && part.size % tp != 0) return problem(part.size);
  const std::uint64_t size = parameter.shape[*parameter.split_dim];
  if (parameter.packed.empty() && size % tp != 0) return problem(size);
  return std::nullopt;
}

bool can_pad(const ModelParameter& parameter) {
  return parameter.packed.empty() && !(parameter.partial_block && is_packed(parameter.plan));
}

namespace {

/// Returns the module that contains a linear: "mlp" for "mlp.up_proj.weight" and for "mlp.gate_up_proj".
std::string_view module_of_linear(const ModelParameter& parameter) {
  const bool has_leaf = parameter.name.ends_with(".weight") || parameter.name.ends_with(".bias");
  const std::string_view linear = has_leaf ? parameter.module : parameter.name;
  const std::size_t end = linear.rfind('.');
  return end == linear.npos ? std::string_view() : linear.substr(0, end);
}

constexpr std::uint64_t kPair = 2;  // gate and up

/// Returns the linear whose inputs are the pairs of `parameter`, gate and up in turn; nullptr if it has no such pairs.
/// Heads of attention also come in pairs, but their output linear has heads itself.
const ModelParameter* reader_of_pairs(const Model& model, const ModelParameter& parameter) {
  const auto size_of = [](const ModelParameter& p) { return p.shape[*p.split_dim]; };
  if (!parameter.split_dim || parameter.heads == 0 || size_of(parameter) != kPair * parameter.heads) return nullptr;
  const std::string_view module = module_of_linear(parameter);
  for (const ModelParameter& other : model.parameters)
    if (other.split_dim && other.heads == 0 && other.packed.empty() && module_of_linear(other) == module &&
        size_of(other) != 0 && parameter.heads % size_of(other) == 0)
      return &other;
  return nullptr;
}

/// Returns the unit that parts of this size must be a multiple of.
std::uint64_t pad_unit(const Model& model, std::uint64_t size) {
  const auto known = model.pad_units.find(size);
  return known == model.pad_units.end() ? 1 : known->second;
}

/// Returns a size of the model after padding.
std::uint64_t padded_to(const Model& model, std::uint64_t size, std::uint64_t tp) {
  const std::uint64_t unit = pad_unit(model, size);
  const std::uint64_t units = (size + unit - 1) / unit;
  return (units + tp - 1) / tp * unit * tp;
}

/// Returns why packed matrices are incompatible with padded linears, or std::nullopt.
std::optional<std::string> packing_problem(const Model& model, const ModelParameter& parameter, std::uint64_t tp) {
  for (const PackedPart& part : parameter.packed) {
    const std::uint64_t size = part.size * parameter.block;
    if (part.replicated || padded_to(model, size, tp) == size) continue;
    return fmt::format("dim {} has {} elements in one of the matrices packed in it, which other linears pad",
                       *parameter.split_dim, size);
  }
  return std::nullopt;
}

/// Whether the parameter belongs to a projection of the family's attention.
bool is_attention(const Model& model, const ModelParameter& parameter) {
  if (!model.family->attention) return false;
  const Family::Attention& attention = *model.family->attention;
  const auto module = module_in(attention.module, parameter.layer);
  const auto is_it = [&](const std::string& linear) { return module && parameter.module == *module + "." + linear; };
  return is_it(attention.query) || is_it(attention.key) || is_it(attention.value) || is_it(attention.output);
}

/// Returns why a quantised linear of attention cannot be padded, or std::nullopt: blocks are not heads, and query heads
/// must stay with their key/value heads.
std::optional<std::string> heads_problem(const Model& model, const ModelParameter& parameter, std::uint64_t tp) {
  if (!model.quantized || !parameter.layer || !parameter.split_dim) return std::nullopt;
  if (parameter.heads == 0 && !is_attention(model, parameter)) return std::nullopt;
  const std::uint64_t size = parameter.shape[*parameter.split_dim];
  if (padded_size(model, parameter, tp) == size) return std::nullopt;
  const std::uint64_t of_linear = parameter.linear_size ? parameter.linear_size : size;
  const std::uint64_t unit = pad_unit(model, of_linear);
  if (unit == 1) return std::nullopt;  // there are no blocks
  return fmt::format(
      "{} elements of the linear are split, {} blocks of {} in this model, which {} ranks do not divide; padding to "
      "whole blocks would part query heads from their key/value heads",
      of_linear, (of_linear + unit - 1) / unit, unit, tp);
}

}  // namespace

bool has_pairs(const Model& model, const ModelParameter& parameter) {
  return reader_of_pairs(model, parameter) != nullptr;
}

std::uint64_t padded_size(const Model& model, const ModelParameter& parameter, std::uint64_t tp) {
  if (const ModelParameter* reader = reader_of_pairs(model, parameter)) {
    const std::uint64_t block = parameter.heads / reader->shape[*reader->split_dim];
    return padded_size(model, *reader, tp) * block * kPair;
  }
  const std::uint64_t size = parameter.linear_size ? parameter.linear_size : parameter.shape[*parameter.split_dim];
  return padded_to(model, size, tp) / parameter.block;
}

AttentionForm attention_form(const Model& model, std::uint64_t tp, const PartitionOptions& options) {
  if (!model.family->attention || model.quantized || options.separate || !model.plain_heads)
    return AttentionForm::kSeparate;
  const bool fused = is_fused(options.attention);
  if (is_grouped_query(options.attention) || needs_gqa_qkv(model.kv_heads, tp)) return attention_form_of(true, fused);
  return attention_form_of(false, fused && model.heads == model.kv_heads);
}

GQAQKVColumnParallelLinearSpec gqa_spec(const Model& model, std::uint64_t tp, const PartitionOptions& options) {
  const auto& names = *model.family->attention;
  GQAQKVColumnParallelLinearSpec spec;
  spec.gqa_qkv_projection_name = names.fused;
  spec.query_projection_name = names.query;
  spec.key_projection_name = names.key;
  spec.value_projection_name = names.value;
  spec.output_projection_name = names.output;
  spec.num_attention_heads = static_cast<std::uint32_t>(model.heads);
  spec.num_key_value_heads = static_cast<std::uint32_t>(model.kv_heads);
  spec.kv_size_multiplier = static_cast<std::uint32_t>(multiplier_for(model, tp, options));
  spec.tp_size = static_cast<std::uint32_t>(tp);
  spec.pad_heads = options.pad_heads;
  spec.q_output_size_per_partition = std::uint64_t{spec.slots_per_rank()} * spec.heads_per_slot() * model.head_dim;
  spec.kv_output_size_per_partition = spec.slots_per_rank() * model.head_dim;
  spec.fuse_qkv = is_fused(options.attention);
  spec.replication = options.replication.value_or(KvReplication::kTiled);
  return spec;
}

PartitionOptions recorded_options(const std::vector<StageMetadata>& stages, const Model& model) {
  PartitionOptions options;
  options.fuse_linears = false;
  const auto& names = model.family->attention;
  for (const StageMetadata& stage : stages)
    for (const ModuleSpecs& module : stage.modules)
      for (const TransformationSpec& spec : module.specs) {
        if (const auto* linears = std::get_if<FusedLinearsSpec>(&spec)) {
          if (names && linears->linear_names == std::vector{names->query, names->key, names->value})
            options.attention = AttentionForm::kFused;
          else
            options.fuse_linears = true;
        } else if (const auto& gqa = std::get<GQAQKVColumnParallelLinearSpec>(spec); names) {
          options.attention = attention_form_of(true, gqa.fuse_qkv);
          options.kv_size_multiplier = gqa.kv_size_multiplier;
          options.replication = gqa.replication;
          options.pad_heads = gqa.pad_heads;
        }
      }
  return options;
}

std::optional<Error> tensor_parallel_problem(const Model& model, std::uint64_t tp, const PartitionOptions& options) {
  if (is_grouped_query(attention_form(model, tp, options))) {
    const std::string problem =
        multiplier_problem(model.heads, model.kv_heads, tp, multiplier_for(model, tp, options), options.pad_heads);
    if (!problem.empty()) return attention_error(model, tp, options, problem);
  }
  const bool separate = model.quantized || !model.plain_heads;
  if (separate && !options.separate && model.family->attention && model.kv_heads % tp != 0)
    return Error(ErrorKind::kUsage,
                 fmt::format("{} key/value heads cannot be shared by {} ranks: heads of {} are not replicated",
                             model.kv_heads, tp, model.quantized ? "quantised linears" : "these projections"));
  if (model.quantized && model.by_config_plan && tp > 1) {
    Error error(ErrorKind::kUnsupported,
                "the model is quantised, and the plan in its config.json does not say how scales are split");
    return error.hint("describe the model in a file and give it with `spec`");
  }
  const bool gqa = is_grouped_query(attention_form(model, tp, options));
  for (const ModelParameter& parameter : model.parameters) {
    auto problem = split_problem(parameter, tp, !options.separate);
    if (options.pad && can_pad(parameter)) {
      problem = heads_problem(model, parameter, tp);
      if (!problem) continue;
    }
    if (!problem && options.pad) problem = packing_problem(model, parameter, tp);
    if (!problem) continue;
    const auto attention = gqa ? module_in(model.family->attention->module, parameter.layer) : std::nullopt;
    if (attention) {  // repeated, not split
      const auto& a = *model.family->attention;
      const std::string& module = *attention;
      if (parameter.module == module + "." + a.key || parameter.module == module + "." + a.value) continue;
      if (options.pad_heads &&
          (parameter.module == module + "." + a.query || parameter.module == module + "." + a.output))
        continue;  // padded
    }
    Error error(ErrorKind::kUsage, *problem + (options.pad ? ", and it cannot be padded" : ""));
    error.tensor(parameter.name);
    if (model.by_config_plan && parameter.heads % tp != 0)
      error.hint("heads are not replicated for a model that only the plan in its config.json describes");
    else if (!model.family->attention && !options.separate && parameter.heads != 0 && parameter.heads % tp != 0)
      error.hint(
          "ranks replicate heads only if the model's description has \"attention\" (docs/families.md): add it to "
          "the output of `print-spec`, and give the file with `spec`");
    return error;
  }
  return std::nullopt;
}

namespace {

std::vector<std::uint64_t> degrees_that(const std::function<bool(std::uint64_t)>& work) {
  std::vector<std::uint64_t> degrees;
  for (std::uint64_t tp = 1; tp <= kMaxTriedDegree; ++tp)
    if (work(tp)) degrees.push_back(tp);
  return degrees;
}

std::string degrees_hint(const std::vector<std::uint64_t>& degrees) {
  if (degrees.empty()) return "no TP degree works for this model with these options";
  return "TP degrees that work for this model: " + list_numbers(degrees, 24);
}

}  // namespace

std::vector<std::uint64_t> legal_tp_degrees(const Model& model, const PartitionOptions& options,
                                            const DegreeProblem& more) {
  // Most layers are equal, and so are all experts. Keeps one of each kind, so that large models are fast, too.
  Model kinds = model;
  std::set<std::tuple<std::string, Dims, std::uint64_t>> seen;
  std::erase_if(kinds.parameters, [&](const ModelParameter& p) {
    if (!p.layer) return false;
    if (p.expert.value_or(0) != 0) return true;
    std::string kind = p.name;
    std::erase_if(kind, [](char c) { return c >= '0' && c <= '9'; });
    return !seen.emplace(kind, p.shape, p.heads).second;
  });
  return degrees_that(
      [&](std::uint64_t tp) { return !tensor_parallel_problem(kinds, tp, options) && !(more && more(tp)); });
}

namespace {

/// Validates that `ep` ranks can share the experts of each layer.
void validate_experts(const Model& model, std::uint64_t ep) {
  if (ep == 1) return;
  bool any = false;
  for (const ModelParameter& parameter : model.parameters) {
    if (parameter.experts == 0) continue;
    any = true;
    const std::size_t matrices = std::max<std::size_t>(1, parameter.packed.size());
    if (!parameter.expert && parameter.split_dim == 0u && matrices % parameter.experts != 0)
      throw Error(
          ErrorKind::kUnsupported,
          fmt::format("its {} experts are stacked along the dim that is split, and not each a packed matrix of it",
                      parameter.experts))
          .tensor(parameter.name)
          .hint("the family needs a plan of packed_colwise with as many matrices");
    if (parameter.experts % ep == 0) continue;
    std::vector<std::uint64_t> degrees;
    for (std::uint64_t degree = 1; degree <= parameter.experts; ++degree)
      if (parameter.experts % degree == 0) degrees.push_back(degree);
    throw Error(ErrorKind::kUsage,
                fmt::format("{} experts cannot be shared by {} expert-parallel ranks", parameter.experts, ep))
        .tensor(parameter.name)
        .hint("degrees that work: " + list_numbers(degrees));
  }
  if (!any)
    throw Error(ErrorKind::kUsage, fmt::format("`ep` {}: this {} model has no experts", ep, model.family->model_type))
        .hint("leave out `ep`");
}

}  // namespace

std::string describe_degrees(const std::function<bool(std::uint64_t)>& works) {
  return degrees_hint(degrees_that(works));
}

void validate_split(const Model& model, std::uint64_t tp, const PartitionOptions& options, const DegreeProblem& more) {
  auto problem = tensor_parallel_problem(model, tp, options);
  if (!problem && more) problem = more(tp);
  if (!problem) return;
  std::string degrees = degrees_hint(legal_tp_degrees(model, options, more));
  const auto quantized = std::find_if(model.parameters.begin(), model.parameters.end(), [&](const auto& parameter) {
    return parameter.name == problem->tensor() && (parameter.experts != 0 || parameter.linear_size != 0);
  });
  if (quantized != model.parameters.end() && is_dequantized(model.quant_method))
    degrees += "; for more, set `dtype` to bfloat16, which dequantises the model first";
  throw problem->hint(problem->hint().empty() ? degrees : problem->hint() + "; " + degrees);
}

std::vector<StagePlan> plan_stages(const Model& model, std::uint32_t tp, const PipelinePartition& partition,
                                   const PartitionOptions& options,
                                   const std::function<bool(const std::string&)>& holds, std::uint32_t ep) {
  validate_split(model, tp, options);
  validate_experts(model, ep);
  StageBuilder builder(model, tp, ep, options);
  std::vector<StagePlan> plans;
  for (std::uint32_t pp_rank = 0; pp_rank < partition.pp; ++pp_rank)
    plans.push_back(builder.build(pp_rank, partition, holds));
  return plans;
}

}  // namespace reshard
