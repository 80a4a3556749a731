#include "support/oracle.h"

#include <algorithm>
#if __has_include(<xtensor/xarray.hpp>)
#include <xtensor/xarray.hpp>
#include <xtensor/xbuilder.hpp>
#include <xtensor/xstrided_view.hpp>
#include <xtensor/xview.hpp>
#else
#include <xtensor/containers/xarray.hpp>
#include <xtensor/generators/xbuilder.hpp>
#include <xtensor/views/xstrided_view.hpp>
#include <xtensor/views/xview.hpp>
#endif

namespace reshard::test {
namespace {

/// A tensor whose elements are known by where they come from: the number of the original and of the element in it.
using Elems = xt::xarray<std::uint64_t>;
constexpr std::uint64_t kOriginalShift = 40;

Elems join(const Elems& a, const Elems& b, std::size_t axis = 0) {
  Elems joined = xt::concatenate(xt::xtuple(a, b), axis);
  return joined;
}

Elems rows(const Elems& elems, std::uint64_t begin, std::uint64_t end) {
  Elems part = xt::strided_view(elems, {xt::range(begin, end), xt::ellipsis()});
  return part;
}

Elems columns(const Elems& elems, std::uint64_t begin, std::uint64_t end) {
  Elems part = xt::view(elems, xt::all(), xt::range(begin, end));
  return part;
}

/// Whether attention is GQAQKVColumnParallelLinear.
bool has_module(const TinyModel& model, const OracleOptions& options) {
  return options.qkv_linear == "on" || model.kv_heads < options.tp || model.kv_heads % options.tp != 0;
}

/// Whether `m` replicas of each key/value head give every rank whole heads.
bool works(const TinyModel& model, std::uint64_t tp, std::uint64_t m) {
  return tp % m == 0 && model.kv_heads * m % tp == 0 && model.heads / model.kv_heads % m == 0;
}

class Oracle {
 public:
  Oracle(const TinyModel& model, const TensorMap& originals, const OracleOptions& options)
      : model_(model), options_(options) {
    for (const auto& [name, tensor] : originals) {
      std::vector<std::size_t> shape(tensor.shape.begin(), tensor.shape.end());
      Elems elems = xt::arange<std::uint64_t>(*num_elems(tensor.shape));
      elems.reshape(shape);
      elems += static_cast<std::uint64_t>(tensors_.size()) << kOriginalShift;
      elems_[name] = std::move(elems);
      tensors_.push_back(&tensor);
    }
    const std::uint64_t stages = options.pp * options.vpp;
    std::vector<std::uint64_t> sizes(stages, model.layers / stages);
    for (std::uint64_t s = 0; s < model.layers % stages; ++s) ++sizes[stages - 1 - s];
    for (std::uint64_t stage = 0; stage < stages; ++stage)
      for (std::uint64_t i = 0; options.cuts.empty() && i < sizes[stage]; ++i) stage_of_layer_.push_back(stage);
    for (std::uint64_t layer = 0; !options.cuts.empty() && layer < model.layers; ++layer)
      stage_of_layer_.push_back(static_cast<std::uint64_t>(
          std::count_if(options.cuts.begin(), options.cuts.end(), [&](std::uint64_t cut) { return cut < layer; })));
  }

  TensorMap rank(std::uint64_t t, std::uint64_t p) {
    t_ = t;
    rank_.clear();
    const bool last = p == options_.pp - 1;
    const std::string embedding = "model.embed_tokens.weight";
    if (p == 0 || (model_.tied && last)) put(embedding, column(embedding));
    for (std::uint64_t layer = 0; layer < model_.layers; ++layer)
      if (stage_of_layer_[layer] % options_.pp == p) put_layer("model.layers." + std::to_string(layer) + ".");
    if (last) {
      put("model.norm.weight", elems_.at("model.norm.weight"));
      put("lm_head.weight", column(model_.tied ? embedding : "lm_head.weight"));
    }
    return rank_;
  }

