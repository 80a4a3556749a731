#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "reshard/specs/model_config.h"
#include "reshard/tensor/shape.h"

namespace reshard {

struct ModelParameter;

/// What config.json's quantization_config says of linears, in the forms of transformers' fp8, compressed-tensors, GPTQ
/// and AWQ. (What each stores was read from transformers' finegrained_fp8, from compressed-tensors' compressors and
/// from AutoGPTQ's and AutoAWQ's linears.)
class Quantization {
 public:
  /// Nothing where the model is not quantised, or in a way that is not known here.
  /// \throws Error kBadInput, naming config.json, for a number that makes no sense.
  static std::optional<Quantization> read(const ModelConfig& config);

  /// Appends what a checkpoint holds for a linear's weight: the weight and its scales, or what stands in its place; the
  /// weight alone where the checkpoint holds nothing else. Scales are split with their weights.
  void add_linear(const ModelParameter& weight, const std::function<bool(const std::string& name)>& holds,
                  std::vector<ModelParameter>& parameters) const;

 private:
  enum class Form : std::uint8_t { kFp8Blocks, kCompressed, kPacked, kGptq, kAwq };

  void add_scales(const ModelParameter& weight, const char* leaf, std::uint64_t rows, std::uint64_t columns,
                  std::vector<ModelParameter>& parameters) const;

  Form form_ = Form::kFp8Blocks;
  std::uint64_t bits_ = 8;
  std::uint64_t block_rows_ = 0;     // outputs that share a scale; 0: all
  std::uint64_t block_columns_ = 0;  // inputs that do; 0: all
  bool reordered_ = false;           // the inputs of a group lie anywhere (GPTQ's desc_act)
};

/// Why the tensors of a model that is quantised by `method` are not explained, a sentence, and what to do about it.
struct QuantizationProblem {
  std::string what;
  std::string hint;
};
/// Of a method that Quantization or a family does not know; nothing for one that is known, and for an empty name.
std::optional<QuantizationProblem> quantization_problem(const std::string& method);

}  // namespace reshard
