#pragma once

#include <filesystem>

#include "reshard/base/json_fwd.h"
#include "reshard/io/files.h"
#include "reshard/tensor/values/dtype.h"

namespace reshard {

/// The config.json that the neuron_config.json at `file` amounts to; null for any other file, and if `file` is empty.
OrderedJson read_compiled_config(Files& files, const std::filesystem::path& file);

/// The config.json at `file`, keys in its order, or read_compiled_config; null if `file` is empty or none that can be
/// read.
OrderedJson read_ordered_config(Files& files, const std::filesystem::path& file);

/// Sets the dtype that a configuration names (`dtype`, `torch_dtype`), and those of its parts (`text_config`,
/// `vision_config`, …), as Transformers nests them. The quantisation's configuration has dtypes of its own, which stay.
/// \returns whether anything was there to set.
bool set_config_dtype(OrderedJson& config, DType dtype);

/// Whether a configuration, or that of a part, says that the weights are quantised.
bool is_quantized_config(const OrderedJson& config);

}  // namespace reshard
