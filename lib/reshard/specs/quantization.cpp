#include "reshard/specs/quantization.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/specs/family.h"

namespace reshard {
namespace {

constexpr std::uint64_t kWordBits = 32;

std::uint64_t blocks(std::uint64_t size, std::uint64_t block) {
  return block == 0 ? 1 : (size + block - 1) / block;
}

/// A tensor of `weight`'s module that is split as one of the weight's dims is.
/// \param out, in Its dims that belong to the weight's outputs and inputs; -1: none.
/// \param unit_out, unit_in Elements of the weight to one of its own, along them.
ModelParameter part_of(const ModelParameter& weight, const char* leaf, const Dims& shape, int out, int in,
                       std::uint64_t unit_out, std::uint64_t unit_in) {
  ModelParameter part = weight;
  part.name = weight.module + "." + leaf;
  part.shape = shape;
  part.split_dim.reset();
  part.packed.clear();
  part.heads = 0;
  part.tied_to.clear();
  if (!weight.split_dim) return part;
  const bool of_outputs = *weight.split_dim == 0;
  const int dim = of_outputs ? out : in;
  const std::uint64_t unit = of_outputs ? unit_out : unit_in;
  if (dim < 0 || unit == 0) return part;  // one for all
  part.split_dim = static_cast<std::uint32_t>(dim);
  part.heads = weight.heads;
  part.block_cut = weight.shape[*weight.split_dim] % unit != 0;
  for (const PackedPart& packed : weight.packed) {
    part.block_cut = part.block_cut || packed.size % unit != 0;
    part.packed.push_back({packed.size / unit, packed.replicated});
  }
  if (part.block_cut) part.packed.clear();
  return part;
}

}  // namespace

std::optional<Quantization> Quantization::read(const ModelConfig& config) {
  const auto found = config.json->find("quantization_config");
  if (found == config.json->end() || !found->is_object()) return std::nullopt;
  const JsonObject object(*found, config.path, "quantization_config");
  if (!object.has("quant_method") || !object.at("quant_method").is_string()) return std::nullopt;
  const std::string& method = object.string_at("quant_method");
  constexpr std::uint64_t kMaxBlock = 1 << 20;
  const auto block_at = [&](const JsonObject& of, const std::string& key) {
    const Json& value = of.at(key);
    if (value.is_null() || value == -1) return std::uint64_t{0};
    if (!value.is_number_unsigned() || value == 0 || value.get<std::uint64_t>() > kMaxBlock)
      of.fail(key, "a group of at least 1, or -1 for one group");
    return value.get<std::uint64_t>();
  };
  const auto bits_at = [&](const JsonObject& of, const std::string& key) {
    const std::uint64_t bits = of.unsigned_at(key);
    if (bits != 2 && bits != 4 && bits != 8) of.fail(key, "2, 4 or 8");
    return bits;
  };
  Quantization q;
  if (method == "fp8") {
    q.block_rows_ = q.block_columns_ = 128;
    if (!object.has("weight_block_size") || object.at("weight_block_size").is_null()) return q;
    const Json& size = object.array_at("weight_block_size");
    const auto is_size = [&](const Json& one) {
      return one.is_number_unsigned() && one != 0 && one.get<std::uint64_t>() <= kMaxBlock;
    };
    if (size.size() != 2 || !is_size(size[0]) || !is_size(size[1])) object.fail("weight_block_size", "two sizes");
    q.block_rows_ = size.at(0).get<std::uint64_t>();
    q.block_columns_ = size.at(1).get<std::uint64_t>();
    return q;
  }
  if (method == "gptq" || method == "awq") {
    q.form_ = method == "gptq" ? Form::kGptq : Form::kAwq;
    q.bits_ = bits_at(object, "bits");
    q.block_columns_ = block_at(object, "group_size");
    q.reordered_ = object.has("desc_act") && object.bool_at("desc_act");
    return q;
  }
  if (method != "compressed-tensors" || !object.has("config_groups")) return std::nullopt;
  const Json& groups = object.object_at("config_groups");
  if (groups.size() != 1) return std::nullopt;  // different forms in one model
  const JsonObject weights(JsonObject(groups.front(), config.path, "config_groups").object_at("weights"), config.path,
                           "weights");
  const std::string& strategy = weights.string_at("strategy");
  q.form_ = object.has("format") && object.at("format") == "pack-quantized" ? Form::kPacked : Form::kCompressed;
  q.bits_ = q.form_ == Form::kPacked ? bits_at(weights, "num_bits") : 8;
  if (strategy == "channel" || strategy == "group") q.block_rows_ = 1;
  if (strategy == "group") q.block_columns_ = block_at(weights, "group_size");
  if (strategy == "block") return std::nullopt;
  return q;
}

namespace {

constexpr const char* kKnownMethods[] = {"fp8", "compressed-tensors", "gptq", "awq", "mxfp4"};

constexpr const char* kWhenLoaded =
    "take the checkpoint from before it was quantised, and quantise it where it is loaded";

/// Methods whose tensors cannot be cut, and why.
struct WholeMethod {
  const char* name;
  const char* why;
};
constexpr WholeMethod kWholeMethods[] = {
    {"bitsandbytes", "its weights are stored as one row of blocks that run on from one row of the matrix to the next"},
    {"bitsandbytes_4bit", "its weights are stored as one row of blocks that run on from row to row of the matrix"},
    {"bitsandbytes_8bit", "its outliers are stored for the whole matrix"},
    {"hqq", "its weights are packed across the whole matrix, with a state of their own"},
    {"torchao", "its weights are pickled tensor classes, whose parts only torchao knows"},
    {"quanto", "its weights are tensor classes, whose parts only quanto knows"},
    {"gguf", "its tensors are those of llama.cpp, in blocks and under names of their own"},
    {"aqlm", "its codebooks are shared by the whole matrix"},
    {"vptq", "its codebooks and permutations are shared by the whole matrix"},
    {"spqr", "its weights are one sparse structure for the whole matrix"},
    {"higgs", "its weights are packed for the kernel that reads them whole"},
    {"eetq", "its weights are packed for the kernel that reads them whole"},
};

}  // namespace

std::optional<QuantizationProblem> quantization_problem(const std::string& method) {
  const auto is_it = [&](const char* name) { return method == name; };
  if (method.empty() || std::any_of(std::begin(kKnownMethods), std::end(kKnownMethods), is_it)) return std::nullopt;
  for (const WholeMethod& whole : kWholeMethods)
    if (is_it(whole.name))
      return QuantizationProblem{
          fmt::format("the model is quantised by {}, which cannot be partitioned: {}", method, whole.why), kWhenLoaded};
  return QuantizationProblem{fmt::format("the model is quantised by \"{}\", which is not known; known are {}",
                                         printable(method), fmt::join(kKnownMethods, ", ")),
                             "describe its tensors with `spec`"};
}

void Quantization::add_scales(const ModelParameter& weight, const char* leaf, std::uint64_t rows, std::uint64_t columns,
                              std::vector<ModelParameter>& parameters) const {
  parameters.push_back(part_of(weight, leaf, {rows, columns}, 0, 1, block_rows_, block_columns_));
}

void Quantization::add_linear(const ModelParameter& weight, const std::function<bool(const std::string& name)>& holds,
                              std::vector<ModelParameter>& parameters) const {
  const auto has = [&](const char* leaf) { return holds && holds(weight.module + "." + leaf); };
  const std::uint64_t out = weight.shape[0];
  const std::uint64_t in = weight.shape[1];
  const std::uint64_t per_word = kWordBits / bits_;
  const std::uint64_t groups = blocks(in, block_columns_);
  switch (form_) {
    case Form::kFp8Blocks:
      parameters.push_back(weight);
      if (has("weight_scale_inv")) add_scales(weight, "weight_scale_inv", blocks(out, block_rows_), groups, parameters);
      return;
    case Form::kCompressed:
    case Form::kPacked:
      if (has("weight_packed")) {
        parameters.push_back(part_of(weight, "weight_packed", {out, blocks(in, per_word)}, 0, 1, 1, per_word));
        parameters.push_back(part_of(weight, "weight_shape", {2}, -1, -1, 0, 0));
      } else {
        parameters.push_back(weight);
      }
      if (has("weight_scale") && block_rows_ == 0)
        parameters.push_back(part_of(weight, "weight_scale", {1}, -1, -1, 0, 0));
      else if (has("weight_scale"))
        add_scales(weight, "weight_scale", out, groups, parameters);
      if (has("weight_zero_point") && !has("weight_packed"))
        add_scales(weight, "weight_zero_point", out, groups, parameters);
      else if (has("weight_zero_point"))
        parameters.push_back(
            part_of(weight, "weight_zero_point", {blocks(out, per_word), groups}, 0, 1, per_word, block_columns_));
      if (has("input_scale")) {
        parameters.push_back(part_of(weight, "input_scale", {1}, -1, -1, 0, 0));
        parameters.back().any_shape = parameters.back().optional = true;
      }
      return;
    case Form::kGptq:
    case Form::kAwq: {
      if (!has("qweight")) {
        parameters.push_back(weight);
        return;
      }
      // The inputs of a group lie anywhere: each rank needs the scales of all groups.
      const std::uint64_t group = reordered_ ? 0 : block_columns_;
      const bool gptq = form_ == Form::kGptq;
      if (gptq)
        parameters.push_back(part_of(weight, "qweight", {blocks(in, per_word), out}, 1, 0, 1, per_word));
      else
        parameters.push_back(part_of(weight, "qweight", {in, blocks(out, per_word)}, 1, 0, per_word, 1));
      parameters.push_back(part_of(weight, "qzeros", {groups, blocks(out, per_word)}, 1, 0, per_word, group));
      parameters.push_back(part_of(weight, "scales", {groups, out}, 1, 0, 1, group));
      if (gptq && has("g_idx")) parameters.push_back(part_of(weight, "g_idx", {in}, -1, 0, 0, 1));
      return;
    }
  }
}

}  // namespace reshard
