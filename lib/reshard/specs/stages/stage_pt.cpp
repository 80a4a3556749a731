#include "reshard/specs/stages/stage_pt.h"

#include <fmt/format.h>

#include <map>
#include <set>
#include <span>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/formats/common/tensor_names.h"
#include "reshard/formats/torch/state_dict.h"
#include "reshard/formats/torch/torch_file.h"
#include "reshard/specs/parallel/mesh.h"
#include "reshard/specs/stages/stage_json.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxKeys = 64;  // maximum for dicts with known keys; real ones have fewer than ten
constexpr std::size_t kMaxStageParameters = 1 << 20;

/// Reads one file.
class Reader {
 public:
  Reader(const TorchFile& file, std::uint32_t tp,
         const std::function<std::optional<Dims>(const std::string& name)>& stored_shape)
      : file_(file), pickle_(file.pickle()), tp_(tp), stored_shape_(stored_shape) {}

  StageMetadata read() {
    const PickleRef parameters = member(pickle_.root(), kShardedMetadataKey);
    if (parameters == kNoNode || pickle_.kind(parameters) != PickleKind::kDict)
      throw bad("contains no \"sharded_metadata\"").hint("is this a metadata file of optimum-neuron?");
    if (pickle_.pairs(parameters).size() > kMaxStageParameters) throw bad("lists more than a million parameters");
    for (const auto& [key, value] : pickle_.pairs(parameters)) add_parameter(key, value);
    const PickleRef attention = member(pickle_.root(), kGqaQkvMetadataKey);
    if (attention != kNoNode) add_attention(attention);
    return std::move(metadata_);
  }

 private:
  Error bad(const std::string& message) const { return Error(ErrorKind::kBadInput, message).in(file_.path()); }

  /// Returns the value of a key in a dict; the last one if the key occurs twice, as in Python.
  PickleRef member(PickleRef dict, std::string_view key) const {
    PickleRef found = kNoNode;
    if (pickle_.pairs(dict).size() > kMaxKeys) throw bad("has a dict with too many keys");
    for (const auto& [name, value] : pickle_.pairs(dict))
      if (pickle_.kind(name) == PickleKind::kString && pickle_.text(name) == key) found = value;
    return found;
  }

  std::string text(PickleRef node) const {
    if (node == kNoNode || pickle_.kind(node) != PickleKind::kString || pickle_.text(node).empty())
      throw bad("has another value instead of a name");
    if (pickle_.text(node).size() > kMaxTensorNameBytes)
      throw bad("has a name of more than " + std::to_string(kMaxTensorNameBytes) + " bytes");
    return validate_name(std::string(pickle_.text(node)), file_.path());
  }

  std::uint32_t number(PickleRef dict, const char* key, std::uint32_t max) const {
    const PickleRef node = member(dict, key);
    if (node == kNoNode || pickle_.kind(node) != PickleKind::kInt || pickle_.integer(node) < 1 ||
        pickle_.integer(node) > max)
      throw bad(fmt::format("\"{}\" is not a number from 1 to {}", key, max));
    return static_cast<std::uint32_t>(pickle_.integer(node));
  }

  void add_parameter(PickleRef key, PickleRef value) {
    ParallelParameter parameter;
    parameter.name = text(key);
    if (!seen_.insert(parameter.name).second) throw bad("lists it twice").tensor(parameter.name);
    const std::string kind = text(member(value, "kind"));
    if (kind == "sharded") {
      const PickleRef dim = member(value, "partition_dim");
      if (dim == kNoNode || pickle_.kind(dim) != PickleKind::kInt || pickle_.integer(dim) < 0 ||
          pickle_.integer(dim) > 1)
        throw bad("its partition_dim is neither 0 nor 1").tensor(parameter.name);
      parameter.tensor_model_parallel = true;
      parameter.partition_dim = static_cast<std::uint32_t>(pickle_.integer(dim));
      parameter.num_partitions = tp_;
    } else if (kind != "tied") {
      throw bad("its kind is \"" + printable(kind) + "\", expected sharded or tied").tensor(parameter.name);
    }
    metadata_.parameters.push_back(std::move(parameter));
  }

