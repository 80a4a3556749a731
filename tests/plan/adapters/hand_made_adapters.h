#pragma once

#include <array>
#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/errors.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/temp_dir.h"
#include "support/torch_files.h"

namespace reshard::test {

inline const std::string kLayer = "base_model.model.model.layers.0.";

inline nlohmann::json whole() {
  return {{"tensor_model_parallel", false}};
}
inline nlohmann::json cut(std::uint32_t dim, std::uint32_t stride = 1) {
  return {{"tensor_model_parallel", true}, {"partition_dim", dim}, {"partition_stride", stride}, {"num_partitions", 2}};
}
inline nlohmann::json fused_spec(const nlohmann::json& peft_type = "lora", std::uint32_t axis = 0) {
  return {"FusedLinearsSpec",
          {{"fused_linear_name", "gate_up_proj"},
           {"linear_names", {"gate_proj", "up_proj"}},
           {"bias", false},
           {"fuse_axis", axis},
           {"original_dims", {4, 8}},
           {"tp_size", 2},
           {"peft_type", peft_type}}};
}
inline nlohmann::json gqa_spec(const nlohmann::json& peft_type = nullptr,
                               bool fuse_qkv = false) {  // 4 query heads on 1 key/value head, of 2
  return {"GQAQKVColumnParallelLinearSpec",
          {{"gqa_qkv_projection_name", "qkv_proj"},
           {"query_projection_name", "q_proj"},
           {"key_projection_name", "k_proj"},
           {"value_projection_name", "v_proj"},
           {"output_projection_name", "o_proj"},
           {"num_attention_heads", 8},
           {"num_key_value_heads", 2},
           {"kv_size_multiplier", 2},
           {"q_output_size_per_partition", 8},
           {"kv_output_size_per_partition", 4},
           {"fuse_qkv", fuse_qkv},
           {"bias", false},
           {"tp_size", 2},
           {"peft_type", peft_type}}};
}

/// A checkpoint of adapters on two ranks, with metadata as one writes it down.
struct HandMade {
  nlohmann::json parameters = nlohmann::json::object();
  nlohmann::json modules = nlohmann::json::array();

  void add_module(const std::string& name, const nlohmann::json& spec) {
    modules.push_back({{"module_fully_qualified_name", kLayer + name}, {"specs", nlohmann::json::array({spec})}});
  }
  /// The base layers that the specs of `mlp` and `self_attn` speak of.
  void add_base() {
    parameters[kLayer + "mlp.gate_up_proj.base_layer.weight"] = cut(0, 2);
    for (const char* letter : {"q", "k", "v"}) parameters[kLayer + "self_attn.qkv_proj.weight_" + letter] = cut(0);
    parameters[kLayer + "self_attn.o_proj.base_layer.weight"] = cut(1);
  }
  void write(const std::filesystem::path& checkpoint, const std::string& adapter,
             const std::array<TensorMap, 2>& ranks) const {
    const std::filesystem::path shards = checkpoint / ("adapter_" + adapter) / "adapter_shards";
    for (int rank : {0, 1})
      write_torch(shards / "model" / ("dp_rank_00_tp_rank_0" + std::to_string(rank) + "_pp_rank_00.pt"), ranks[rank]);
    write_file(shards / "mp_metadata_pp_rank_0.json",
               nlohmann::json{{"parameters", parameters}, {"model_weight_transformation_specs", modules}}.dump());
    write_file(shards / "../adapter_config.json", R"({"peft_type": "LORA", "r": 1})");
  }
};

/// Bytes `values`, as U8.
inline TensorData bytes(const Dims& shape, const std::string& values) {
  return {DType::kU8, shape, values};
}

inline ConsolidateRequest request_of(const std::filesystem::path& checkpoint,
                                     const std::filesystem::path& output = {}) {
  ConsolidateRequest request;
  request.source.path = checkpoint;
  if (!output.empty()) request.output_directory = output;
  return request;
}

inline TensorMap consolidated(const TempDir& temp, const std::filesystem::path& adapter = {}) {
  consolidate(request_of(temp / "in", temp / "out"));
  return read_tensors(temp / "out" / adapter / "adapter_model.safetensors");
}

inline Error planning_error(const TempDir& temp, const ConsolidateRequest& request) {
  const auto before = snapshot(temp.path());
  const Error error = error_of([&] { plan_consolidate(request); });
  CHECK((snapshot(temp.path()) == before));
  return error;
}
inline Error planning_error(const TempDir& temp) {
  return planning_error(temp, request_of(temp / "in", temp / "out"));
}

}  // namespace reshard::test
