#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/specs/config/model_config.h"
#include "reshard/specs/family/expression.h"
#include "reshard/specs/model/model.h"
#include "reshard/tensor/values/dtype.h"
#include "reshard/tensor/values/shape.h"

namespace reshard {

struct QuantizationScheme;

/// How the linears of a model are quantised, from config.json: by schemes of a method in
/// lib/reshard/specs/quantizations/*.json, which are compiled in. Such a file has
///
///   quant_method    as in config.json's quantization_config
///   keys            how to validate its values: [2, 4, 8], one of these; "group", a size, or -1 or null for one group;
///                   "blocks", two sizes or null; "switch". "weights.x" is x under "weights" in one of the
///                   config_groups of compressed-tensors
///   defaults        values of absent keys
///   only_family     the family whose description covers this quantisation; no scheme does
///   schemes         a scheme applies if its "when" is true. A linear is quantised by the first scheme whose "marker"
///                   the checkpoint contains next to it. Its tensors are the "parameters": each has a name, a shape in
///                   terms of `outputs`, `inputs`, those keys and "define", the dims that belong to the linear's
///                   outputs and inputs, and how many of these one stored element covers. A "scalar" has one element,
///                   with any number of dims. Without "shape" it is the weight itself, or has any shape. A "factor"
///                   multiplies the weight, block by block; the scheme's other parameters then do not change it.
///   … "refused"     instead of all that: why this scheme cannot be partitioned
///   kept            last parts of the names of tensors that keep their dtype, such as scales; with "kept_beside", only next to
///                   a tensor whose name ends with that part
///   codes, scales   suffixes of the names of the two U8 tensors that a weight of "only_family" is stored as, which show
///                   the method where it is not declared
///   dtype_of_others   true: a requested dtype applies to the tensors that are not quantised, and to no scales
///   undeclared      the program that quantises writes no quantization_config. Which key of it follows from the dtype of
///                   the quantised weights, with its values; in a scheme, its other keys
///   … "stacked_suffix"   suffix of the scale of stacked experts, after the name of their weight
///   … "note"        note to the user if "note_when" is true
///
/// (Sources for the tensors of each method: transformers' finegrained_fp8, compressed-tensors' compressors, the linears
/// of AutoGPTQ, AutoAWQ and AutoFP8, and ModelOpt's export.)
class Quantization {
 public:
  /// Returns std::nullopt if the model is not quantised, or by an unknown method.
  /// \throws Error kBadInput, naming config.json, for an invalid value.
  static std::optional<Quantization> read(const ModelConfig& config);

  /// Appends the tensors that a checkpoint contains for a linear's weight: the weight and its scales, or the tensors
  /// that replace it; only the weight if the checkpoint contains nothing else. Scales are split like their weights.
  /// \param has_bias  whether the linear has a bias, according to the family.
  void add_linear(const ModelParameter& weight, bool has_bias, const HoldsName& holds,
                  std::vector<ModelParameter>& parameters);
  /// Same as add_linear for a weight that stacks experts.
  void add_stacked(const ModelParameter& weight, const HoldsName& holds, std::vector<ModelParameter>& parameters);

  /// How the values of a quantised weight follow from the stored tensors.
  struct Scaled {
    std::string scales;               // name of the tensor that multiplies the weight, block by block
    std::uint64_t rows, columns;      // size of a block; 0: one scale for the whole weight
    std::vector<std::string> others;  // names of tensors that only the quantised linear has, such as input_scale
  };
  /// Returns std::nullopt if `weight` is not quantised, or if its scheme has no "factor".
  std::optional<Scaled> scaled(const std::string& weight, const Dims& shape, const HoldsName& holds);

