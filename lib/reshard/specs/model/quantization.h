#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/specs/config/model_config.h"
#include "reshard/specs/family/expression.h"
#include "reshard/specs/model/model.h"
#include "reshard/tensor/values/shape.h"

namespace reshard {

struct QuantizationScheme;

/// How the linears of a model are quantised, as its config.json says: by schemes of one of the methods in
/// lib/reshard/specs/quantizations/*.json, which are compiled in. Such a file has
///
///   quant_method    as config.json's quantization_config has it
///   keys            how values of that are validated: [2, 4, 8], one of these; "group", a size, or -1 or null for one
///                   group; "blocks", two sizes or null; "switch". "weights.x" is x of what one of the config_groups of
///                   compressed-tensors says of weights
///   defaults        values of keys that are absent
///   only_family     the family whose description says how its models are quantised so; no scheme does
///   schemes         those apply whose "when" holds. A linear is quantised by the first whose "marker" the
///                   checkpoint holds beside it. Then it has "parameters": each a name, the shape over `outputs`,
///                   `inputs`, those keys and "define", and which dims belong to the outputs and inputs of the linear,
///                   and how many of them one stored element covers. A "scalar" has one element, in however many dims.
///                   Without "shape" it is the weight itself, or of any shape.
///   … "refused"     in place of all that: why this scheme cannot be partitioned
///   … "stacked_suffix"   what the scale of stacked experts has behind the name of their weight
///   … "note"        what the user is told where "note_when" holds
///
/// (What each method stores was read from transformers' finegrained_fp8, from compressed-tensors' compressors, from
/// AutoGPTQ's, AutoAWQ's and AutoFP8's linears and from ModelOpt's export.)
class Quantization {
 public:
  /// Nothing where the model is not quantised, or in a way that is not known here.
  /// \throws Error kBadInput, naming config.json, for a value that makes no sense.
  static std::optional<Quantization> read(const ModelConfig& config);

  /// Appends what a checkpoint holds for a linear's weight: the weight and its scales, or what stands in its place; the
  /// weight alone where the checkpoint holds nothing else. Scales are split with their weights.
  /// \param has_bias Whether the family says that it has a bias.
  void add_linear(const ModelParameter& weight, bool has_bias, const HoldsName& holds,
                  std::vector<ModelParameter>& parameters);
  /// The same of a weight in which experts are stacked.
  void add_stacked(const ModelParameter& weight, const HoldsName& holds, std::vector<ModelParameter>& parameters);

  /// Names of parameters of a linear, by which one that is quantised is known.
  std::vector<std::string> markers() const;
  /// By which of them the linears added so far are known, or would be.
  const std::string& usual_marker() const { return usual_marker_; }
  /// What the scale of stacked experts has behind the name of their weight; empty: they are not quantised.
  std::string stacked_suffix() const;
  /// To print: how scales are partitioned; may be empty.
  const std::string& note() const { return note_; }
  /// Of the sizes along which linears are split: of how many elements a part has to be a multiple for blocks to stay
  /// whole. Those of linears added so far.
  const std::map<std::uint64_t, std::uint64_t>& pad_units() const { return pad_units_; }

 private:
  /// A parameter of a linear of one size.
  struct Part {
    const char* leaf = nullptr;
    bool is_weight = false;
    bool scalar = false;
    bool optional = false;
    bool any_shape = false;
    Dims shape;
    int out_dim = -1, in_dim = -1;          // that belong to the weight's outputs and inputs
    std::uint64_t per_out = 1, per_in = 1;  // of them in one element
  };
  struct Applied {
    std::shared_ptr<const QuantizationScheme> scheme;
    Expression::Lookup config;  // values of quantization_config; null for those that are not there
    std::map<std::pair<std::uint64_t, std::uint64_t>, std::vector<Part>> parts;  // by the weight's outputs and inputs
  };
  const std::vector<Part>& parts_of(Applied& applied, std::uint64_t out, std::uint64_t in);

  void note_unit(const ModelParameter& parameter);

  std::vector<Applied> schemes_;
  std::string usual_marker_;
  bool stores_weights_ = false;  // a linear that is quantised has a weight, as one that is not
  std::string note_;
  std::map<std::uint64_t, std::uint64_t> pad_units_;
  std::filesystem::path path_;
};

/// Whether a linear that has a tensor of this name is quantised, by one of the methods. "scale" is also what other
/// modules have.
bool is_quantized_tensor(std::string_view name);

/// The name that config.json gives the way its weights are quantised; empty where they are not.
std::string quant_method(const ModelConfig& config);

/// Why the tensors of this model may not be explained, and what to do about it, where it is quantised in a way that
/// Quantization does not know. Nothing where it does, and where the model is not quantised.
std::optional<QuantizationProblem> quantization_problem(const ModelConfig& config);

}  // namespace reshard
