// Values other than tensors in pickles of torch's checkpoints: mappings, names of tensors, sizes.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/formats/pickle/pickle.h"
#include "reshard/tensor/values/dims.h"

namespace reshard {

/// Whether `node` is a dict, OrderedDict or defaultdict.
bool is_mapping(const Pickle& pickle, PickleRef node);

/// Returns the items of a mapping in order; empty if `node` is not a mapping. A key may occur twice.
std::vector<PicklePair> mapping_items(const Pickle& pickle, PickleRef node);

/// Number of entries that mapping_items would visit, without visiting them.
std::size_t mapping_size(const Pickle& pickle, PickleRef node);

/// Returns the value of the string `key`; kNoNode if it is absent or None.
/// \throws Error kBadInput if the key occurs twice: loaders disagree on which value to use.
PickleRef value_of(const Pickle& pickle, std::span<const PicklePair> items, std::string_view key,
                   const std::filesystem::path& path);

/// Returns the tensor name in `key`.
/// \throws Error kBadInput unless `key` is a UTF-8 string without control characters, of at most kMaxTensorNameBytes.
std::string tensor_name(const Pickle& pickle, PickleRef key, const std::filesystem::path& path);

/// Validates that the strings `keys` are unique.
/// \throws Error kBadInput, naming the first duplicate; `where` is the container, as in "is in the state dict twice".
void refuse_twins(const Pickle& pickle, std::vector<PickleRef> keys, std::string_view where,
                  const std::filesystem::path& path);

/// Reads a torch.Size, or a tuple or list with at most as many numbers as torch allows dims; std::nullopt for other
/// nodes.
std::optional<Dims> read_size(const Pickle& pickle, PickleRef node);

}  // namespace reshard
