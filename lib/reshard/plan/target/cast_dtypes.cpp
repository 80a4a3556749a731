#include "reshard/plan/target/cast_dtypes.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/plan/target/config_dtype.h"
#include "reshard/specs/config/model_config.h"
#include "reshard/tensor/cast/cast.h"

namespace reshard {
namespace {

/// Whether bitsandbytes has it in float32 beside a weight of 4 or 8 bits: the largest values, and a table.
bool is_of_bitsandbytes(std::string_view name) {
  constexpr std::string_view kEndings[] = {".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", ".SCB"};
  return std::any_of(std::begin(kEndings), std::end(kEndings), [&](auto ending) { return name.ends_with(ending); });
}

DType dtype_after(const LogicalTensor& tensor, CastRequest request) {
  if (is_of_bitsandbytes(tensor.name)) return tensor.dtype;
  const Integers integers = request.all ? Integers::kAllow : Integers::kRefuse;
  if (can_cast(tensor.dtype, request.dtype, integers)) return request.dtype;
  if (!request.all && can_cast(tensor.dtype, request.dtype, Integers::kAllow)) return tensor.dtype;
  throw Error(ErrorKind::kUnsupported,
              fmt::format("is {}, which cannot be cast to {}", name(tensor.dtype), name(request.dtype)))
      .tensor(tensor.name)
      .hint("leave it out with `drop`, or do without `dtype`");
}

bool is_scale(const std::string& name) {
  return name.ends_with("_scale") || name.ends_with("_scale_inv") || name.ends_with(".scales");
}

/// The name of the scales beside a quantised weight, as fp8, compressed-tensors, GPTQ and AWQ call them; empty if there
/// are none.
std::string scales_of(const SourceMap& source, const std::string& weight) {
  const std::string module = weight.substr(0, weight.rfind('.') + 1);
  for (const std::string& name : {weight + "_scale", weight + "_scale_inv", module + "scale", module + "scales"})
    if (name != weight && source.find_logical(name)) return name;
  return {};
}

/// Refuses to cast a quantised weight: without its scales its numbers mean another model.
void validate_not_quantized(const SourceMap& source, const std::string& weight, DType from, DType to,
                            const OrderedJson& config) {
  const DTypeRow& row = describe(from);
  const bool small_float = row.kind == DTypeClass::kFloat && row.bits <= 8 && from != DType::kF8E8M0;
  const bool integer = row.kind == DTypeClass::kSigned || row.kind == DTypeClass::kUnsigned;
  if (!small_float && (!integer || from == to)) return;
  const std::string scales = scales_of(source, weight);
  if (scales.empty() && !is_quantized_config(config)) return;
  throw Error(
      ErrorKind::kUnsupported,
      fmt::format("is quantised ({}, {}), and `dtype` does not apply scales: its numbers alone make another model",
                  row.name, scales.empty() ? "says config.json" : "with " + printable(scales)))
      .tensor(weight)
      .hint("do without `dtype`, or dequantise the model first with the tool that quantised it");
}

bool is_float8(DType dtype) {
  return describe(dtype).kind == DTypeClass::kFloat && bits(dtype) == 8;
}

/// Refuses to make a model float8 by a plain cast: loaders expect scales, and wider norms and embeddings. Notes the cast
/// of other tensors.
/// \param cast  names of the tensors that become float8.
void validate_float8(Job& job, const std::vector<std::string>& cast, CastRequest request, const OrderedJson& config) {
  if (cast.empty()) return;
  const bool is_adapter = std::any_of(cast.begin(), cast.end(),
                                      [](const std::string& name) { return name.find(".lora_") != std::string::npos; });
  const char* const dtype = describe(request.dtype).torch_name;
  if ((!config.is_null() || is_adapter) && !request.selected)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("`dtype` {} would cast all of the {} and write no scales: no program loads it then", dtype,
                            is_adapter ? "adapter" : "model, norms and embeddings too,"))
        .tensor(cast.front())
        .hint("quantise the model with a tool that writes scales; convert with `keep` casts selected tensors");
  job.notes.push_back(
      fmt::format("{} tensor{} cast to {} as plain numbers, without scales; no program loads them as a "
                  "quantised model",
                  cast.size(), cast.size() == 1 ? " is" : "s are", dtype));
}

}  // namespace

void cast_tensors(Job& job, std::vector<LogicalTensor>& wanted, CastRequest request, const OrderedJson& config) {
  bool scaled = false, kept = false;
  std::vector<std::string> to_float8;
  for (LogicalTensor& tensor : wanted) {
    const DType dtype = dtype_after(tensor, request);
    validate_not_quantized(job.source, tensor.name, tensor.dtype, dtype, config);
    kept = kept || is_of_bitsandbytes(tensor.name);
    scaled = scaled || (dtype != tensor.dtype && is_scale(tensor.name));
    if (dtype != tensor.dtype && is_float8(dtype)) to_float8.push_back(tensor.name);
    tensor.dtype = dtype;
  }
  validate_float8(job, to_float8, request, config);
  if (kept) job.notes.emplace_back("the model is quantised: `dtype` casts what is not quantised, and no scales");
  if (scaled)
    job.notes.push_back(
        "the model is quantised: `dtype` casts its scales and what is not quantised; quantised weights stay as they "
        "are");
}

}  // namespace reshard
