// LoRA adapters that NxD Inference serves together with their base model.
#include "reshard/layouts/inference/served_adapters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/peft/adapter_content.h"
#include "reshard/layouts/rules/placed_rules.h"
#include "reshard/specs/config/neuron_config.h"
#include "reshard/specs/peft/adapter_metadata.h"
#include "reshard/tensor/recipes/scaled.h"

namespace reshard {
namespace {

using Table = std::shared_ptr<const Placement>;

/// Keys of lora_config on which the files depend.
constexpr const char* kLoraKeys[] = {"target_modules",         "max_loras",
                                     "max_lora_rank",          "batch_size",
                                     "lora_memory_transpose",  "lora_shard_linear_layer",
                                     "enable_base_model_only", "dynamic_multi_lora",
                                     "max_cpu_loras",          "lora_ckpt_paths",
                                     "lora_ckpt_paths_cpu"};
constexpr const char* kPathKeys[] = {"lora_ckpt_paths", "lora_ckpt_paths_cpu"};
/// Its other keys in a neuron_config.json.
constexpr const char* kIdleLoraKeys[] = {"base_model_quantized", "eviction_policy", "is_context_encoding",
                                         "lfu_decay_period",     "lora_bias",       "lora_ckpt_json"};

/// Returns the module of a tensor: its name without the last part.
std::string served_module_of(const std::string& name) {
  return name.substr(0, name.rfind('.'));
}

std::string last_module(const std::string& module) {
  return module.substr(module.rfind('.') + 1);
}

bool is_wrapped(const std::string& name, const ServedAdapters& served) {
  const std::string module = served_module_of(name);
  return served.modules.count(last_module(module)) > 0;
}

/// Returns the parts of a module's name by which NxD Inference finds its adapters: the layer, the module in it, and the
/// last part. Empty if the module is not in a layer.
std::string adapter_key(const std::string& module) {
  constexpr std::string_view kLayers = "layers.";
  const std::size_t at = module.find(kLayers);
  if (at == module.npos) return {};
  const std::vector<std::string> parts = split(module.substr(at + kLayers.size()), '.');
  return parts.size() < 3 ? std::string() : fmt::format("{}.{}.{}", parts[0], parts[1], parts.back());
}

/// Returns `each` elements per rank, in order; all of them if that is the size.
Table even_shares(std::uint64_t size, std::uint64_t each, std::uint32_t ranks) {
  if (each == size) return std::make_shared<const Placement>(Placement{1, size, {{0}}});
  const std::uint64_t unit = std::max<std::uint64_t>(std::gcd(size, each), 1);
  Placement placement{size / unit, unit, {}};
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    std::vector<std::uint32_t>& taken = placement.taken.emplace_back(each / unit);
    std::iota(taken.begin(), taken.end(), static_cast<std::uint32_t>(rank * (each / unit)));
  }
  return std::make_shared<const Placement>(std::move(placement));
}

/// Returns `used` of `size` elements, padded to `slots`.
Table padded_rank(std::uint64_t size, std::uint64_t used, std::uint64_t slots) {
  Placement placement{size, 1, {std::vector<std::uint32_t>(slots, static_cast<std::uint32_t>(size))}};
  std::iota(placement.taken.front().begin(), placement.taken.front().begin() + static_cast<std::ptrdiff_t>(used), 0u);
  return std::make_shared<const Placement>(std::move(placement));
}

/// Whether several ranks have the same elements.
bool repeats(const Placement& placement) {
  std::set<std::uint32_t> seen;
  for (const std::vector<std::uint32_t>& taken : placement.taken)
    for (const std::uint32_t unit : taken)
      if (unit < placement.units && !seen.insert(unit).second) return true;
  return false;
}

/// A linear of the base model that is wrapped.
struct WrappedLinear {
  std::string stored;  // module in the files
  std::string module;  // module of the model
  std::uint64_t in = 0, out = 0;
  std::optional<std::uint32_t> dim;  // that ranks share: 0 for rows
  std::uint64_t each = 0;            // elements of it on each rank, with padding
  Table shares;                      // of `dim`
};

/// One matrix of each adapter for a linear, by the adapter's index. Adapters may lack it.
using Matrices = std::map<std::size_t, LogicalTensor>;

struct ServedPair {
  Matrices a, b;
};
using ServedPairs = std::map<std::string, ServedPair>;  // by module of the model

/// Returns the matrices of the adapters of `context`, under the names of logical tensors.
/// \throws Error kBadInput or kUnsupported, naming the tensor, for those that `served` has no place for.
ServedPairs served_pairs(const ServedAdapters& served, const TargetContext& context) {
  ServedPairs pairs;
  auto tensors = tensors_by_adapter(context);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Adapter& adapter = context.adapters[i];
    const auto fail = [&](const LogicalTensor& tensor, ErrorKind kind, const std::string& message, const char* hint) {
      throw Error(kind, message).in(adapter.path).tensor(tensor.name).hint(hint);
    };
    for (const LogicalTensor& tensor : tensors[i])
      if (!tensor.name.ends_with(".lora_A.weight") && !tensor.name.ends_with(".lora_B.weight"))
        fail(tensor, ErrorKind::kUnsupported, "is no lora_A.weight or lora_B.weight, which alone NxD Inference serves",
             "merge the adapter into the model (merge_and_unload) and shard that");
    (void)adapter_content(adapter, *context.model, {}, tensors[i]);
    for (LogicalTensor& tensor : tensors[i]) {
      const LoraName name = lora_name(without_peft_prefix(tensor.name)).value();
      if (!is_wrapped(name.module + ".weight", served))
        fail(tensor, ErrorKind::kBadInput, "adapts a module that is not in target_modules of lora_config",
             "compile the model with all modules of its adapters (target_modules)");
      if (adapter.config.r > served.rank)
        fail(tensor, ErrorKind::kBadInput,
             fmt::format("has the rank {}, but max_lora_rank is {}", adapter.config.r, served.rank),
             "compile the model with a larger max_lora_rank");
      ServedPair& pair = pairs[name.module];
      tensor.name.insert(0, adapter.prefix);
      (name.component == "lora_A" ? pair.a : pair.b).emplace(i, std::move(tensor));
    }
  }
  return pairs;
}

