#include "reshard/plan/output/file_metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/layout_table.h"

namespace reshard {
namespace {

/// A key of a file's metadata without which its tensors are of no use.
struct NeededKey {
  const char* key;
  const char* meaning;      // a clause
  bool describes_elements;  // a cast, or a tensor that is left out, makes it wrong
};
constexpr NeededKey kNeededKeys[] = {
    // torchao/prototype/safetensors/safetensors_support.py, unflatten_tensor_state_dict
    {"tensor_names", "with which torchao makes weights of the tensors", true},
    // diffusers/loaders/lora_base.py, LORA_ADAPTER_METADATA_KEY
    {"lora_adapter_metadata", "which alone has the rank and the scale of the adapter for Diffusers", false},
};

const NeededKey* needed_key(const std::string& key) {
  const auto found = std::find_if(std::begin(kNeededKeys), std::end(kNeededKeys),
                                  [&](const NeededKey& row) { return key == row.key; });
  return found == std::end(kNeededKeys) ? nullptr : found;
}

bool has_key(const FileMetadata& metadata, const std::string& key) {
  return std::any_of(metadata.begin(), metadata.end(), [&](const auto& entry) { return entry.first == key; });
}

/// Returns the first source file that has the key.
const SourceFile& file_with(const SourceMap& source, const std::string& key) {
  return *std::find_if(source.files.begin(), source.files.end(),
                       [&](const SourceFile& file) { return file.metadata && has_key(*file.metadata, key); });
}

/// Returns the keys that a target's file lacks, although it contains a tensor of a source file with this key.
std::set<std::string> lost_keys(const Draft& draft, const TargetMap& target,
                                std::span<const std::shared_ptr<const FileMetadata>> metadata) {
  std::set<std::string> lost;
  std::set<std::pair<const FileMetadata*, std::uint32_t>> compared;
  for (std::size_t i = 0; i < metadata.size(); ++i) {
    const auto logical = metadata[i] ? target.find_logical(draft.wanted[i].name) : std::nullopt;
    if (!logical) continue;
    for (const Piece& piece : target.pieces[*logical]) {
      const std::uint32_t file = target.stored[piece.stored].file;
      if (!compared.emplace(metadata[i].get(), file).second) continue;
      std::set<std::string_view> held;
      for (const auto& [key, value] : target.files[file].metadata) held.insert(key);
      for (const auto& [key, value] : *metadata[i])
        if (held.count(key) == 0) lost.insert(key);
    }
  }
  return lost;
}

}  // namespace

std::vector<std::shared_ptr<const FileMetadata>> wanted_metadata(const Draft& draft) {
  const SourceMap& source = draft.source.map;
  if (std::none_of(source.files.begin(), source.files.end(), [](const SourceFile& file) { return file.metadata; }))
    return {};
  std::vector<std::shared_ptr<const FileMetadata>> all;
  for (const LogicalTensor& tensor : draft.wanted) {
    const auto logical = source.find_logical(tensor.name);
    const bool is_stored = logical && !source.pieces[*logical].empty();
    all.push_back(is_stored ? source.file_of(source.stored[source.pieces[*logical].front().stored]).metadata : nullptr);
  }
  return all;
}

void validate_metadata(Draft& draft, const LayoutTraits& target, const TargetPlan& plan,
                       std::span<const std::shared_ptr<const FileMetadata>> metadata) {
  const std::set<std::string> lost = lost_keys(draft, plan.map, metadata);
  std::vector<std::string> noted;
  for (const std::string& key : lost) {
    const NeededKey* const needed = needed_key(key);
    if (needed == nullptr) {
      noted.push_back(key);
      continue;
    }
    if (target.name == whole_layout().traits().name && plan.format == Format::kSafetensors)
      throw Error(ErrorKind::kUnsupported,
                  fmt::format("its metadata has \"{}\", {}, and another file has another value: one file cannot carry "
                              "both",
                              key, needed->meaning))
          .in(file_with(draft.source.map, key).path)
          .hint("convert the files one by one");
    throw Error(ErrorKind::kUnsupported,
                fmt::format("its metadata has \"{}\", {}: files of layout {} in {} cannot carry it", key,
                            needed->meaning, target.name, name(plan.format)))
        .in(file_with(draft.source.map, key).path)
        .hint(fmt::format("convert it to layout {} in safetensors", whole_layout().traits().name));
  }
  struct Change {
    Applied::Transform transform;
    bool of_elements;  // harmless to a key that does not describe the elements
    const char* how;
    const char* hint;
  };
  using enum Applied::Transform;
  constexpr Change kChanges[] = {
      {kRename, false, "under other names", "leave out `rename` and `renumber-layers`"},
      {kDrop, true, "without some of them", "leave out `drop`, `keep` and `extra-tensors` drop"},
      {kCast, true, "in another dtype", "leave out `dtype`"}};
  const std::set<std::shared_ptr<const FileMetadata>> files(metadata.begin(), metadata.end());
  for (const NeededKey& needed : kNeededKeys) {
    const bool is_there =
        std::any_of(files.begin(), files.end(), [&](const auto& one) { return one && has_key(*one, needed.key); });
    for (const Change& change : kChanges)
      if (is_there && draft.was(change.transform) && (needed.describes_elements || !change.of_elements))
        throw Error(ErrorKind::kUnsupported,
                    fmt::format("its metadata has \"{}\", {}: it describes them as they are, not {}", needed.key,
                                needed.meaning, change.how))
            .in(file_with(draft.source.map, needed.key).path)
            .hint(change.hint);
  }
  if (!noted.empty())
    draft.source.notes.left_out(
        fmt::format("left out {} of the source's metadata, which the files of this output do not have: {}",
                    noted.size() == 1 ? "1 key" : fmt::format("{} keys", noted.size()), list_names(noted)));
}

}  // namespace reshard
