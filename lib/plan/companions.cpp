#include <algorithm>
#include <array>
#include <set>

#include "reshard/layouts/master_weights.h"
#include "reshard/layouts/sharded_layout.h"
#include "reshard/plan/job.h"
#include "reshard/plan/tags.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::array kWeightExtensions = {".safetensors", ".bin",     ".pt",   ".pth", ".ckpt",
                                          ".h5",          ".msgpack", ".gguf", ".onnx"};

/// Weights by their name, or an index of them. `training_args.bin` is a .bin that is not: it is small and belongs to
/// the run.
bool is_weights(const std::string& file_name) {
  if (file_name.ends_with(".index.json")) return true;
  if (file_name == "training_args.bin") return false;
  return std::any_of(kWeightExtensions.begin(), kWeightExtensions.end(),
                     [&](const char* extension) { return file_name.ends_with(extension); });
}

/// A folder of this name can only be one of shards. Anything may be called "model"; of that the weights are left out.
bool is_ours(const ShardsKindRow& row) {
  return row.whole && row.kind != ShardsKind::kNxd;
}

bool is_skipped_folder(const std::string& name) {
  const bool shards = std::any_of(std::begin(kShardsKinds), std::end(kShardsKinds),
                                  [&](const ShardsKindRow& row) { return is_ours(row) && name == row.folder; });
  return shards || name.starts_with("checkpoint-") || name.starts_with("adapter_") || rank_of_name(name).has_value();
}

bool is_one_of(const fs::path& folder, const std::vector<fs::path>& left_out) {
  std::error_code ignored;
  return std::any_of(left_out.begin(), left_out.end(),
                     [&](const fs::path& other) { return fs::equivalent(folder, other, ignored); });
}

/// What a save of NxD puts into the folder of a tag beside `model`.
bool is_part_of_save(const fs::path& directory, const std::string& name) {
  std::error_code ignored;
  if (name == kCheckpointMarker || name == kDoneMarker || name == kOptimizerFolder)
    return fs::is_directory(directory / describe(ShardsKind::kNxd).folder, ignored);
  return name == kLatestFile && !list_tags(directory).empty();
}

void collect(const fs::path& directory, const fs::path& relative, const std::vector<fs::path>& left_out,
             std::vector<CopiedFile>& files) {
  std::set<fs::directory_entry> entries;  // sorted: the order must not be the file system's
  for (const auto& entry : fs::directory_iterator(directory)) entries.insert(entry);
  for (const auto& entry : entries) {
    const std::string name = entry.path().filename().string();
    std::error_code broken_link;
    if (name.starts_with(".") || (relative.empty() && name == kTrainingConfigFile)) continue;
    if (is_part_of_save(directory, name)) continue;
    if (entry.is_directory(broken_link)) {
      // A linked folder may lead anywhere, even back here.
      if (entry.is_symlink() || is_skipped_folder(name) || is_one_of(entry.path(), left_out)) continue;
      const bool output = std::any_of(std::begin(kShardsKinds), std::end(kShardsKinds), [&](const ShardsKindRow& row) {
        return is_ours(row) && fs::exists(entry.path() / row.folder, broken_link);
      });
      if (output || is_tag_folder(entry.path())) continue;  // of this program; another checkpoint of the run
      collect(entry.path(), relative / name, left_out, files);
    } else if (entry.is_regular_file(broken_link) && !is_weights(name) && name != kTrainingConfigFile) {
      files.push_back({entry.path(), relative / name, entry.file_size()});
    }
  }
}

}  // namespace

std::vector<CopiedFile> companion_files(const fs::path& directory, const std::vector<fs::path>& left_out) {
  std::vector<CopiedFile> files;
  collect(directory, {}, left_out, files);
  return files;
}

std::uint64_t Job::output_bytes() const {
  std::uint64_t bytes = 0;
  for (const LayoutFile& file : target.files) bytes += file.size_bytes;
  for (const TextFile& file : text_files) bytes += file.text.size();
  for (const CopiedFile& file : copied_files) bytes += file.size_bytes;
  return bytes;
}

}  // namespace reshard
