// A model of one's own, laid out over 4 tensor-parallel ranks with the library's types: the metadata that stands beside
// the ranks' files, from which reshard consolidate reads them, and the shapes that a rank has.
#include <reshard/layouts/cut.h>
#include <reshard/specs/metadata.h>

#include <cstdio>
#include <fstream>
#include <map>

using namespace reshard;

int main() {
  const std::uint32_t tp = 4, heads = 8, kv_heads = 2, head_dim = 8, copies = 2;
  const std::string layer = "model.layers.0.", mlp = layer + "mlp.", attention = layer + "self_attn.";
  StageMetadata stage;
  stage.parameters = {
      // Name, whether it is split, along which dim, with which stride, over how many ranks.
      {"model.embed_tokens.weight", true, 0, 1, tp},      // ParallelEmbedding, over the vocabulary
      {"model.embed_positions.weight", true, 1, 1, tp},   // ParallelEmbedding, across the embedding
      {attention + "qkv_proj.weight_q", true, 0, 1, tp},  // GQAQKVColumnParallelLinear
      {attention + "qkv_proj.weight_k", true, 0, 1, tp},
      {attention + "qkv_proj.weight_v", true, 0, 1, tp},
      {attention + "o_proj.weight", true, 1, 1, tp},  // RowParallelLinear
      {mlp + "gate_up_proj.weight", true, 0, 2, tp},  // ColumnParallelLinear of two matrices: the stride
      {mlp + "down_proj.weight", true, 1, 1, tp},     // RowParallelLinear
      {"model.norm.weight", false, 0, 1, 1},          // every rank has all of it
      {"lm_head.weight", true, 0, 1, tp}};            // ColumnParallelLinear
  stage.modules = {
      {layer + "mlp", {FusedLinearsSpec{"gate_up_proj", {"gate_proj", "up_proj"}, false, 0, {128, 128}, tp}}},
      {layer + "self_attn",
       {GQAQKVColumnParallelLinearSpec{"qkv_proj", "q_proj", "k_proj", "v_proj", "o_proj", heads, kv_heads, copies,
                                       heads * head_dim / tp, kv_heads * copies * head_dim / tp, false, false, tp}}}};

  std::ofstream(metadata_file_name(0)) << metadata_text(stage);
  const StageMetadata read = read_metadata(metadata_file_name(0));

  const std::map<std::string, Dims> wholes = {{"model.embed_tokens.weight", {256, 64}},
                                              {"model.embed_positions.weight", {32, 64}},
                                              {attention + "q_proj.weight", {64, 64}},
                                              {attention + "k_proj.weight", {16, 64}},
                                              {attention + "v_proj.weight", {16, 64}},
                                              {attention + "o_proj.weight", {64, 64}},
                                              {mlp + "gate_proj.weight", {128, 64}},
                                              {mlp + "up_proj.weight", {128, 64}},
                                              {mlp + "down_proj.weight", {64, 128}},
                                              {"model.norm.weight", {64}},
                                              {"lm_head.weight", {256, 64}}};
  for (const CutRule& rule : cut_rules(read)) {
    const Cut cut = rule.for_rank(3, tp);
    std::vector<Dims> originals;  // one, but for what is joined
    for (const Cut::Part& part : cut.parts) originals.push_back(wholes.at(part.logical_name));
    std::printf("%-45s %s\n", rule.stored_name.c_str(), to_string(stored_shape(cut, originals).value()).c_str());
  }
}
