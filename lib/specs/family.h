#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/json_fwd.h"
#include "reshard/specs/model_config.h"
#include "reshard/tensor/shape.h"

namespace reshard {

/// How a module's weight is split, in the words of Hugging Face's base_model_tp_plan where it has one.
enum class TensorParallelPlan {
  kColwise,           // linear, split along its outputs: weight and bias along dim 0
  kRowwise,           // linear, split along its inputs: weight along dim 1, bias whole
  kEmbeddingRowwise,  // embedding, split along the vocabulary: dim 0
  kReplicate,         // every rank has all of it
};

/// A model architecture, as data: lib/specs/families/*.json are compiled in. A "*" in a name stands for the layer's
/// number.
struct Family {
  struct Module {
    std::string name;       // "model.layers.*.self_attn.q_proj"
    std::string parameter;  // "weight" but for buffers
    TensorParallelPlan plan;
    std::vector<std::string> shape;  // of the weight: expressions over config.json's numbers
    std::string bias;                // empty: none; "always"; or the key of config.json that switches it
    bool optional = false;           // a checkpoint may lack it
    bool on_last_stage = false;      // for modules outside the layers
    std::string tied_to;             // the module whose weight this one shares where tie_word_embeddings is set
  };
  struct Attention {
    std::string module;  // "model.layers.*.self_attn"
    std::string query, key, value, output;
    std::string fused;  // the name of the joined projection
  };
  struct Fused {
    std::string module;
    std::string name;
    std::vector<std::string> linears;
  };

  std::string model_type;
  std::string layers;                    // the prefix of a layer's name: "model.layers"
  std::shared_ptr<const Json> defaults;  // an object, for keys that config.json lacks or has as null
  std::vector<Module> modules;           // in state-dict order
  std::optional<Attention> attention;
  std::vector<Fused> fused;
};

/// The built-in family for a model_type.
/// \throws Error kUnsupported, listing those that there are.
const Family& find_family(const ModelConfig& config);

/// The model_types of the built-in families, sorted.
std::vector<std::string> known_model_types();

/// \throws Error kBadInput if `json` is not a family description.
Family parse_family(const Json& json, const std::filesystem::path& path);

/// One parameter of one model: a family's module with its numbers filled in.
struct ModelParameter {
  std::string name;    // as in the Hugging Face checkpoint
  std::string module;  // the name without the last part
  Dims shape;
  TensorParallelPlan plan;
  bool is_bias = false;
  bool optional = false;
  std::optional<std::uint64_t> layer;
  bool on_last_stage = false;
  std::string tied_to;  // the parameter whose bytes this one shares; empty if it has its own
};

/// A family with config.json's numbers: every parameter the checkpoint has, in state-dict order.
struct Model {
  const Family* family = nullptr;  // borrowed: built-in families live as long as the program
  std::uint64_t layers = 0;
  std::uint64_t heads = 0;     // query heads; 0 where the family has no attention
  std::uint64_t kv_heads = 0;  // key/value heads
  std::uint64_t head_dim = 0;
  std::vector<ModelParameter> parameters;
};

/// \throws Error kBadInput, naming config.json and the key, where a number is missing or makes no sense.
Model instantiate(const Family& family, const ModelConfig& config);

/// `pattern` with the layer's number for its "*".
std::string expand_layer(std::string_view pattern, std::uint64_t layer);

}  // namespace reshard