/// Returns NxD Inference's scale of an adapter: 1 without lora_alpha, for which PEFT has 8, or if it is 0.
double scale_of(const AdapterConfig& config) {
  if (config.lora_alpha.value_or(0) == 0) return 1;
  const double rank = static_cast<double>(config.r);
  return *config.lora_alpha / (config.use_rslora ? std::sqrt(rank) : rank);
}

/// The adapter in each slot; std::nullopt for an empty slot.
using Slots = std::vector<std::optional<std::size_t>>;

class AdapterStacks {
 public:
  AdapterStacks(const ServedAdapters& served, const ServedPairs& pairs, std::uint32_t ranks,
                const TargetContext& context, Slots slots)
      : served_(served), pairs_(pairs), ranks_(ranks), context_(context), slots_(std::move(slots)), rules_(ranks) {
    for (const ModelParameter& parameter : context.model->parameters) parameters_.emplace(parameter.name, &parameter);
  }

  /// \param with_active  also adds the matrices in use, which are zeros.
  void add(const PartitionRule& rule, bool with_active) {
    if (rule.constant || rule.stored_name.ends_with(".bias") || !is_wrapped(rule.stored_name, served_)) return;
    const WrappedLinear linear = linear_of(rule);
    const auto found = pairs_.find(linear.module);
    const auto& [a, b] = found == pairs_.end() ? none_ : found->second;
    const bool by_rows = linear.dim == 0u;
    const std::uint64_t out_each = by_rows ? linear.each : shared(linear, linear.out);
    const std::uint64_t in_each = by_rows ? shared(linear, linear.in) : linear.each;
    const Table rows = by_rows && repeats(*linear.shares) ? linear.shares : even_shares(linear.out, out_each, ranks_);
    add_stack(linear.stored + ".lora_A", a, 1, in_each, even_shares(linear.in, in_each, ranks_),
              with_active ? (by_rows ? linear.in : in_each) : 0);
    add_stack(linear.stored + ".lora_B", b, 0, out_each, rows, with_active ? (by_rows ? out_each : linear.out) : 0);
  }

