#include "reshard/specs/stages/stage_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/numbered_name.h"
#include "reshard/base/strings.h"
#include "reshard/io/text_file.h"
#include "reshard/specs/parallel/mesh.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr NumberedName kStageJsonName("mp_metadata_pp_rank_{pp}.json", kMaxParallelDegree - 1);
constexpr NumberedName kStagePtName("mp_metadata_pp_rank_{pp}.pt", kMaxParallelDegree - 1);

constexpr std::uint64_t kMaxDims = 8;
constexpr std::uint64_t kMaxPackedChunks = 1 << 16;
constexpr std::uint64_t kMaxPackedSize = std::uint32_t(-1);

std::uint32_t bounded_at(const JsonObject& object, const std::string& key, std::uint64_t min, std::uint64_t max) {
  const std::uint64_t value = object.unsigned_at(key);
  if (value < min || value > max) object.fail(key, fmt::format("a number from {} to {}", min, max));
  return static_cast<std::uint32_t>(value);
}

std::uint32_t tp_size_at(const JsonObject& object) {
  return bounded_at(object, "tp_size", 1, kMaxParallelDegree);
}

/// Returns an empty string if there are no adapters. Old files lack the key.
std::string peft_type_at(const JsonObject& object) {
  if (!object.has("peft_type") || object.at("peft_type").is_null()) return {};
  if (object.at("peft_type") != kLoraPeftType)
    throw Error(ErrorKind::kUnsupported,
                "describes adapters (peft_type " + brief(object.at("peft_type")) + "), but only \"lora\" is supported")
        .in(object.file().path);
  return kLoraPeftType;
}

Json peft_type_json(const std::string& peft_type) {
  return peft_type.empty() ? Json(nullptr) : Json(peft_type);
}

/// Reads a key that reshard adds: matrices in a parameter that are split separately.
std::vector<PackedPart> read_packed(const JsonObject& object, std::uint32_t tp, const fs::path& path) {
  std::vector<PackedPart> packed;
  for (const Json& item : object.array_at("packed")) {
    const JsonObject part = object.child(item, "packed", "packed");
    packed.push_back({bounded_at(part, "size", 1, kMaxPackedSize), part.bool_at("replicated")});
    if (!packed.back().replicated && packed.back().size % tp != 0)
      throw Error(ErrorKind::kBadInput,
                  fmt::format("a packed matrix has a size of {}, which {} ranks do not divide", packed.back().size, tp))
          .in(path);
  }
  if (packed.empty() || packed.size() > kMaxParallelDegree) object.fail("packed", "from 1 to 4096 matrices");
  // They are split into chunks of one size.
  std::uint64_t chunk = 0;
  std::uint64_t sum = 0;
  for (const PackedPart& part : packed) {
    chunk = std::gcd(chunk, part.replicated ? part.size : part.size / tp);
    sum += part.size;
  }
  if (sum / chunk > kMaxPackedChunks) object.fail("packed", "matrices that have a larger size in common");
  return packed;
}

Json packed_json(const std::vector<PackedPart>& packed) {
  Json json = Json::array();
  for (const PackedPart& part : packed) json.push_back({{"size", part.size}, {"replicated", part.replicated}});
  return json;
}

ParallelParameter read_parameter(const std::string& name, const Json& json, const fs::path& path) {
  const JsonObject object(json, path, "parameters: " + printable(name));
  ParallelParameter parameter;
  parameter.name = validate_name(name, path);
  parameter.tensor_model_parallel = object.bool_at("tensor_model_parallel");
  if (object.has("expert_model_parallel") && object.bool_at("expert_model_parallel") && !object.has("expert_rank") &&
      !object.has("expert_partitions"))
    throw Error(ErrorKind::kUnsupported,
                "is distributed over expert-parallel ranks, but the distribution is not recorded")
        .in(path)
        .tensor(name)
        .hint("save the checkpoint without expert parallelism (one expert-parallel rank)");
  if (object.has("expert_rank")) parameter.expert_rank = bounded_at(object, "expert_rank", 0, kMaxParallelDegree - 1);
  if (object.has("expert_partitions"))
    parameter.expert_partitions = bounded_at(object, "expert_partitions", 1, kMaxParallelDegree);
  if (parameter.expert_rank && parameter.expert_partitions != 1)
    object.fail("expert_partitions", "no \"expert_rank\" next to it: a single expert is on one rank");
  if (!parameter.tensor_model_parallel) return parameter;
  parameter.partition_dim = bounded_at(object, "partition_dim", 0, kMaxDims - 1);
  parameter.partition_stride = bounded_at(object, "partition_stride", 1, kMaxParallelDegree);
  parameter.num_partitions = bounded_at(object, "num_partitions", 1, kMaxParallelDegree);
  if (object.has("packed")) parameter.packed = read_packed(object, parameter.num_partitions, path);
  const std::size_t matrices = parameter.packed.empty() ? parameter.partition_stride : parameter.packed.size();
  if (parameter.partition_dim == 0 && matrices % parameter.expert_partitions != 0)
    object.fail("expert_partitions", fmt::format("a number that divides the {} matrices of dim 0", matrices));
  return parameter;
}