  /// Adds the attention of a module, from the names of the fused projections.
  void add_attention(PickleRef attention) {
    const PickleRef names = member(attention, "original_names_to_gqa_qkv_names");
    if (names == kNoNode || pickle_.pairs(names).empty()) return;
    std::map<std::string, GQAQKVColumnParallelLinearSpec> by_module;
    for (const auto& [original, fused] : pickle_.pairs(names)) add_name(text(original), text(fused), by_module);
    add_outputs(attention, by_module);
    for (auto& [module, spec] : by_module) {
      // The names are those of the whole model; this stage has only some of the modules.
      const std::string stem = module + "." + spec.gqa_qkv_projection_name + ".weight_";
      const auto query = stored_shape_(stem + "q");
      const auto fused = stored_shape_(stem + "qkv");
      ModuleSpecs specs{module, {}};
      if (query || fused) {
        fill(attention, spec, stem, fused.has_value());
        specs.specs.emplace_back(spec);
      }
      metadata_.modules.push_back(std::move(specs));
    }
  }

  void add_name(const std::string& original, const std::string& fused,
                std::map<std::string, GQAQKVColumnParallelLinearSpec>& by_module) const {
    const std::vector<std::string> from = split(original, '.');
    const std::vector<std::string> to = split(fused, '.');
    if (from.size() < 3 || to.size() != from.size() || to.back().find('_') == std::string::npos)
      throw bad(fmt::format("records that {} became {}", printable(original), printable(fused)));
    const std::size_t module_bytes = original.size() - from.back().size() - from[from.size() - 2].size() - 2;
    GQAQKVColumnParallelLinearSpec& spec = by_module[original.substr(0, module_bytes)];
    spec.gqa_qkv_projection_name = to[to.size() - 2];
    spec.bias = spec.bias || from.back() == "bias";
    const std::string& projection = from[from.size() - 2];
    const std::string letter = to.back().substr(to.back().find('_') + 1);
    // The name of a fused weight does not identify the projections: they are in the order q, k, v.
    std::string* const slots[] = {&spec.query_projection_name, &spec.key_projection_name, &spec.value_projection_name};
    if (letter == "qkv") {
      for (std::string* slot : slots)
        if (slot->empty() || *slot == projection) {
          *slot = projection;
          break;
        }
    } else {
      for (std::size_t i = 0; i < 3; ++i)
        if (letter.size() == 1 && letter[0] == "qkv"[i]) *slots[i] = projection;
    }
  }

  /// Returns the elements of a list, or of a set in protocol 2: a call of `set` with a list.
  std::span<const PickleRef> elements(PickleRef node) const {
    if (!pickle_.is_object_of(node, "builtins", "set")) return pickle_.items(node);
    const auto arguments = pickle_.items(pickle_.args(node));
    return arguments.empty() ? arguments : pickle_.items(arguments.front());
  }

  void add_outputs(PickleRef attention, std::map<std::string, GQAQKVColumnParallelLinearSpec>& by_module) const {
    const PickleRef outputs = member(attention, "output_projections_names");
    if (outputs == kNoNode) return;
    for (const PickleRef item : elements(outputs)) {
      const std::string name = text(item);
      const std::vector<std::string> parts = split(name, '.');
      if (parts.size() < 3) continue;
      const std::size_t module_bytes = name.size() - parts.back().size() - parts[parts.size() - 2].size() - 2;
      const auto found = by_module.find(name.substr(0, module_bytes));
      if (found != by_module.end()) found->second.output_projection_name = parts[parts.size() - 2];
    }
  }

  void fill(PickleRef attention, GQAQKVColumnParallelLinearSpec& spec, const std::string& stem, bool fused) const {
    spec.num_attention_heads = number(attention, "num_attention_heads", kMaxHeads);
    spec.num_key_value_heads = number(attention, "num_key_value_heads", kMaxHeads);
    spec.kv_size_multiplier = number(attention, "kv_size_multiplier", kMaxParallelDegree);
    spec.fuse_qkv = fused;
    spec.tp_size = tp_;
    const std::string problem =
        multiplier_problem(spec.num_attention_heads, spec.num_key_value_heads, tp_, spec.kv_size_multiplier);
    if (!problem.empty()) throw bad("its attention is invalid: " + problem).tensor(stem + "q");
    if (spec.output_projection_name.empty() || spec.query_projection_name.empty() || spec.key_projection_name.empty() ||
        spec.value_projection_name.empty())
      throw bad("does not name all four projections").tensor(stem + (fused ? "qkv" : "q"));
    const std::uint64_t heads = spec.query_heads(0).size();
    const std::uint64_t slots = spec.slots_per_rank();
    const Dims shape = stored_shape_(stem + (fused ? "qkv" : "q")).value_or(Dims{});
    const std::uint64_t units = fused ? heads + 2 * slots : heads;
    if (shape.empty() || shape.front() == 0 || shape.front() % units != 0)
      throw bad(fmt::format("records {} query and {} key/value heads per rank, but its shape is {}", heads, slots,
                            to_string(shape)))
          .tensor(stem + (fused ? "qkv" : "q"));
    spec.q_output_size_per_partition = shape.front() / units * heads;
    spec.kv_output_size_per_partition = shape.front() / units * slots;
  }