  /// Names of parameters that only quantised linears have.
  std::vector<std::string> markers() const;
  /// The marker of the linears added so far, or the expected one.
  const std::string& usual_marker() const { return usual_marker_; }
  /// Suffix of the scale of stacked experts, after the name of their weight; empty if they are not quantised.
  std::string stacked_suffix() const;
  /// Note to print on how scales are partitioned; may be empty.
  const std::string& note() const { return note_; }
  /// Keyed by the sizes along which the linears added so far are split: the unit that parts must be a multiple of to
  /// keep blocks whole.
  const std::map<std::uint64_t, std::uint64_t>& pad_units() const { return pad_units_; }

 private:
  /// A parameter of a linear of a given size.
  struct Part {
    const char* leaf = nullptr;
    bool is_weight = false;
    bool optional = false;
    ShapeKnown shape_known = ShapeKnown::kExactly;
    bool factor = false;
    Dims shape;
    int out_dim = -1, in_dim = -1;          // dims that belong to the weight's outputs and inputs
    std::uint64_t per_out = 1, per_in = 1;  // number of outputs and inputs per element
  };
  struct Applied {
    std::shared_ptr<const QuantizationScheme> scheme;
    Expression::Lookup config;  // values of quantization_config; null for absent keys
    std::map<std::pair<std::uint64_t, std::uint64_t>, std::vector<Part>> parts;  // by outputs and inputs
  };
  const std::vector<Part>& parts_of(Applied& applied, std::uint64_t out, std::uint64_t in);

  void note_unit(const ModelParameter& parameter);

  std::vector<Applied> schemes_;
  std::string usual_marker_;
  bool stores_weights_ = false;  // quantised linears have a weight, like others
  std::string note_;
  std::map<std::uint64_t, std::uint64_t> pad_units_;
  std::filesystem::path path_;
};

/// Recognises the quantisation of a checkpoint by its tensors, if the program that quantised it writes no
/// quantization_config.
class QuantizationEvidence {
 public:
  void add(std::string_view name, DType dtype, const Dims& shape);
  /// Returns the quantization_config that the tensors of a model of this family show; null if they show none.
  /// \throws Error kUnsupported, naming a tensor, if linears are quantised in different ways.
  std::shared_ptr<const Json> config(const std::string& model_type = {}) const;
  /// Whether any tensor may belong to a quantised linear.
  bool may_be_quantized() const { return !scales_.empty() || !coded_.empty(); }
  /// Whether a weight of this module has at most 8 bits.
  bool has_small_weight(std::string_view module) const { return weights_.find(module) != weights_.end(); }

 private:
  std::map<std::string, std::pair<DType, Dims>, std::less<>> weights_;  // of few bits, by module
  std::map<std::string, Dims, std::less<>> scales_;                     // by name
  std::set<std::string, std::less<>> coded_;                            // names of codes and of their scales
};

/// A weight that is stored as two tensors, its codes and their scales, by a method with "codes" and "scales".
struct CodedWeight {
  std::string method;                 // quant_method
  std::string weight, codes, scales;  // names
};

/// Returns the weight whose codes or scales a tensor of this name and dtype may be.
std::optional<CodedWeight> coded_weight(std::string_view name, DType dtype);

/// Whether a requested dtype applies only to the tensors that are not quantised, with this method.
bool casts_only_others(const std::string& quant_method);

/// Whether the tensor belongs to a quantised weight whose method keeps its dtype, whatever dtype is requested.
bool keeps_stored_dtype(std::string_view name, const HoldsName& holds);

/// Whether a requested dtype dequantises weights in one of the method's schemes.
bool is_dequantized(const std::string& quant_method);

/// Whether a tensor name implies that its linear is quantised by one of the methods. Excludes "scale", which other
/// modules have, too.
bool is_quantized_tensor(std::string_view name);

/// Returns the quantisation method in config.json; empty if the model is not quantised.
std::string quant_method(const ModelConfig& config);

/// Returns why the tensors of a model may not be interpreted, and how to fix it, if Quantization does not know its
/// quantisation; otherwise std::nullopt.
std::optional<QuantizationProblem> quantization_problem(const ModelConfig& config);

}  // namespace reshard
