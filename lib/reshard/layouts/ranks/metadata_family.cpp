// Builds a description from the metadata of ranks. Tensors are grouped by name over the largest stack of layers, and
// each group of equal shape and partition becomes a module.

#include "reshard/layouts/ranks/metadata_family.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/rules/metadata_rules.h"
#include "reshard/specs/family/resolve_family.h"
#include "reshard/specs/model/model.h"

namespace reshard {
namespace {

using Layers = std::set<std::uint64_t>;

constexpr const char* kEmbeddingModule = "model.embed_tokens";  // tied to the head if no family defines it otherwise
constexpr const char* kQuery = "q_proj";
constexpr const char* kKey = "k_proj";
constexpr const char* kValue = "v_proj";
constexpr const char* kFusedProjections = "qkv_proj";  // as in optimum-neuron's models

/// How a logical tensor is split.
struct Split {
  std::optional<std::uint32_t> dim;  // std::nullopt: every rank has all of it
  std::uint32_t stride = 1;
  std::vector<PackedPart> packed;

  friend bool operator==(const Split&, const Split&) = default;
};

struct Tensor {
  std::string name;
  Dims shape;
  Split split;
  std::set<std::uint32_t> stages;

  std::string module() const { return name.substr(0, std::min(name.size(), name.rfind('.'))); }
  std::string leaf() const { return name.substr(std::min(name.size(), module().size() + 1)); }
};

/// A module of the description: tensors of the same name, shape and split in some layers.
struct Group {
  std::string module;  // with a star instead of the layer's number
  std::string leaf;
  Dims shape;
  Split split;
  Layers layers;       // empty outside the stack
  Layers bias_layers;  // subset of `layers` with a bias that is split like the outputs
  bool has_bias = false;
  std::set<std::uint32_t> stages;
};

Error cannot_describe(const std::string& name, const std::string& what) {
  return Error(ErrorKind::kUnsupported, what + ", which a description built from the metadata cannot express")
      .tensor(name)
      .hint("describe the model in a file and give it with `spec`");
}

/// Returns a condition that is true for `layers` out of `count` layers.
std::string condition(const Layers& layers, std::uint64_t count) {
  std::vector<std::string> ranges;
  for (auto layer = layers.begin(); layer != layers.end();) {
    const std::uint64_t begin = *layer;
    std::uint64_t end = begin;
    while (layer != layers.end() && *layer == end) ++layer, ++end;
    if (end == begin + 1)
      ranges.push_back(fmt::format("layer == {}", begin));
    else if (begin == 0)
      ranges.push_back(fmt::format("layer < {}", end));
    else if (end == count)
      ranges.push_back(fmt::format("layer >= {}", begin));
    else
      ranges.push_back(fmt::format("layer >= {} and layer < {}", begin, end));
  }
  return join(ranges, " or ");
}

class Describer {
 public:
  Describer(const std::vector<StageMetadata>& stages, std::uint32_t tp, const SourceMap& map, const ModelConfig& config)
      : stages_(stages), tp_(tp), config_(config) {
    read_splits();
    read_tensors(map);
    choose_stack();
    for (const Tensor& tensor : tensors_) add(tensor);
  }

  MetadataFamily run() {
    OrderedJson family = OrderedJson::object();
    family["model_type"] = config_.model_type.empty() ? "custom" : config_.model_type;
    if (!stack_.empty()) {
      family["layers"] = stack_;
      family["num_layers"] = layer_count_;
    }
    const OrderedJson attention = attention_json();
    const OrderedJson modules = modules_json();
    if (!define_.empty()) family["define"] = define_;
    family["modules"] = modules;
    if (!attention.is_null()) family["attention"] = attention;
    if (const OrderedJson fused = fused_json(); !fused.empty()) family["fused"] = fused;
    return {family_text(family), cuts()};
  }

 private:
  struct Place {
    std::uint64_t layer;
    std::string pattern;  // the name with a star instead of the layer's number
  };

