#include "reshard/layouts/map/target_file.h"

#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "reshard/formats/dcp/dcp_plan.h"
#include "reshard/formats/safetensors/safetensors.h"
#include "reshard/formats/torch/torch_plan.h"
#include "reshard/formats/torch/xser.h"

namespace reshard {
namespace {

TensorEntry entry_of(const StoredTensor& tensor) {
  TensorEntry entry{tensor.name, tensor.dtype, tensor.file_shape()};
  entry.expert_parallel = tensor.expert_parallel;
  entry.is_object = tensor.is_object;
  return entry;
}

/// torch names the directory inside a file after the file.
std::string archive_name(const std::filesystem::path& path) {
  return path.stem().string();
}

ContainerPlan plan_file(const TargetFile& file, std::vector<TensorEntry> tensors, std::span<const std::uint32_t> crcs) {
  const std::string archive = archive_name(file.path);
  FileMetadata metadata = file.record ? record_metadata(*file.record) : FileMetadata();
  metadata.insert(metadata.end(), file.metadata.begin(), file.metadata.end());
  switch (file.encoding) {
    case TargetFile::Encoding::kSafetensors: return plan_safetensors(std::move(tensors), metadata);
    case TargetFile::Encoding::kTorch:
      if (file.structure) return plan_torch_value(archive, *file.structure, std::move(tensors), crcs, metadata);
      return plan_torch(archive, std::move(tensors), file.aliases, crcs, metadata);
    case TargetFile::Encoding::kTorchTensor:
      return plan_torch_tensor(archive, std::move(tensors.front()), crcs.empty() ? 0 : crcs.front(), metadata);
    case TargetFile::Encoding::kDcpItems: return plan_dcp_items(std::move(tensors), crcs, file.objects).container;
  }
  return {};
}

std::vector<std::uint32_t> add_file(TargetMap& map, TargetFile file, std::span<PlacedTensor> tensors) {
  std::vector<TensorEntry> entries;
  std::unordered_map<std::string_view, std::size_t> position;
  entries.reserve(tensors.size());
  position.reserve(tensors.size());
  for (const PlacedTensor& tensor : tensors) {
    position.emplace(tensor.stored.name.text(), entries.size());
    entries.push_back(entry_of(tensor.stored));
  }
  const ContainerPlan plan = plan_file(file, std::move(entries), {});
  const auto file_index = static_cast<std::uint32_t>(map.files.size());
  file.size_bytes = plan.size_bytes;
  file.first_stored = static_cast<std::uint32_t>(map.stored.size());
  file.stored_count = static_cast<std::uint32_t>(tensors.size());
  map.files.push_back(std::move(file));
  std::vector<std::uint32_t> indices(tensors.size());
  for (const TensorEntry& entry : plan.tensors) {
    const std::size_t at = position.at(entry.name);
    StoredTensor tensor = tensors[at].stored;
    tensor.file = file_index;
    tensor.offset_bytes = entry.offset_bytes;
    indices[at] = map.add_stored(std::move(tensor));
  }
  for (std::size_t i = 0; i < tensors.size(); ++i)
    for (PlacedTensor::Part& part : tensors[i].parts)
      map.pieces[part.logical].push_back({indices[i], std::move(part.box), std::move(part.begin)});
  return indices;
}

/// Adds one file per tensor, numbered in order. An alias has the number of its source. With an info file, which tells
/// experts apart, files of other tensors are left out on all expert-parallel ranks but the first, as in NxD.
std::vector<std::uint32_t> add_xser(TargetMap& map, TargetContainer& container, const TargetFile& file) {
  std::vector<std::uint32_t> indices;
  std::vector<std::pair<std::string, std::uint64_t>> names;
  std::unordered_map<std::string, std::uint64_t> numbers;
  std::vector<TensorEntry> entries;
  for (PlacedTensor& tensor : container.tensors) {
    TargetFile tensor_file = file;
    tensor_file.path = xser_tensor_path(container.path, names.size());
    tensor_file.encoding = TargetFile::Encoding::kTorchTensor;
    numbers.emplace(tensor.stored.name, names.size());
    names.emplace_back(tensor.stored.name, names.size());
    entries.push_back(entry_of(tensor.stored));
    const bool is_elsewhere = container.shares_tensors && container.ep_rank > 0 && !tensor.stored.expert_parallel;
    indices.push_back(is_elsewhere ? kStoredElsewhere : add_file(map, std::move(tensor_file), {&tensor, 1}).front());
  }
  for (const TensorAlias& alias : container.aliases) names.emplace_back(alias.name, numbers.at(alias.source));
  const std::filesystem::path info_path = xser_info_path(container.path);
  if (container.has_info) map.text_files.push_back({info_path, xser_info_file(archive_name(info_path), entries)});
  const FileMetadata metadata = file.record ? record_metadata(*file.record) : FileMetadata();
  const std::string archive = archive_name(container.path);
  map.text_files.push_back({container.path, container.structure
                                                ? xser_reference_file(archive, *container.structure, metadata)
                                                : xser_reference_file(archive, names, metadata)});
  return indices;
}

}  // namespace

std::vector<std::uint32_t> add_target_container(TargetMap& map, TargetContainer container) {
  TargetFile file;
  file.path = container.path;
  file.tp_rank = container.tp_rank;
  file.pp_rank = container.pp_rank;
  file.ep_rank = container.ep_rank;
  file.record = std::move(container.record);
  file.metadata = std::move(container.metadata);
  switch (container.format) {
    case Format::kXser: return add_xser(map, container, file);
    case Format::kSafetensors: file.encoding = TargetFile::Encoding::kSafetensors; break;
    case Format::kPytorch:
      file.encoding = container.as_items ? TargetFile::Encoding::kDcpItems : TargetFile::Encoding::kTorch;
      file.aliases = std::move(container.aliases);
      file.structure = std::move(container.structure);
      file.objects = std::move(container.objects);
      break;
  }
  return add_file(map, std::move(file), container.tensors);
}

void merge_files(TargetMap& map) {
  const std::vector<StoredTensor> stored = std::exchange(map.stored, {});
  const std::vector<TargetFile> files = std::exchange(map.files, {});
  std::vector<std::vector<const TargetFile*>> groups;
  std::map<std::filesystem::path, std::size_t> group_of;
  for (const TargetFile& file : files) {
    const auto [group, is_new] = group_of.emplace(file.path, groups.size());
    if (is_new) groups.emplace_back();
    groups[group->second].push_back(&file);
  }
  std::map<std::vector<const OriginalShapes*>, std::shared_ptr<const OriginalShapes>> merged;  // shared by the ranks
  std::vector<std::uint32_t> index(stored.size());
  for (const std::vector<const TargetFile*>& group : groups) {
    TargetFile file = *group.front();
    std::vector<PlacedTensor> tensors;
    std::vector<std::uint32_t> from;
    std::vector<const OriginalShapes*> shapes;
    for (const TargetFile* one : group) {
      for (std::uint32_t s = one->first_stored; s < one->first_stored + one->stored_count; ++s) {
        tensors.push_back({stored[s], {}});
        from.push_back(s);
      }
      if (!one->record) continue;
      shapes.push_back(one->record->originals.get());
      file.record->transposed.insert(one->record->transposed.begin(), one->record->transposed.end());
      file.record->scaled.insert(one->record->scaled.begin(), one->record->scaled.end());
    }
    std::shared_ptr<const OriginalShapes>& originals = merged[shapes];
    if (!originals) {
      OriginalShapes all;
      for (const OriginalShapes* one : shapes) all.insert(one->begin(), one->end());
      originals = std::make_shared<const OriginalShapes>(std::move(all));
    }
    if (file.record) file.record->originals = originals;
    const std::vector<std::uint32_t> indices = add_file(map, std::move(file), tensors);
    for (std::size_t i = 0; i < from.size(); ++i) index[from[i]] = indices[i];
  }
  for (std::vector<Piece>& of_tensor : map.pieces)
    for (Piece& piece : of_tensor) piece.stored = index[piece.stored];
}

bool needs_crcs(const TargetFile& file) {
  return file.encoding != TargetFile::Encoding::kSafetensors;
}

std::vector<FilePart> target_parts(const TargetMap& map, const TargetFile& file, std::span<const std::uint32_t> crcs) {
  std::vector<TensorEntry> entries;
  for (std::uint32_t s = file.first_stored; s < file.first_stored + file.stored_count; ++s)
    entries.push_back(entry_of(map.stored[s]));
  const auto own_crcs = crcs.empty() ? crcs : crcs.subspan(file.first_stored, file.stored_count);
  return plan_file(file, std::move(entries), own_crcs).parts;
}

}  // namespace reshard