std::uint32_t read_fuse_axis(const JsonObject& object) {
  const Json& axis = object.at("fuse_axis");
  if (axis == "column") return 0;
  if (axis == "row") return 1;
  return bounded_at(object, "fuse_axis", 0, 1);
}

FusedLinearsSpec read_fused(const JsonObject& object, const fs::path& path) {
  FusedLinearsSpec spec;
  spec.fused_linear_name = validate_name(object.string_at("fused_linear_name"), path);
  spec.bias = object.bool_at("bias");
  spec.fuse_axis = read_fuse_axis(object);
  spec.tp_size = tp_size_at(object);
  spec.linear_names = object.strings_at("linear_names");
  for (const std::string& name : spec.linear_names) validate_name(name, path);
  spec.original_dims = object.sizes_at("original_dims", "an array of sizes");
  if (spec.linear_names.empty() || spec.linear_names.size() != spec.original_dims.size())
    throw Error(ErrorKind::kBadInput,
                fmt::format("the fused linear {} has {} linear_names and {} original_dims",
                            printable(spec.fused_linear_name), spec.linear_names.size(), spec.original_dims.size()))
        .in(path);
  for (const std::uint64_t dim : spec.original_dims)
    if (dim % spec.tp_size != 0)
      throw Error(ErrorKind::kBadInput,
                  fmt::format("the fused linear {} has a size of {}, which {} ranks do not divide",
                              printable(spec.fused_linear_name), dim, spec.tp_size))
          .in(path);
  if (spec.bias && spec.fuse_axis == 1)
    throw Error(ErrorKind::kUnsupported,
                "the linear " + printable(spec.fused_linear_name) + " is fused along rows and has a bias")
        .in(path);
  spec.peft_type = peft_type_at(object);
  return spec;
}

GQAQKVColumnParallelLinearSpec read_gqa(const JsonObject& object, const fs::path& path) {
  constexpr std::uint64_t kMaxRows = std::uint64_t{1} << 40;
  GQAQKVColumnParallelLinearSpec spec;
  spec.gqa_qkv_projection_name = validate_name(object.string_at("gqa_qkv_projection_name"), path);
  spec.query_projection_name = validate_name(object.string_at("query_projection_name"), path);
  spec.key_projection_name = validate_name(object.string_at("key_projection_name"), path);
  spec.value_projection_name = validate_name(object.string_at("value_projection_name"), path);
  spec.output_projection_name = validate_name(object.string_at("output_projection_name"), path);
  spec.num_attention_heads = bounded_at(object, "num_attention_heads", 1, kMaxHeads);
  spec.num_key_value_heads = bounded_at(object, "num_key_value_heads", 1, kMaxHeads);
  spec.kv_size_multiplier = bounded_at(object, "kv_size_multiplier", 1, kMaxParallelDegree);
  spec.q_output_size_per_partition = object.unsigned_at("q_output_size_per_partition");
  spec.kv_output_size_per_partition = object.unsigned_at("kv_output_size_per_partition");
  spec.fuse_qkv = object.bool_at("fuse_qkv");
  spec.bias = object.bool_at("bias");
  spec.tp_size = tp_size_at(object);
  const std::string problem =
      multiplier_problem(spec.num_attention_heads, spec.num_key_value_heads, spec.tp_size, spec.kv_size_multiplier);
  if (!problem.empty())
    throw Error(ErrorKind::kBadInput, fmt::format("the attention spec of {} is invalid: {}",
                                                  printable(spec.gqa_qkv_projection_name), problem))
        .in(path);
  const std::uint64_t query_rows = spec.q_output_size_per_partition;
  const std::uint64_t heads_per_rank = spec.query_heads(0).size();
  if (query_rows == 0 || query_rows % heads_per_rank != 0 || query_rows > kMaxRows ||
      spec.kv_output_size_per_partition != query_rows / heads_per_rank * spec.slots_per_rank())
    throw Error(ErrorKind::kBadInput,
                fmt::format("the attention spec of {} contradicts itself: a rank has {} query heads in {} rows and {} "
                            "key/value heads in {} rows",
                            printable(spec.gqa_qkv_projection_name), heads_per_rank, query_rows, spec.slots_per_rank(),
                            spec.kv_output_size_per_partition))
        .in(path);
  spec.peft_type = peft_type_at(object);
  return spec;
}

ModuleSpecs read_module(const Json& json, const fs::path& path) {
  const JsonObject object(json, path, "model_weight_transformation_specs");
  ModuleSpecs module;
  module.module_fully_qualified_name = validate_name(object.string_at("module_fully_qualified_name"), path);
  const std::string where = printable(module.module_fully_qualified_name);
  for (const Json& pair : object.array_at("specs")) {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string())
      throw Error(ErrorKind::kBadInput, where + ": a spec is " + brief(pair) + ", expected [kind, {…}]").in(path);
    const std::string kind = pair[0].get<std::string>();
    const JsonObject spec(pair[1], path, where + ": " + printable(kind));
    if (kind == "FusedLinearsSpec")
      module.specs.emplace_back(read_fused(spec, path));
    else if (kind == "GQAQKVColumnParallelLinearSpec")
      module.specs.emplace_back(read_gqa(spec, path));
    else
      throw Error(ErrorKind::kUnsupported, where + ": the transformation spec " + printable(kind) + " is not known")
          .in(path);
  }
  return module;
}

