// What torch's checkpoints hold in their pickles beside tensors: mappings, the names of tensors, sizes.
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

/// A dict, or an object of one of its kin: OrderedDict, defaultdict.
bool is_mapping(const Pickle& pickle, PickleRef node);

/// The items of a mapping in their order; none of what is no mapping. A key may come twice.
std::vector<PicklePair> mapping_items(const Pickle& pickle, PickleRef node);

/// How many entries mapping_items looks at, without looking at them.
std::size_t mapping_size(const Pickle& pickle, PickleRef node);

/// The value under the string `key`; kNoNode where there is none, or None.
/// \throws Error kBadInput if the key comes twice: loaders disagree which value counts.
PickleRef value_of(const Pickle& pickle, std::span<const PicklePair> items, std::string_view key,
                   const std::filesystem::path& path);

/// The name of a tensor that a key is.
/// \throws Error kBadInput unless it is a string of UTF-8 without control characters, of kMaxTensorNameBytes at most.
std::string tensor_name(const Pickle& pickle, PickleRef key, const std::filesystem::path& path);

/// No two of the strings `keys` are equal.
/// \throws Error kBadInput, naming the first that are; `where` is what has them, as in "is in the state dict twice".
void refuse_twins(const Pickle& pickle, std::vector<PickleRef> keys, std::string_view where,
                  const std::filesystem::path& path);

/// A torch.Size, or a tuple or list of as many numbers as torch allows dims; nothing if it is none.
std::optional<Dims> read_size(const Pickle& pickle, PickleRef node);

}  // namespace reshard
