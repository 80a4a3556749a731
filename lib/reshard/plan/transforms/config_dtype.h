#pragma once

#include <filesystem>

#include "reshard/base/json_fwd.h"
#include "reshard/io/files.h"
#include "reshard/tensor/values/dtype.h"

namespace reshard {

/// Returns the config.json in the neuron_config.json at `file`; null for any other file or an empty path.
OrderedJson read_compiled_config(Files& files, const std::filesystem::path& file);

/// Returns the config.json at `file` with its keys in order, or read_compiled_config; null if `file` is empty or
/// unreadable.
OrderedJson read_ordered_config(Files& files, const std::filesystem::path& file);

/// Sets the dtype in a configuration (`dtype`, `torch_dtype`) and in its parts (`text_config`, `vision_config`, …), as
/// Transformers nests them. Keeps the dtypes in a quantisation configuration.
/// \returns whether a value changed.
bool set_config_dtype(OrderedJson& config, DType dtype);

/// Removes the keys that describe quantised weights, at every level. \returns whether `config` changed.
bool erase_quantization(OrderedJson& config);
bool erase_quantization(Json& config);

/// Whether a configuration or one of its parts declares quantised weights.
bool is_quantized_config(const OrderedJson& config);

}  // namespace reshard
