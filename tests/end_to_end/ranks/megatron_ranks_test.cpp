// Megatron-LM's rank files of random llamas, cut as next to each line by hand.

#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/pickles.h"
#include "support/random.h"
#include "support/requests.h"
#include "support/saved_file.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

TensorData rows_of(const TensorData& tensor, std::uint64_t begin, std::uint64_t count) {
  const std::uint64_t each = tensor.bytes.size() / tensor.shape[0];
  TensorData part{tensor.dtype, tensor.shape, tensor.bytes.substr(begin * each, count * each)};
  part.shape[0] = count;
  return part;
}

TensorData columns_of(const TensorData& tensor, std::uint64_t begin, std::uint64_t count) {
  const std::uint64_t elem = tensor.bytes.size() / (tensor.shape[0] * tensor.shape[1]);
  TensorData part{tensor.dtype, {tensor.shape[0], count}, {}};
  for (std::uint64_t row = 0; row < tensor.shape[0]; ++row)
    part.bytes += tensor.bytes.substr((row * tensor.shape[1] + begin) * elem, count * elem);
  return part;
}

TensorData below(TensorData above, const TensorData& other) {
  above.bytes += other.bytes;
  above.shape[0] += other.shape[0];
  return above;
}

/// A run's settings that its files do not state.
struct MegatronRun {
  TinyModel model;
  std::uint64_t tp = 1;
  std::vector<std::uint64_t> stages;  // number of layers of each
  std::uint64_t padded = 0;           // rows of the vocabulary
  bool is_local = false;              // modules of Megatron-Core itself
};

class MegatronWriter {
 public:
  MegatronWriter(const MegatronRun& run, const TensorMap& tensors, Random& random) : run_(run), tensors_(tensors) {
    filler_ = random_tensor(random, DType::kBF16, {run.padded - run.model.vocab, run.model.hidden});
  }

  void write(const fs::path& directory) {
    std::uint64_t first = 0;
    for (std::uint64_t p = 0; p < run_.stages.size(); ++p) {
      for (tp_rank_ = 0; tp_rank_ < run_.tp; ++tp_rank_) {
        items_.clear();
        SavedFile file;
        file_ = &file;
        const bool is_last = p + 1 == run_.stages.size();
        if (p == 0) add("embedding.word_embeddings.weight", vocabulary("model.embed_tokens.weight"));
        for (std::uint64_t layer = 0; layer < run_.stages[p]; ++layer) add_layer(layer, first + layer);
        if (is_last) add("decoder.final_layernorm.weight", tensors_.at("model.norm.weight"));
        if (is_last && !run_.model.tied) add("output_layer.weight", vocabulary("lm_head.weight"));
        if (is_last && run_.model.tied && p > 0) add("output_layer.weight", vocabulary("model.embed_tokens.weight"));
        const std::string stage = run_.stages.size() > 1 ? "_00" + std::to_string(p) : "";
        file.save(directory / ("mp_rank_0" + std::to_string(tp_rank_) + stage) / "model_optim_rng.pt",
                  pickles::dict({{"iteration", pickles::number(5)}, {"model", pickles::dict(items_)}}));
      }
      first += run_.stages[p];
    }
  }

 private:
  void add(const std::string& name, const TensorData& tensor) { items_.emplace_back(name, file_->tensor(tensor)); }

  TensorData own_rows(const TensorData& tensor) const {
    const std::uint64_t each = tensor.shape[0] / run_.tp;
    return rows_of(tensor, tp_rank_ * each, each);
  }
  TensorData own_columns(const TensorData& tensor) const {
    const std::uint64_t each = tensor.shape[1] / run_.tp;
    return columns_of(tensor, tp_rank_ * each, each);
  }
  TensorData vocabulary(const std::string& name) const { return own_rows(below(tensors_.at(name), filler_)); }

