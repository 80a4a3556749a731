// A model of one's own, laid out over 4 tensor-parallel ranks with the library's types: the metadata that stands beside
// the ranks' files, from which reshard consolidate reads them, and the shapes that a rank has.
#include <reshard/io/open_store.h>
#include <reshard/layouts/rules/metadata_rules.h>
#include <reshard/specs/stages/parallel_layers.h>
#include <reshard/specs/stages/stage_json.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

using namespace reshard;

int main() {
  const std::uint32_t tp = 4, heads = 8, kv_heads = 2, head_dim = 8, copies = 2;
  const std::string mlp = "model.layers.0.mlp", attention = "model.layers.0.self_attn";
  const FusedLinearsSpec gate_up{"gate_up_proj", {"gate_proj", "up_proj"}, false, 0, {128, 128}, tp};
  const GQAQKVColumnParallelLinearSpec qkv{.gqa_qkv_projection_name = "qkv_proj",
                                           .query_projection_name = "q_proj",
                                           .key_projection_name = "k_proj",
                                           .value_projection_name = "v_proj",
                                           .output_projection_name = "o_proj",
                                           .num_attention_heads = heads,
                                           .num_key_value_heads = kv_heads,
                                           .kv_size_multiplier = copies,
                                           .q_output_size_per_partition = heads * head_dim / tp,
                                           .kv_output_size_per_partition = kv_heads * copies * head_dim / tp,
                                           .tp_size = tp};
  StageMetadata stage;
  stage.parameters =
      parallel_parameters({ParallelEmbedding{"model.embed_tokens"}, ParallelEmbedding{"model.embed_positions", true},
                           GQAQKVColumnParallelLinear{attention, qkv}, RowParallelLinear{attention + ".o_proj"},
                           ColumnParallelLinear{mlp + ".gate_up_proj", false, 2}, RowParallelLinear{mlp + ".down_proj"},
                           ReplicatedLayer{"model.norm"}, ColumnParallelLinear{"lm_head"}},
                          tp);
  stage.modules = {{mlp, {gate_up}}, {attention, {qkv}}};

  std::string directory = std::filesystem::temp_directory_path() / "custom-model-XXXXXX";
  if (::mkdtemp(directory.data()) == nullptr) return 1;
  const std::filesystem::path file = std::filesystem::path(directory) / metadata_file_name(0);
  std::ofstream(file) << metadata_text(stage);
  const StageMetadata read = read_metadata(all_files(), file);
  std::filesystem::remove_all(directory);

  const std::map<std::string, Dims> wholes = {{"model.embed_tokens.weight", {256, 64}},
                                              {"model.embed_positions.weight", {32, 64}},
                                              {attention + ".q_proj.weight", {64, 64}},
                                              {attention + ".k_proj.weight", {16, 64}},
                                              {attention + ".v_proj.weight", {16, 64}},
                                              {attention + ".o_proj.weight", {64, 64}},
                                              {mlp + ".gate_proj.weight", {128, 64}},
                                              {mlp + ".up_proj.weight", {128, 64}},
                                              {mlp + ".down_proj.weight", {64, 128}},
                                              {"model.norm.weight", {64}},
                                              {"lm_head.weight", {256, 64}}};
  for (const PartitionRule& rule : partition_rules(read, tp)) {
    std::vector<Dims> originals;  // one, but for what is fused
    for (const PartitionRule::Part& part : rule.parts) originals.push_back(wholes.at(part.logical_name));
    std::printf("%-45s %s\n", rule.stored_name.c_str(), to_string(stored_shape(rule, 3, originals).value()).c_str());
  }
}