  /// Reads the split of each logical tensor from entries and specs.
  void read_splits() {
    for (std::uint32_t stage = 0; stage < stages_.size(); ++stage) {
      const std::vector<PartitionRule> rules = partition_rules(stages_[stage], tp_);
      for (std::size_t i = 0; i < rules.size(); ++i) {
        const ParallelParameter& own = stages_[stage].parameters[i];
        if (own.expert_model_parallel())
          throw cannot_describe(own.name, "its experts are distributed over separate ranks");
        Split split;
        if (rules[i].from_spec)
          split.dim = split_dim(rules[i]);
        else if (own.tensor_model_parallel)
          split = {own.partition_dim, own.partition_stride, own.packed};
        for (const PartitionRule::Part& part : rules[i].parts) {
          const auto [found, is_new] = splits_.try_emplace(part.logical_name, split);
          if (!is_new && found->second != split)
            throw cannot_describe(part.logical_name, "pipeline ranks split it differently");
          stages_of_[part.logical_name].insert(stage);
        }
      }
    }
  }

  /// Reads tensors in the order of the files, and of the linears in a fused one.
  void read_tensors(const SourceMap& map) {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < map.logical.size(); ++i)
      if (!map.logical[i].constant() && !map.pieces[i].empty()) order.push_back(i);
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      const Piece& first = map.pieces[a].front();
      const Piece& second = map.pieces[b].front();
      if (first.stored != second.stored) return first.stored < second.stored;
      return std::lexicographical_compare(first.stored_begin.begin(), first.stored_begin.end(),
                                          second.stored_begin.begin(), second.stored_begin.end());
    });
    for (const std::size_t i : order) {
      const LogicalTensor& tensor = map.logical[i];
      const auto split = splits_.find(tensor.name);
      if (split == splits_.end()) throw cannot_describe(tensor.name, "the metadata does not list it");
      if (tensor.name.find('*') != std::string::npos) throw cannot_describe(tensor.name, "its name contains a star");
      tensors_.push_back({tensor.name, tensor.shape, split->second, stages_of_.at(tensor.name)});
      by_name_.emplace(tensor.name, tensors_.size() - 1);
    }
    for (const StoredTensor& stored : map.stored)
      if (stored.tied) tied_ = true;
    // If a file is sorted by name, it does not show the model's order.
    const auto by_name = [&](const StoredTensor& a, const StoredTensor& b) {
      return map.files[a.file].tp_rank == map.files[b.file].tp_rank &&
             map.files[a.file].pp_rank == map.files[b.file].pp_rank &&
             std::string(a.name.text()) < std::string(b.name.text());
    };
    is_sorted_ = std::is_sorted(map.stored.begin(), map.stored.end(), by_name);
  }

  /// Finds the prefix under which most tensors have a number: "model.layers".
  void choose_stack() {
    std::map<std::string, std::size_t> counts;
    for (const Tensor& tensor : tensors_)
      for (std::size_t dot = tensor.name.find('.'); dot != std::string::npos; dot = tensor.name.find('.', dot + 1)) {
        const std::size_t end = tensor.name.find('.', dot + 1);
        if (end == std::string::npos) break;
        if (parse_unsigned(std::string_view(tensor.name).substr(dot + 1, end - dot - 1), kMaxLayers - 1))
          ++counts[tensor.name.substr(0, dot)];
      }
    std::size_t most = 0;
    for (const auto& [prefix, count] : counts)
      if (count > most || (count == most && prefix.size() < stack_.size())) {
        most = count;
        stack_ = prefix;
      }
    for (const Tensor& tensor : tensors_)
      if (const auto place = place_of(tensor.name)) layer_count_ = std::max(layer_count_, place->layer + 1);
  }

  /// Returns std::nullopt outside the stack.
  std::optional<Place> place_of(const std::string& name) const {
    if (stack_.empty() || !name.starts_with(stack_ + ".")) return std::nullopt;
    const std::size_t begin = stack_.size() + 1;
    const std::size_t end = name.find('.', begin);
    if (end == std::string::npos) return std::nullopt;
    const auto layer = parse_unsigned(std::string_view(name).substr(begin, end - begin), kMaxLayers - 1);
    if (!layer) return std::nullopt;
    return Place{*layer, stack_ + ".*" + name.substr(end)};
  }

  /// Whether the weight has a bias that is split as `"bias": true` in a description requires.
  bool has_plain_bias(const Tensor& weight) const {
    const auto found = by_name_.find(weight.module() + ".bias");
    if (weight.leaf() != "weight" || weight.shape.empty() || found == by_name_.end()) return false;
    const Tensor& bias = tensors_[found->second];
    if (bias.shape != Dims{weight.shape.front()} || (weight.split.dim && weight.shape.size() > 2)) return false;
    return bias.split == (weight.split.dim == 0u ? weight.split : Split());
  }

  void add(const Tensor& tensor) {
    if (tensor.leaf() == "bias")
      if (const auto weight = by_name_.find(tensor.module() + ".weight");
          weight != by_name_.end() && has_plain_bias(tensors_[weight->second]))
        return;
    const auto place = place_of(tensor.name);
    const bool lone = tensor.name.find('.') == std::string::npos;
    const std::string leaf = lone ? "" : tensor.leaf();
    std::string module = place ? place->pattern : tensor.name;
    if (!lone) module.resize(module.size() - leaf.size() - 1);
    std::vector<std::size_t>& same_name = groups_by_name_[{module, leaf}];
    const auto known = std::find_if(same_name.begin(), same_name.end(), [&](std::size_t i) {
      return groups_[i].shape == tensor.shape && groups_[i].split == tensor.split;
    });
    if (known == same_name.end()) groups_.push_back({module, leaf, tensor.shape, tensor.split, {}, {}, false, {}});
    Group* const group = &groups_[known == same_name.end() ? groups_.size() - 1 : *known];
    if (known == same_name.end()) same_name.push_back(groups_.size() - 1);
    group->stages.insert(tensor.stages.begin(), tensor.stages.end());
    const bool has_bias = has_plain_bias(tensor);
    group->has_bias = group->has_bias || has_bias;
    if (!place) return;
    group->layers.insert(place->layer);
    if (has_bias) group->bias_layers.insert(place->layer);
  }

  /// Returns the number of heads of a projection, if config.json contains it and no spec does.
  std::optional<std::uint64_t> heads_of(const Group& group) const {
    const std::string name = group.module.substr(group.module.rfind('.') + 1);
    const bool is_query = name == kQuery;
    if (attention_ || group.split.dim != 0u || (!is_query && name != kKey && name != kValue)) return std::nullopt;
    for (const char* key : {is_query ? "num_attention_heads" : "num_key_value_heads", "num_attention_heads"}) {
      const auto found = config_.json->find(key);
      if (found == config_.json->end() || !found->is_number_unsigned()) continue;
      const auto heads = found->get<std::uint64_t>();
      return heads != 0 && group.shape.front() % heads == 0 ? std::optional(heads) : std::nullopt;
    }
    return std::nullopt;
  }

  OrderedJson module_json(const Group& group) const {
    OrderedJson module = {{"name", group.module}};
    if (group.leaf != "weight") module["parameter"] = group.leaf;
    const std::size_t ndim = group.shape.size();
    const auto dim = group.split.dim;
    const bool by_row = ndim > 1 && dim == ndim - 1;
    const std::string word = by_row ? "rowwise" : "colwise";
    module["plan"] = !dim ? "replicate" : group.split.packed.empty() ? word : "packed_" + word;
    module["shape"] = OrderedJson::array();
    for (const std::uint64_t size : group.shape) module["shape"].push_back(size);
    if (dim && !by_row && ndim > 1 && *dim != ndim - 2) module["dim"] = *dim;
    if (group.split.stride > 1) module["stride"] = group.split.stride;
    for (const PackedPart& part : group.split.packed) {
      OrderedJson size = part.size;
      module["packed"].push_back(part.replicated ? OrderedJson{{"size", part.size}, {"plan", "replicate"}} : size);
    }
    if (const auto heads = heads_of(group)) module["heads"] = *heads;
    if (group.has_bias) {
      if (group.bias_layers == group.layers)
        module["bias"] = "always";
      else
        module["bias"] = condition(group.bias_layers, layer_count_);
    }
    if (!group.layers.empty() && group.layers.size() != layer_count_)
      module["when"] = condition(group.layers, layer_count_);
    return module;
  }

  /// Returns the modules before the layers, in the layers, and after them.
  OrderedJson modules_json() {
    OrderedJson before = OrderedJson::array(), inside = before, behind = before;
    const auto last = static_cast<std::uint32_t>(stages_.size() - 1);
    bool seen_layers = false;
    for (const Group& group : groups_) {
      OrderedJson module = module_json(group);
      seen_layers = seen_layers || !group.layers.empty();
      if (!group.layers.empty()) {
        inside.push_back(std::move(module));
        continue;
      }
      const bool on_first = group.stages.count(0) > 0;
      const bool is_shared = tied_ && group.module == kEmbeddingModule;
      if ((!on_first && *group.stages.begin() != last) || (group.stages.size() > 1 && !is_shared))
        throw cannot_describe(group.module,
                              fmt::format("it is outside the layers on pipeline rank {}", *group.stages.begin()));
      if (last > 0) module["stage"] = on_first ? "first" : "last";
      (last > 0 ? !on_first : seen_layers || is_sorted_) ? behind.push_back(std::move(module))
                                                         : before.push_back(std::move(module));
    }
    if (last > 0 && inside.empty())
      throw Error(ErrorKind::kUnsupported, "the metadata has several pipeline stages, but no stack of layers");
    add_tied_head(behind);
    for (OrderedJson* list : {&inside, &behind})
      for (OrderedJson& module : *list) before.push_back(std::move(module));
    return before;
  }

  /// Adds the head if its only tensor is an alias of the embedding's (tied_parameters).
  void add_tied_head(OrderedJson& modules) {
    const auto embedding = std::find_if(groups_.begin(), groups_.end(), [](const Group& group) {
      return group.module == kEmbeddingModule && group.leaf == "weight";
    });
    if (!tied_ || embedding == groups_.end()) return;
    OrderedJson head = module_json(*embedding);
    head["name"] = "lm_head";
    head["stage"] = "last";
    head["tied_to"] = embedding->module;
    modules.push_back(std::move(head));
    define_["tie_word_embeddings"] = true;
  }

  /// \param wanted  called with each spec of this kind, its module's name, and the pattern of this name.
  template <typename Spec, typename Action>
  void for_each_spec(Action&& wanted) const {
    for (const StageMetadata& stage : stages_)
      for (const ModuleSpecs& module : stage.modules)
        for (const TransformationSpec& one : module.specs)
          if (const auto* spec = std::get_if<Spec>(&one)) {
            const std::string& name = module.module_fully_qualified_name;
            const auto place = place_of(name + ".");
            wanted(*spec, name, place ? place->pattern.substr(0, place->pattern.size() - 1) : name);
          }
  }

  /// Whether a spec fuses the query projection of `module`, a pattern.
  bool is_fused(const std::string& module) const {
    bool found = false;
    for_each_spec<FusedLinearsSpec>([&](const FusedLinearsSpec& spec, const std::string&, const std::string& pattern) {
      found = found || (pattern == module && std::count(spec.linear_names.begin(), spec.linear_names.end(), kQuery));
    });
    return found;
  }

  /// Validates that a spec exists in each layer that has its linear. `named` are the modules that have the spec.
  void validate_everywhere(const std::string& pattern, const std::string& linear,
                           const std::set<std::string>& named) const {
    for (const Tensor& tensor : tensors_) {
      const auto place = place_of(tensor.name);
      if ((place ? place->pattern : tensor.name) != pattern + "." + linear + ".weight") continue;
      const std::string module = tensor.name.substr(0, tensor.name.size() - linear.size() - 8);
      if (named.count(module) == 0)
        throw cannot_describe(tensor.name, "a transformation spec fuses it only in other layers");
    }
  }

  void define_heads(std::uint64_t heads, std::uint64_t kv_heads, std::uint64_t head_dim) {
    define_["num_attention_heads"] = heads;
    define_["num_key_value_heads"] = kv_heads;
    define_["head_dim"] = head_dim;
  }

  /// Returns the weight of a linear; nullptr if there is none, or if layers split it differently.
  const Group* linear(const std::string& module) const {
    const auto found = groups_by_name_.find({module, "weight"});
    return found == groups_by_name_.end() || found->second.size() != 1 ? nullptr : &groups_[found->second.front()];
  }

  /// Returns the only linear next to `query` that takes its outputs, split in the same way; nullptr if not found.
  const Group* output_of(const Group& query, const std::string& module) const {
    const Group* output = nullptr;
    for (const Group& group : groups_) {
      if (group.module.substr(0, group.module.rfind('.')) != module || linear(group.module) != &group) continue;
      if (group.shape.size() != 2 || group.shape.back() != query.shape.front() || group.split != Split{1, 1, {}} ||
          group.layers != query.layers)
        continue;
      if (output != nullptr) return nullptr;
      output = &group;
    }
    return output;
  }

  /// Describes query, key, value and output projections that are stored separately in one module, so that more ranks
  /// than key/value heads can replicate these heads; null if config.json lacks the numbers of heads, or if the
  /// projections do not match them.
  OrderedJson separate_attention_json() {
    OrderedJson attention = nullptr;
    for (const Group& query : groups_) {
      const std::size_t dot = query.module.rfind('.');
      if (dot == std::string::npos || query.module.substr(dot + 1) != kQuery || linear(query.module) != &query)
        continue;
      const std::string module = query.module.substr(0, dot);
      const Group* key = linear(module + "." + kKey);
      const Group* output = output_of(query, module);
      const auto heads = heads_of(query), kv_heads = key == nullptr ? std::nullopt : heads_of(*key);
      if (output == nullptr || !heads || !kv_heads || *heads % *kv_heads != 0) continue;
      const auto is_projection = [&](const Group* one, std::uint64_t count) {
        return one != nullptr && one->shape.size() == 2 && one->split == Split{0, 1, {}} &&
               one->layers == query.layers && one->has_bias == query.has_bias &&
               one->bias_layers == query.bias_layers && one->shape.front() / count * *heads == query.shape.front();
      };
      if (!is_projection(&query, *heads) || !is_projection(key, *kv_heads) ||
          !is_projection(linear(module + "." + kValue), *kv_heads) || is_fused(module))
        continue;
      if (!attention.is_null()) return nullptr;  // a description has one
      define_heads(*heads, *kv_heads, query.shape.front() / *heads);
      attention = {{"module", module},
                   {"query", kQuery},
                   {"key", kKey},
                   {"value", kValue},
                   {"output", output->module.substr(dot + 1)},
                   {"fused", kFusedProjections}};
    }
    return attention;
  }

  OrderedJson attention_json() {
    std::string pattern;
    std::set<std::string> named;
    for_each_spec<GQAQKVColumnParallelLinearSpec>(
        [&](const GQAQKVColumnParallelLinearSpec& spec, const std::string& name, const std::string& its_pattern) {
          GQAQKVColumnParallelLinearSpec comparable = spec;
          comparable.bias = attention_ ? attention_->bias : spec.bias;
          if (attention_ && (*attention_ != comparable || pattern != its_pattern))
            throw cannot_describe(name, fmt::format("its grouped heads differ from those of {}", pattern));
          attention_ = comparable;
          pattern = its_pattern;
          named.insert(name);
        });
    if (!attention_) return separate_attention_json();
    const GQAQKVColumnParallelLinearSpec& spec = *attention_;
    validate_everywhere(pattern, spec.query_projection_name, named);
    const std::uint64_t rows = std::uint64_t{spec.slots_per_rank()} * spec.heads_per_slot();
    define_heads(spec.num_attention_heads, spec.num_key_value_heads,
                 spec.q_output_size_per_partition / std::max<std::uint64_t>(rows, 1));
    OrderedJson attention = {{"module", pattern},
                             {"query", spec.query_projection_name},
                             {"key", spec.key_projection_name},
                             {"value", spec.value_projection_name},
                             {"output", spec.output_projection_name},
                             {"fused", spec.gqa_qkv_projection_name}};
    if (spec.fuse_qkv) attention["fuse_qkv"] = true;
    if (spec.kv_size_multiplier != std::max(1u, tp_ / spec.num_key_value_heads))
      attention["kv_size_multiplier"] = spec.kv_size_multiplier;
    return attention;
  }

  OrderedJson fused_json() const {
    OrderedJson fused = OrderedJson::array();
    std::map<std::string, std::set<std::string>> named;  // by the JSON of each spec
    for_each_spec<FusedLinearsSpec>([&](const FusedLinearsSpec& spec, const std::string& name,
                                        const std::string& pattern) {
      const OrderedJson one = {{"module", pattern}, {"name", spec.fused_linear_name}, {"linears", spec.linear_names}};
      if (named[json_text(one)].empty()) fused.push_back(one);
      named[json_text(one)].insert(name);
    });
    for (const OrderedJson& one : fused)
      validate_everywhere(one.at("module"), one.at("linears").front(), named.at(json_text(one)));
    return fused;
  }

  std::vector<std::string> cuts() const {
    std::map<std::uint64_t, std::uint32_t> stage_of;
    for (const Tensor& tensor : tensors_)
      if (const auto place = place_of(tensor.name)) {
        if (tensor.stages.size() != 1) throw cannot_describe(tensor.name, "several pipeline ranks have it");
        stage_of[place->layer] = *tensor.stages.begin();
      }
    std::vector<std::string> cuts;
    for (auto layer = stage_of.begin(); layer != stage_of.end() && std::next(layer) != stage_of.end(); ++layer) {
      const auto next = std::next(layer);
      if (next->second == layer->second) continue;
      if (next->second != layer->second + 1) return {};  // virtual stages
      cuts.push_back(fmt::format("{}.{}", stack_, next->first - 1));
    }
    return cuts;
  }

  const std::vector<StageMetadata>& stages_;
  std::uint32_t tp_;
  const ModelConfig& config_;
  std::map<std::string, Split> splits_;
  std::map<std::string, std::set<std::uint32_t>> stages_of_;
  std::vector<Tensor> tensors_;
  std::map<std::string, std::size_t> by_name_;
  bool tied_ = false;
  bool is_sorted_ = false;  // by name
  std::string stack_;       // empty: there is no stack
  std::uint64_t layer_count_ = 0;
  std::vector<Group> groups_;
  std::map<std::pair<std::string, std::string>, std::vector<std::size_t>> groups_by_name_;  // by module and leaf
  std::optional<GQAQKVColumnParallelLinearSpec> attention_;
  OrderedJson define_ = OrderedJson::object();
};

}  // namespace

MetadataFamily describe_metadata(const std::vector<StageMetadata>& stages, std::uint32_t tp, const SourceMap& map,
                                 const ModelConfig& config) {
  return Describer(stages, tp, map, config).run();
}

}  // namespace reshard