  void finish(TargetPlan& plan, const RankTarget& target) && {
    if (wrapped_.empty())
      throw Error(ErrorKind::kUsage, fmt::format("target_modules ({}) of `{}` names no module of the compiled model",
                                                 fmt::join(served_.modules, ", "), kLoraConfig.name))
          .hint("NxD Inference has no adapters for a fused projection");
    for (const auto& [module, pair] : pairs_) {
      if (wrapped_.count(module) > 0) continue;  // the model has it in another form
      for (const Matrices* of : {&pair.a, &pair.b})
        for (const auto& [adapter, tensor] : *of) plan.without_place.push_back(tensor.name);
    }
    plan.derived = std::move(derived_);
    plan.map = sharded_target_map(std::move(rules_).take(), ranks_, logical_, target);
  }

 private:
  /// \throws Error kUnsupported for tensors whose adapters have an unknown form: all but the matrices of attention and
  /// of dense MLPs.
  WrappedLinear linear_of(const PartitionRule& rule) {
    const auto refuse = [&](const std::string& problem) {
      throw Error(ErrorKind::kUnsupported, problem + ", so that adapters for it are not supported")
          .tensor(rule.stored_name)
          .hint(fmt::format("leave {} out of target_modules, or let NxD Inference shard these weights "
                            "(save_sharded_checkpoint)",
                            printable(last_module(served_module_of(rule.stored_name)))));
    };
    if (rule.parts.size() != 1 || rule.parts.front().slice || rule.parts.front().placed.size() > 1)
      refuse("is made of several parameters");
    const PartitionRule::Part& part = rule.parts.front();
    const auto parameter = parameters_.find(part.logical_name);
    if (parameter == parameters_.end() || parameter->second->shape.size() != 2 || !rule.file_dims.empty() ||
        !rule.stored_name.ends_with(".weight"))
      refuse("is no plain matrix");
    if (part.placed.empty()) refuse("is whole on each rank");
    const Dims& shape = parameter->second->shape;
    WrappedLinear linear{served_module_of(rule.stored_name), served_module_of(part.logical_name), shape[1], shape[0]};
    const std::string key = adapter_key(linear.module);
    if (key.empty() || key != adapter_key(linear.stored) || !linear.module.ends_with("layers." + key))
      refuse("is no matrix of attention or of a dense MLP");
    if (!wrapped_.insert(linear.module).second) refuse("is stored twice");
    linear.dim = part.placed.front().dim;
    linear.shares = part.placed.front().placement;
    const Placement& shares = *linear.shares;
    linear.each = shares.of(0).size() * shares.unit_elems.value_or(shape[*linear.dim] / shares.units);
    return linear;
  }

  /// Returns how many of `size` elements each rank has along the dim that ranks do not share in the base.
  std::uint64_t shared(const WrappedLinear& linear, std::uint64_t size) const {
    if (!served_.splits_unsplit) return size;
    if (size % ranks_ != 0)
      throw Error(ErrorKind::kUsage,
                  fmt::format("its adapters have a size of {}, which {} ranks do not divide", size, ranks_))
          .tensor(linear.stored + ".weight")
          .hint("choose a `tp` that divides it");
    return size / ranks_;
  }

  /// Returns the name of lora_A, multiplied by the scale of its adapter.
  std::string scaled(const LogicalTensor& tensor, std::size_t adapter) {
    const double factor = scale_of(context_.adapters[adapter].config);
    LogicalTensor result = tensor;
    result.name += ".scaled";
    result.computed = std::make_shared<const Computed>(Computed{scaled_recipe(factor), {tensor.name}});
    derived_.push_back(result);
    result.computed = nullptr;
    logical_.push_back(result);
    return result.name;
  }