  const TorchFile& file_;
  const Pickle& pickle_;
  std::uint32_t tp_;
  const std::function<std::optional<Dims>(const std::string& name)>& stored_shape_;
  std::set<std::string> seen_;
  StageMetadata metadata_;
};

std::int64_t signed_of(std::uint32_t number) {
  return static_cast<std::int64_t>(number);
}

/// Returns the "gqa_qkv_metadata" of attention modules; std::nullopt if it cannot express them.
std::optional<PlainValue::Dict> attention_metadata(const StageMetadata& stage) {
  std::set<std::string> held;
  for (const ParallelParameter& parameter : stage.parameters) held.insert(parameter.name);
  PlainValue::Dict names;
  PlainValue::List outputs;
  PlainValue heads, kv_heads, multiplier;
  for (const ModuleSpecs& module : stage.modules)
    for (const TransformationSpec& any : module.specs) {
      const auto* spec = std::get_if<GQAQKVColumnParallelLinearSpec>(&any);
      if (spec == nullptr || spec->fuse_qkv || spec->pad_heads || spec->replication != KvReplication::kTiled)
        return std::nullopt;
      const std::string prefix = module.module_fully_qualified_name + ".";
      const std::pair<const std::string&, char> projections[] = {
          {spec->query_projection_name, 'q'}, {spec->key_projection_name, 'k'}, {spec->value_projection_name, 'v'}};
      for (const char* leaf : {".weight", ".bias"}) {
        if (leaf == std::string_view(".bias") && !spec->bias) continue;
        for (const auto& [projection, letter] : projections)
          names.emplace_back(prefix + projection + leaf,
                             PlainValue{prefix + spec->gqa_qkv_projection_name + leaf + "_" + letter});
      }
      for (const char* leaf : {".weight", ".bias"})
        if (std::string name = prefix + spec->output_projection_name + leaf; held.count(name))
          outputs.push_back({std::move(name)});
      heads = {signed_of(spec->num_attention_heads)};
      kv_heads = {signed_of(spec->num_key_value_heads)};
      multiplier = {signed_of(spec->kv_size_multiplier)};
    }
  return PlainValue::Dict{{"original_names_to_gqa_qkv_names", {std::move(names)}},
                          {"output_projections_names", {std::move(outputs)}},
                          {"num_attention_heads", heads},
                          {"num_key_value_heads", kv_heads},
                          {"kv_size_multiplier", multiplier}};
}

}  // namespace

std::optional<PlainValue::Dict> stage_pt_value(const StageMetadata& stage) {
  PlainValue::Dict parameters;
  for (const ParallelParameter& parameter : stage.parameters) {
    const bool split = parameter.tensor_model_parallel;
    if (parameter.partition_stride != 1 || !parameter.packed.empty() || parameter.expert_model_parallel() ||
        parameter.partition_dim > 1)
      return std::nullopt;
    PlainValue::Dict entry{{"kind", {std::string(split ? "sharded" : "tied")}},
                           {"partition_dim", split ? PlainValue{signed_of(parameter.partition_dim)} : PlainValue{}}};
    parameters.emplace_back(parameter.name, PlainValue{std::move(entry)});
  }
  auto attention = attention_metadata(stage);
  if (!attention) return std::nullopt;
  return PlainValue::Dict{{std::string(kShardedMetadataKey), {std::move(parameters)}},
                          {std::string(kGqaQkvMetadataKey), {std::move(*attention)}}};
}

StageMetadata read_stage_pt(Files& files, const fs::path& path, std::uint32_t tp,
                            const std::function<std::optional<Dims>(const std::string& name)>& stored_shape) {
  const TorchFile file = read_torch_file(*files.open(path), path);
  return Reader(file, tp, stored_shape).read();
}

}  // namespace reshard