 private:
  Elems column(const std::string& name) const {
    const Elems& elems = elems_.at(name);
    const std::uint64_t size = elems.shape(0) / options_.tp;
    return rows(elems, t_ * size, (t_ + 1) * size);
  }
  Elems row(const std::string& name) const {
    const Elems& elems = elems_.at(name);
    const std::uint64_t size = elems.shape(1) / options_.tp;
    return columns(elems, t_ * size, (t_ + 1) * size);
  }

  void put_layer(const std::string& prefix) {
    const std::string attention = prefix + "self_attn.";
    const std::string mlp = prefix + "mlp.";
    for (const char* suffix : {".weight", ".bias"}) {
      if (elems_.count(attention + "q_proj" + suffix)) put_attention(attention, suffix);
      const std::string gate = mlp + "gate_proj" + suffix, up = mlp + "up_proj" + suffix;
      if (!elems_.count(gate)) continue;
      if (options_.fuse_mlp)
        put(mlp + "gate_up_proj" + suffix, join(column(gate), column(up)));
      else
        for (const std::string& name : {gate, up}) put(name, column(name));
    }
    put(attention + "o_proj.weight", output_projection(attention + "o_proj.weight"));
    put(mlp + "down_proj.weight", row(mlp + "down_proj.weight"));
    for (const char* whole :
         {"self_attn.o_proj.bias", "self_attn.rotary_emb.inv_freq", "self_attn.q_norm.weight",
          "self_attn.k_norm.weight", "mlp.down_proj.bias", "input_layernorm.weight", "post_attention_layernorm.weight"})
      if (elems_.count(prefix + whole)) put(prefix + whole, elems_.at(prefix + whole));
  }

  bool is_gqa() const { return has_module(model_, options_); }
  std::uint64_t multiplier() const {
    if (options_.kv_size_multiplier != 0) return options_.kv_size_multiplier;
    std::uint64_t m = 1;
    while (!works(model_, options_.tp, m)) ++m;
    return m;
  }

  /// The query heads of the rank, slot after slot.
  std::vector<std::uint64_t> query_heads() const {
    const std::uint64_t m = multiplier();
    const std::uint64_t slots = model_.kv_heads * m / options_.tp;
    const std::uint64_t group = model_.heads / model_.kv_heads;
    std::vector<std::uint64_t> heads;
    for (std::uint64_t s = t_ * slots; s < (t_ + 1) * slots; ++s)
      for (std::uint64_t i = 0; i < group / m; ++i)
        heads.push_back(s % model_.kv_heads * group + s / model_.kv_heads * (group / m) + i);
    return heads;
  }

  Elems query(const std::string& name) const {
    const Elems& elems = elems_.at(name);
    const std::uint64_t d = model_.head_dim;
    const auto heads = query_heads();
    Elems joined = rows(elems, heads[0] * d, heads[0] * d + d);
    for (std::size_t i = 1; i < heads.size(); ++i) joined = join(joined, rows(elems, heads[i] * d, heads[i] * d + d));
    return joined;
  }

  /// The whole weight repeated m times, then cut in T equal parts.
  Elems key_value(const std::string& name) const {
    Elems tiled = elems_.at(name);
    for (std::uint64_t i = 1; i < multiplier(); ++i) tiled = join(tiled, elems_.at(name));
    const std::uint64_t size = tiled.shape(0) / options_.tp;
    return rows(tiled, t_ * size, (t_ + 1) * size);
  }

  Elems output_projection(const std::string& name) const {
    if (!is_gqa()) return row(name);
    const Elems& elems = elems_.at(name);
    const std::uint64_t d = model_.head_dim;
    const auto heads = query_heads();
    Elems joined = columns(elems, heads[0] * d, heads[0] * d + d);
    for (std::size_t i = 1; i < heads.size(); ++i)
      joined = join(joined, columns(elems, heads[i] * d, heads[i] * d + d), 1);
    return joined;
  }