  /// \param dim     the dim of the matrices that is not the adapter's rank; each rank has `each` elements of it.
  /// \param active  elements along it of the matrices in use; 0: none.
  void add_stack(const std::string& stored, const Matrices& matrices, std::uint32_t dim, std::uint64_t each,
                 const Table& shares, std::uint64_t active) {
    const DType dtype = context_.logical.front().dtype;
    const auto shape_of = [&](std::uint64_t count, std::uint64_t elems) {
      Dims shape{count, elems, served_.rank};
      if ((dim == 0) == served_.transposes) std::swap(shape[1], shape[2]);
      return shape;
    };
    const auto has_matrix = [&](const auto& adapter) { return adapter && matrices.count(*adapter) > 0; };
    const auto first = std::find_if(slots_.begin(), slots_.end(), has_matrix);
    if (first == slots_.end()) {
      rules_.add_constant(stored + ".weight", dtype, shape_of(slots_.size(), each), {{0}});
    } else {
      std::vector<std::string> names(slots_.size());
      std::vector<std::uint64_t> ranks(slots_.size(), 0);  // 0: an empty slot
      for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
        if (!has_matrix(slots_[slot])) continue;
        const LogicalTensor& matrix = matrices.at(*slots_[slot]);
        names[slot] = dim == 1 ? scaled(matrix, *slots_[slot]) : matrix.name;
        if (dim == 0) logical_.push_back(matrix);
        ranks[slot] = matrix.shape[1 - dim];
      }
      const auto filled = static_cast<std::size_t>(first - slots_.begin());
      std::vector<PartitionRule::Part> parts;
      for (std::uint32_t slot = 0; slot < slots_.size(); ++slot) {
        const std::size_t of = ranks[slot] == 0 ? filled : slot;  // whose elements an empty slot has none of
        std::vector<PartitionRule::PlacedDim> placed = {{dim, shares},
                                                        {1 - dim, padded_rank(ranks[of], ranks[slot], served_.rank)}};
        if (dim == 1) std::swap(placed.front(), placed.back());
        parts.push_back({names[of], std::move(placed), false, slot});
      }
      PartitionRule& rule =
          rules_.add_placed(stored + ".weight", dim == 0 ? PartitionLabel::kColumn : PartitionLabel::kRow, dim, parts);
      rule.records_originals = false;
      if (served_.transposes) {  // slots follow each other along the dim behind theirs
        rule.slice_dim = 1;
        rule.file_dims = {1, 2, 0};
      }
    }
    if (active != 0) rules_.add_constant(stored + ".weight_active", dtype, shape_of(served_.batch, active), {{0}});
  }

  const ServedAdapters& served_;
  const ServedPairs& pairs_;
  const ServedPair none_;
  std::uint32_t ranks_;
  const TargetContext& context_;
  Slots slots_;
  PlacedRules rules_;
  std::unordered_map<std::string, const ModelParameter*> parameters_;
  std::set<std::string> wrapped_;  // modules with stacks, of the model
  std::vector<LogicalTensor> logical_, derived_;
};

std::string name_of(const Adapter& adapter) {
  return adapter.path.parent_path().filename().string();  // of PEFT's directory
}

/// Returns the names that the adapters must have, in the order of their slots; empty if unknown.
const std::vector<std::string>& needed_names(const ServedAdapters& served) {
  return served.host_slots != 0 ? served.on_host : served.names;
}

