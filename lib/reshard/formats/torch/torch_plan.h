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

/// A second name for a tensor of the same file: both share one storage.
struct TensorAlias {
  std::string name;
  std::string source;
};

/// Lays out the file that `torch.save` makes of a state dict (torch/serialization.py; pickle protocol 2): tensors in
/// the order given, each a storage of its own aligned to 64 bytes, then the aliases. `archive` is the directory inside
/// the file, the file's name without its ending. `crcs` are those of the tensors' bytes, one a tensor; without them the
/// sizes are final and the parts are not. Where `metadata` is not empty, it is the last entry (container_keys.h). The
/// `offset_bytes` and `size_bytes` of `tensors` are ignored.
/// \throws Error kUnsupported for a dtype that torch cannot store, and for a name that is too long.
ContainerPlan plan_torch(const std::string& archive, std::vector<TensorEntry> tensors,
                         const std::vector<TensorAlias>& aliases = {}, std::span<const std::uint32_t> crcs = {},
                         const FileMetadata& metadata = {});

/// The same for one tensor saved by itself, as xser's tensor files are.
ContainerPlan plan_torch_tensor(const std::string& archive, TensorEntry tensor, std::uint32_t crc = 0,
                                const FileMetadata& metadata = {});

/// The same for `value`, whose tensors are `tensors`, in its order. What these are called stands nowhere in the file.
ContainerPlan plan_torch_value(const std::string& archive, const SavedValue& value, std::vector<TensorEntry> tensors,
                               std::span<const std::uint32_t> crcs = {}, const FileMetadata& metadata = {});

/// xser's reference file (torch_xla/utils/serialization.py): each name's `TensorReference` with the number of its
/// tensor file. `names` come with those numbers; `metadata` as of plan_torch.
/// \throws Error kUnsupported for a name that is too long.
std::string xser_reference_file(const std::string& archive,
                                const std::vector<std::pair<std::string, std::uint64_t>>& names,
                                const FileMetadata& metadata = {});

/// The same for `value`: each of its tensors has the number of its tensor file.
std::string xser_reference_file(const std::string& archive, const SavedValue& value, const FileMetadata& metadata = {});

/// xser's `.info.pt`: dtype and shape of the tensor files, in the order of their numbers.
std::string xser_info_file(const std::string& archive, const std::vector<TensorEntry>& tensors);

}  // namespace reshard