  void put_attention(const std::string& prefix, const std::string& suffix) {
    const std::string q = prefix + "q_proj" + suffix;
    const std::string k = prefix + "k_proj" + suffix;
    const std::string v = prefix + "v_proj" + suffix;
    const std::string joined = prefix + "qkv_proj" + suffix;
    if (is_gqa() && options_.fuse_qkv) {
      put(joined + "_qkv", join(join(query(q), key_value(k)), key_value(v)));
    } else if (is_gqa()) {
      put(joined + "_q", query(q));
      put(joined + "_k", key_value(k));
      put(joined + "_v", key_value(v));
    } else if (options_.fuse_qkv && model_.heads == model_.kv_heads) {
      put(joined, join(join(column(q), column(k)), column(v)));
    } else {
      for (const std::string& name : {q, k, v}) put(name, column(name));
    }
  }

  /// Gathers the elements' bits.
  void put(const std::string& name, const Elems& elems) {
    const DType dtype = tensors_[elems.flat(0) >> kOriginalShift]->dtype;
    TensorData tensor{dtype, {}, {}};
    for (const auto size : elems.shape()) tensor.shape.push_back(size);
    tensor.bytes.resize(num_bytes(dtype, tensor.shape).value());
    const std::uint64_t width = bits(dtype);
    std::uint64_t at = 0;
    for (const std::uint64_t elem : elems) {
      const std::string& from = tensors_[elem >> kOriginalShift]->bytes;
      const std::uint64_t begin = (elem & ((std::uint64_t{1} << kOriginalShift) - 1)) * width;
      for (std::uint64_t bit = begin; bit < begin + width; ++bit, ++at)
        if (static_cast<unsigned char>(from[bit / 8]) >> (bit % 8) & 1)
          tensor.bytes[at / 8] = static_cast<char>(static_cast<unsigned char>(tensor.bytes[at / 8]) | 1u << (at % 8));
    }
    rank_[name] = std::move(tensor);
  }

  const TinyModel& model_;
  const OracleOptions& options_;
  std::vector<const TensorData*> tensors_;
  std::map<std::string, Elems> elems_;
  std::vector<std::uint64_t> stage_of_layer_;
  std::uint64_t t_ = 0;
  TensorMap rank_;
};

std::string two_digits(std::uint64_t number) {
  const std::string text = std::to_string(number);
  return text.size() < 2 ? "0" + text : text;
}

}  // namespace

std::map<std::string, TensorMap> expected_ranks(const TinyModel& model, const TensorMap& originals,
                                                const OracleOptions& options) {
  Oracle oracle(model, originals, options);
  std::map<std::string, TensorMap> ranks;
  for (std::uint64_t p = 0; p < options.pp; ++p)
    for (std::uint64_t t = 0; t < options.tp; ++t)
      ranks["tp_rank_" + two_digits(t) + "_pp_rank_" + two_digits(p)] = oracle.rank(t, p);
  return ranks;
}

bool is_legal(const TinyModel& model, const OracleOptions& options) {
  const std::uint64_t tp = options.tp;
  const std::uint64_t stages = options.pp * options.vpp;
  if (stages > model.layers) return false;
  if (!options.cuts.empty()) {
    if (options.cuts.size() + 1 != stages || options.cuts.back() + 1 >= model.layers) return false;
    for (std::size_t i = 1; i < options.cuts.size(); ++i)
      if (options.cuts[i] <= options.cuts[i - 1]) return false;
  }
  if (model.vocab % tp != 0 || model.intermediate % tp != 0 || model.heads * model.head_dim % tp != 0) return false;
  if (model.heads % model.kv_heads != 0) return false;
  if (!has_module(model, options)) return true;
  if (options.kv_size_multiplier) return works(model, tp, options.kv_size_multiplier);
  for (std::uint64_t m = 1; m <= tp; ++m)
    if (works(model, tp, m)) return true;
  return false;
}

void ask_for_kept_form(const TinyModel& model, const OracleOptions& first, OracleOptions& second) {
  second.fuse_qkv = second.fuse_qkv || first.fuse_qkv;
  if (second.kv_size_multiplier != 0) return;
  OracleOptions kept = second;
  kept.kv_size_multiplier = first.kv_size_multiplier;
  if (is_legal(model, kept)) second = kept;
}

}  // namespace reshard::test