/// Validates the adapters' settings and names.
void validate_configs(const ServedAdapters& served, std::span<const Adapter> adapters) {
  std::vector<std::string> given;
  for (const Adapter& adapter : adapters) {
    const auto same = std::find_if(adapters.begin(), adapters.end(), [&](const Adapter& one) {
      return one.path.lexically_normal() == adapter.path.lexically_normal();
    });
    if (&*same != &adapter)
      throw Error(ErrorKind::kUsage, "is given twice").in(adapter.path).hint("set `adapter` once for each adapter");
    given.push_back(name_of(adapter));
    if (!adapter.config.rank_pattern.empty() || !adapter.config.alpha_pattern.empty())
      throw Error(ErrorKind::kUnsupported,
                  "has rank_pattern or alpha_pattern, but NxD Inference has one scale per adapter")
          .in(adapter.config.path)
          .hint("merge the adapter into the model (merge_and_unload) and shard that");
  }
  const std::vector<std::string>& needed = needed_names(served);
  if (needed.empty() && served.host_slots == 0) return;
  if (!std::is_permutation(given.begin(), given.end(), needed.begin(), needed.end()))
    throw Error(ErrorKind::kUsage,
                fmt::format("the compiled model serves {} adapters ({}), but {} are given ({})", needed.size(),
                            fmt::join(needed, ", "), adapters.size(), fmt::join(given, ", ")))
        .in(adapters.front().path)
        .hint("set `adapter` to the directory of each, called like the adapter");
}

/// Returns the adapters of a stack with `count` slots, in which `first` and those after it are filled with `order`.
Slots slots_with(std::uint32_t count, std::uint32_t first, const std::vector<std::size_t>& order) {
  if (first + order.size() > count)
    throw Error(ErrorKind::kUsage,
                fmt::format("{} adapters, but the compiled model has {} slots for them", order.size(), count - first))
        .hint("give fewer adapters, or compile the model with a larger max_loras (max_cpu_loras)");
  Slots slots(count);
  for (std::size_t i = 0; i < order.size(); ++i) slots[first + i] = order[i];
  return slots;
}

/// Returns the keys of a lora_config on which the files depend, with the names of adapters instead of their paths.
Json plain_config(const Json& lora_config) {
  Json own = Json::object();
  for (const char* key : kLoraKeys)
    if (const auto found = lora_config.find(key); found != lora_config.end() && !found->is_null()) own[key] = *found;
  for (const char* key : kPathKeys) {
    if (!own.contains(key) || !own[key].is_object()) continue;
    Json names = Json::array();
    for (const auto& item : own[key].items()) names.push_back(item.key());
    own[key] = std::move(names);
  }
  return own;
}

/// Returns the plain_config of a value of kLoraConfig.
Json parse_lora_config(const std::string& text, const std::filesystem::path& place) {
  const Json json = parse_json(text, place, JsonDialect::kPython);
  const Json* lora = find_key(neuron_settings(json), "lora_config");
  if (lora != nullptr && lora->is_object()) return plain_config(*lora);
  const JsonObject object(json, place);
  if (lora != nullptr)
    throw Error(ErrorKind::kUsage, "has no object lora_config: the model was compiled without adapters").in(place);
  std::vector<std::string> known(std::begin(kLoraKeys), std::end(kLoraKeys));
  known.insert(known.end(), std::begin(kIdleLoraKeys), std::end(kIdleLoraKeys));
  object.validate_keys(known);
  return plain_config(json);
}

}  // namespace

std::string lora_config_text(const Json& lora_config) {
  return plain_config(lora_config).dump();
}

