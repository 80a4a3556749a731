#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reshard/specs/expression.h"
#include "reshard/specs/model_config.h"
#include "reshard/tensor/shape.h"

namespace reshard {

struct ModelParameter;

struct QuantizationForm;

/// How the linears of a model are quantised, as its config.json says: a form of one of the methods in
/// lib/reshard/specs/quantizations/*.json, which are compiled in. Such a file has
///
///   quant_method    as config.json's quantization_config has it
///   keys            what values of that are held to: [2, 4, 8], one of these; "group", a size, or -1 or null for one
///                   group; "blocks", two sizes or null; "switch". "weights.x" is x of what the config_groups of
///                   compressed-tensors say of weights
///   forms           the first whose "when" holds counts. A linear is quantised where the checkpoint holds its "marker".
///                   Then it has "parameters": each a name, the shape over `outputs`, `inputs`, those keys and "define", and to
///                   which dims the outputs and inputs of the weight belong, with how many of them make up one element
///                   there. One without "shape" is the weight itself, or of any shape.
///
/// (What each method stores was read from transformers' finegrained_fp8, from compressed-tensors' compressors, from
/// AutoGPTQ's and AutoAWQ's linears and from ModelOpt's export.)
class Quantization {
 public:
  /// Nothing where the model is not quantised, or in a way that is not known here.
  /// \throws Error kBadInput, naming config.json, for a value that makes no sense.
  static std::optional<Quantization> read(const ModelConfig& config);

  /// Appends what a checkpoint holds for a linear's weight: the weight and its scales, or what stands in its place; the
  /// weight alone where the checkpoint holds nothing else. Scales are split with their weights.
  void add_linear(const ModelParameter& weight, const std::function<bool(const std::string& name)>& holds,
                  std::vector<ModelParameter>& parameters);

 private:
  /// A parameter of a linear of one size.
  struct Part {
    const char* leaf = nullptr;
    bool is_weight = false;
    bool optional = false;
    bool any_shape = false;
    Dims shape;
    int out_dim = -1, in_dim = -1;          // that belong to the weight's outputs and inputs
    std::uint64_t per_out = 1, per_in = 1;  // of them in one element
  };
  const std::vector<Part>& parts_of(std::uint64_t out, std::uint64_t in);

  std::shared_ptr<const QuantizationForm> form_;
  Expression::Lookup config_;  // values of quantization_config; null for those that are not there
  std::filesystem::path path_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::vector<Part>> parts_;  // by the weight's outputs and inputs
};

/// Why the tensors of a model that is quantised by `method` are not explained, a sentence, and what to do about it.
struct QuantizationProblem {
  std::string what;
  std::string hint;
};
/// Of a method that Quantization or a family does not know; nothing for one that is known, and for an empty name.
std::optional<QuantizationProblem> quantization_problem(const std::string& method);

}  // namespace reshard