Json to_json(const FusedLinearsSpec& spec) {
  Json json;
  json["fused_linear_name"] = spec.fused_linear_name;
  json["linear_names"] = spec.linear_names;
  json["bias"] = spec.bias;
  json["fuse_axis"] = spec.fuse_axis;
  json["original_dims"] = spec.original_dims;
  json["tp_size"] = spec.tp_size;
  json["peft_type"] = peft_type_json(spec.peft_type);
  return Json::array({"FusedLinearsSpec", json});
}

Json to_json(const GQAQKVColumnParallelLinearSpec& spec) {
  Json json;
  json["gqa_qkv_projection_name"] = spec.gqa_qkv_projection_name;
  json["query_projection_name"] = spec.query_projection_name;
  json["key_projection_name"] = spec.key_projection_name;
  json["value_projection_name"] = spec.value_projection_name;
  json["output_projection_name"] = spec.output_projection_name;
  json["num_attention_heads"] = spec.num_attention_heads;
  json["num_key_value_heads"] = spec.num_key_value_heads;
  json["kv_size_multiplier"] = spec.kv_size_multiplier;
  json["q_output_size_per_partition"] = spec.q_output_size_per_partition;
  json["kv_output_size_per_partition"] = spec.kv_output_size_per_partition;
  json["fuse_qkv"] = spec.fuse_qkv;
  json["bias"] = spec.bias;
  json["tp_size"] = spec.tp_size;
  json["peft_type"] = peft_type_json(spec.peft_type);
  return Json::array({"GQAQKVColumnParallelLinearSpec", json});
}

}  // namespace

const std::string& validate_name(const std::string& name, const fs::path& path) {
  if (name.empty() || has_control(name))
    throw Error(ErrorKind::kBadInput, "contains the name \"" + printable(name) + "\", which no tensor can have")
        .in(path);
  return name;
}

std::string metadata_file_name(std::uint32_t pp_rank) {
  return kStageJsonName.print({{"pp", pp_rank}});
}

std::optional<std::uint32_t> metadata_pp_rank(std::string_view file_name) {
  auto numbers = kStageJsonName.parse(file_name);
  if (!numbers) numbers = kStagePtName.parse(file_name);
  return numbers ? std::optional(static_cast<std::uint32_t>(numbers->at("pp"))) : std::nullopt;
}

StageMetadata read_metadata(Files& files, const fs::path& path) {
  const Json json = read_json_file(files, path, kMaxMetadataBytes);
  const JsonObject object(json, path);
  StageMetadata metadata;
  for (const auto& [name, value] : object.object_at("parameters").items())
    metadata.parameters.push_back(read_parameter(name, value, path));
  for (const Json& module : object.array_at("model_weight_transformation_specs"))
    metadata.modules.push_back(read_module(module, path));
  return metadata;
}

std::string metadata_text(const StageMetadata& metadata) {
  // One line per parameter and per module, in state-dict order, which a sorted document would lose.
  std::string text = "{\n  \"parameters\": {";
  const char* separator = "\n";
  for (const ParallelParameter& parameter : metadata.parameters) {
    text += separator;
    text += fmt::format("    {}: {{\"tensor_model_parallel\": {}", json_string(parameter.name),
                        parameter.tensor_model_parallel);
    if (parameter.tensor_model_parallel)
      text += fmt::format(", \"partition_dim\": {}, \"partition_stride\": {}, \"num_partitions\": {}",
                          parameter.partition_dim, parameter.partition_stride, parameter.num_partitions);
    if (parameter.expert_model_parallel()) text += ", \"expert_model_parallel\": true";
    if (parameter.expert_rank) text += fmt::format(", \"expert_rank\": {}", *parameter.expert_rank);
    if (parameter.expert_partitions > 1)
      text += fmt::format(", \"expert_partitions\": {}", parameter.expert_partitions);
    if (!parameter.packed.empty()) text += ", \"packed\": " + packed_json(parameter.packed).dump();
    text += "}";
    separator = ",\n";
  }
  text += "\n  },\n  \"model_weight_transformation_specs\": [";
  separator = "\n";
  for (const ModuleSpecs& module : metadata.modules) {
    Json specs = Json::array();
    for (const TransformationSpec& spec : module.specs)
      specs.push_back(std::visit([](const auto& s) { return to_json(s); }, spec));
    text += separator;
    text += fmt::format("    {{\"module_fully_qualified_name\": {}, \"specs\": {}}}",
                        json_string(module.module_fully_qualified_name), specs.dump());
    separator = ",\n";
  }
  return text + "\n  ]\n}\n";
}

}  // namespace reshard