std::optional<ServedAdapters> served_adapters(const OptionValues& values) {
  if (!values.has(kLoraConfig.name)) return std::nullopt;
  try {
    const std::filesystem::path place = "`lora-config`";
    const Json json = parse_lora_config(values.text(kLoraConfig), place);
    const JsonObject object(json, place);
    const auto number = [&](const char* key, std::uint64_t least) {
      const std::uint64_t value = object.unsigned_at(key);
      if (value < least || value > kMaxParallelDegree) object.fail(key, "a number from 1");
      return static_cast<std::uint32_t>(value);
    };
    ServedAdapters served;
    for (std::string& module : object.strings_at("target_modules")) {
      if (module.find('.') != module.npos) object.fail("target_modules", "names without dots");
      served.modules.insert(std::move(module));
    }
    served.slots = number("max_loras", 1);
    served.rank = number("max_lora_rank", 1);
    if (object.has("batch_size")) served.batch = number("batch_size", 1);
    if (object.has("lora_memory_transpose")) served.transposes = object.bool_at("lora_memory_transpose");
    if (object.has("lora_shard_linear_layer")) served.splits_unsplit = object.bool_at("lora_shard_linear_layer");
    if (object.has("enable_base_model_only") && object.bool_at("enable_base_model_only")) served.first_slot = 1;
    const auto names = [&](const char* key, std::vector<std::string>& of) {
      if (object.has(key))  // "name: path" in an array
        for (const std::string& name : object.strings_at(key)) of.push_back(name.substr(0, name.find(':')));
    };
    names(kPathKeys[0], served.names);
    if (object.has("dynamic_multi_lora") && object.bool_at("dynamic_multi_lora")) {
      names(kPathKeys[1], served.on_host);
      served.host_slots = number("max_cpu_loras", 1);
    }
    return served;
  } catch (const Error& error) {
    throw Error(ErrorKind::kUsage, error.what())
        .hint(
            "give JSON such as {\"target_modules\": [\"q_proj\"], \"max_loras\": 2, \"max_lora_rank\": 16}, or the "
            "contents of neuron_config.json");
  }
}

bool has_same_adapters(const OptionValues& a, const OptionValues& b) {
  auto one = served_adapters(a), other = served_adapters(b);
  if (one && other && (one->names.empty() || other->names.empty())) one->names = other->names = {};
  return one == other;
}

void wrap_rules(std::vector<PartitionRule>& rules, const ServedAdapters& served, const std::string& wrapper) {
  for (PartitionRule& rule : rules)
    if (!rule.constant && is_wrapped(rule.stored_name, served))
      rule.stored_name.insert(rule.stored_name.rfind('.'), wrapper);
}

void plan_served_adapters(TargetPlan& plan, const RankTarget& target, const ServedAdapters& served,
                          const std::vector<PartitionRule>& base, const TargetContext& context) {
  validate_configs(served, context.adapters);
  const bool is_dynamic = served.host_slots != 0;
  const std::vector<std::string>& names = needed_names(served);
  const auto slot_of = [&](std::size_t i) {
    return std::find(names.begin(), names.end(), name_of(context.adapters[i]));
  };
  std::vector<std::size_t> order(context.adapters.size()), on_device, on_host;
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return slot_of(a) < slot_of(b); });
  for (const std::size_t i : order)
    (is_dynamic && std::count(served.names.begin(), served.names.end(), name_of(context.adapters[i])) == 0 ? on_host
                                                                                                           : on_device)
        .push_back(i);
  const ServedPairs pairs = served_pairs(served, context);
  AdapterStacks stacks(served, pairs, plan.mesh.tp, context, slots_with(served.slots, served.first_slot, on_device));
  for (const PartitionRule& rule : base) stacks.add(rule, true);
  std::move(stacks).finish(plan, target);
  if (!plan.without_place.empty())
    plan.notes
        .left_out(
            "left out, because the files have no module of this name (NxD Inference has no adapters for a fused "
            "projection): " +
            list_names(plan.without_place))
        .of(plan.without_place);
  if (!is_dynamic) return;
  on_host.insert(on_host.end(), on_device.begin(), on_device.end());
  for (const std::string& name : served.on_host) {  // the same stacks for each
    AdapterStacks all(served, pairs, plan.mesh.tp, context, slots_with(served.host_slots, served.first_slot, on_host));
    for (const PartitionRule& rule : base) all.add(rule, false);
    TargetPlan own;
    std::move(all).finish(own, target);
    for (TargetFile& file : own.map.files)
      file.path = file.path.parent_path() / fmt::format("{}_tp{}{}", name, file.tp_rank, kHostFileEnding);
    plan.map.append(std::move(own.map), "");
    for (LogicalTensor& tensor : own.derived)
      if (std::none_of(plan.derived.begin(), plan.derived.end(),
                       [&](const LogicalTensor& other) { return other.name == tensor.name; }))
        plan.derived.push_back(std::move(tensor));
  }
}

}  // namespace reshard
