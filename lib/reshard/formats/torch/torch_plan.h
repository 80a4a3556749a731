#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "reshard/formats/common/container.h"
#include "reshard/formats/common/container_keys.h"
#include "reshard/formats/pickle/saved_value.h"

namespace reshard {

/// Plans the file that `torch.save` writes for a state dict (torch/serialization.py; pickle protocol 2): tensors in the
/// given order, each with a separate storage aligned to 64 bytes, then the aliases. `archive` is the directory inside
/// the file: the file name without its extension. `crcs` are the CRCs of the tensors' bytes, one per tensor; without
/// them the sizes are final but the parts are not. `metadata`, if not empty, becomes the last entry (container_keys.h).
/// Ignores `offset_bytes` and `size_bytes` of `tensors`.
/// \throws Error kUnsupported for a dtype that torch cannot store, or a name that is too long.
ContainerPlan plan_torch(const std::string& archive, std::vector<TensorEntry> tensors,
                         const std::vector<TensorAlias>& aliases = {}, std::span<const std::uint32_t> crcs = {},
                         const FileMetadata& metadata = {});

/// Same as plan_torch for a single tensor without a state dict, like xser's tensor files.
ContainerPlan plan_torch_tensor(const std::string& archive, TensorEntry tensor, std::uint32_t crc = 0,
                                const FileMetadata& metadata = {});

/// Same as plan_torch for `value`, whose tensors are `tensors`, in order. Their names are not in the file.
ContainerPlan plan_torch_value(const std::string& archive, const SavedValue& value, std::vector<TensorEntry> tensors,
                               std::span<const std::uint32_t> crcs = {}, const FileMetadata& metadata = {});

/// Returns xser's reference file (torch_xla/utils/serialization.py): a `TensorReference` for each name, with the number
/// of its tensor file. `names` contains those numbers; for `metadata` see plan_torch.
/// \throws Error kUnsupported for a name that is too long.
std::string xser_reference_file(const std::string& archive,
                                const std::vector<std::pair<std::string, std::uint64_t>>& names,
                                const FileMetadata& metadata = {});

/// Same for `value`: each of its tensors has the number of its tensor file.
std::string xser_reference_file(const std::string& archive, const SavedValue& value, const FileMetadata& metadata = {});

/// Returns xser's `.info.pt`: dtypes and shapes of the tensor files, in the order of their numbers.
std::string xser_info_file(const std::string& archive, const std::vector<TensorEntry>& tensors);

}  // namespace reshard