  /// For each key head, its query heads, itself and the value head.
  TensorData grouped(const std::string& attention, const std::string& end) const {
    const std::uint64_t dim = run_.model.head_dim, each = run_.model.heads / run_.model.kv_heads * dim;
    TensorData all = rows_of(tensors_.at(attention + "q_proj" + end), 0, 0);
    for (std::uint64_t group = 0; group < run_.model.kv_heads; ++group) {
      all = below(all, rows_of(tensors_.at(attention + "q_proj" + end), group * each, each));
      for (const char* linear : {"k_proj", "v_proj"})
        all = below(all, rows_of(tensors_.at(attention + linear + end), group * dim, dim));
    }
    return all;
  }

  void add_layer(std::uint64_t own, std::uint64_t layer) {
    const std::string to = "decoder.layers." + std::to_string(own) + ".";
    const std::string from = "model.layers." + std::to_string(layer) + ".";
    const bool local = run_.is_local;
    add(to + (local ? "input_layernorm.weight" : "self_attention.linear_qkv.layer_norm_weight"),
        tensors_.at(from + "input_layernorm.weight"));
    add(to + (local ? "pre_mlp_layernorm.weight" : "mlp.linear_fc1.layer_norm_weight"),
        tensors_.at(from + "post_attention_layernorm.weight"));
    for (const std::string end : {".weight", ".bias"}) {
      const bool is_bias = end == ".bias";
      if (!is_bias || run_.model.attention_bias) {
        const TensorData& output = tensors_.at(from + "self_attn.o_proj" + end);
        add(to + "self_attention.linear_qkv" + end, own_rows(grouped(from + "self_attn.", end)));
        add(to + "self_attention.linear_proj" + end, is_bias ? output : own_columns(output));
      }
      if (!is_bias || run_.model.mlp_bias) {
        const TensorData& down = tensors_.at(from + "mlp.down_proj" + end);
        add(to + "mlp.linear_fc1" + end, below(own_rows(tensors_.at(from + "mlp.gate_proj" + end)),
                                               own_rows(tensors_.at(from + "mlp.up_proj" + end))));
        add(to + "mlp.linear_fc2" + end, is_bias ? down : own_columns(down));
      }
    }
  }

  const MegatronRun& run_;
  const TensorMap& tensors_;
  TensorData filler_;
  std::uint64_t tp_rank_ = 0;
  SavedFile* file_ = nullptr;
  std::vector<std::pair<std::string, std::string>> items_;
};

TEST_CASE("Megatron's rank files of random llamas are consolidated byte for byte") {
  for (const std::uint64_t seed : seeds(60)) {
    CAPTURE(seed);
    Random random(seed);
    MegatronRun run;
    run.tp = pick(random, 1, 3);
    run.model.kv_heads = run.tp * pick(random, 1, 2);
    run.model.heads = run.model.kv_heads * pick(random, 1, 3);
    run.model.intermediate = run.tp * pick(random, 1, 5);
    run.model.vocab = pick(random, 5, 40);
    run.model.tied = random() % 3 == 0;
    run.model.attention_bias = random() % 2 == 0;
    run.model.mlp_bias = random() % 2 == 0;
    run.stages.resize(pick(random, 1, 3));
    run.model.layers = 0;
    for (std::uint64_t& layers : run.stages) run.model.layers += layers = pick(random, 1, 3);
    const std::uint64_t multiple = run.tp * pick(random, 1, 9);
    run.padded = (run.model.vocab + multiple - 1) / multiple * multiple;
    run.is_local = random() % 2 == 0;
    const TensorMap tensors = random_tensors(run.model, random);
    const TempDir temp;
    MegatronWriter(run, tensors, random).write(temp / "ranks");
    write_file(temp / "config/config.json", run.model.config().dump());
    CHECK((consolidated(temp / "ranks", temp / "out", {.config = temp / "config"}) == tensors));
  }
}

}  // namespace
}  // namespace reshard::test
