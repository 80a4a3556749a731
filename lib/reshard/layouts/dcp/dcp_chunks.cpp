#include "reshard/layouts/dcp/dcp_chunks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/io/files.h"
#include "reshard/io/read_each.h"

namespace reshard {

ChunkedTensor& DcpChunkFinder::add(const DcpTensor& tensor, std::string name) {
  if (!tensor.dtype)
    throw Error(ErrorKind::kUnsupported,
                "has the dtype " + printable(tensor.torch_dtype) + ", which safetensors does not support")
        .in(where_)
        .tensor(tensor.name);
  const auto index = static_cast<std::uint32_t>(tensors_.size());
  tensors_.push_back({tensor.name, std::move(name), *tensor.dtype, tensor.shape, {}});
  tensors_.back().chunks.reserve(tensor.chunks.size());
  for (const DcpChunk& chunk : tensor.chunks) {
    wanted_.push_back(
        {index, static_cast<std::uint32_t>(tensors_.back().chunks.size()), &chunk.place, &tensor, &chunk, nullptr});
    tensors_.back().chunks.push_back({chunk.box});
  }
  return tensors_.back();
}

ChunkedTensor& DcpChunkFinder::add(const std::vector<const DcpBytes*>& objects, std::string name) {
  const auto index = static_cast<std::uint32_t>(tensors_.size());
  tensors_.push_back({objects.front()->name, std::move(name), DType::kU8, {}, {}});
  tensors_.back().role = TensorRole::kObject;
  for (const DcpBytes* object : objects) {
    wanted_.push_back(
        {index, static_cast<std::uint32_t>(tensors_.back().chunks.size()), &object->place, nullptr, nullptr, object});
    tensors_.back().chunks.emplace_back();
  }
  return tensors_.back();
}

namespace {

namespace fs = std::filesystem;

/// A file of items and its metadata file, `.metadata` or `__R.metadata`.
struct DcpSavedFile {
  std::filesystem::path path;
  std::filesystem::path metadata;
  std::uint64_t size_bytes = 0;
  bool is_read = true;  // false, for instance, for the optimizer's files, which only delay a copy
};

constexpr std::int64_t kSecondNs = 1'000'000'000;
/// Tolerance for unsynchronized clocks and short copies.
constexpr std::int64_t kNotableNs = 5 * kSecondNs;
/// Ranks that save independently start at different times, but within one training step.
constexpr std::int64_t kRanksNs = 60 * kSecondNs;
/// Rate of a copy over a shared network. A higher rate would reject slow copies; a lower rate would mistake more
/// interrupted saves for copies.
constexpr std::uint64_t kSlowestBytesPerSecond = std::uint64_t{32} << 20;
constexpr std::int64_t kLongestCopyNs = 300 * kSecondNs;  // limit per file

std::int64_t longest_gap_ns(std::int64_t base_ns, std::uint64_t size_bytes) {
  const std::uint64_t most_seconds = kLongestCopyNs / kSecondNs;
  const std::uint64_t seconds = std::min(size_bytes / kSlowestBytesPerSecond, most_seconds);
  return std::min(kLongestCopyNs, base_ns + static_cast<std::int64_t>(seconds) * kSecondNs);
}

std::string duration(std::int64_t ns) {
  const std::int64_t seconds = ns / kSecondNs;
  return seconds < 120 ? fmt::format("{} seconds", seconds) : fmt::format("{} minutes", seconds / 60);
}

struct Written {
  std::int64_t at_ns = 0;
  const fs::path* path = nullptr;
  std::uint64_t size_bytes = 0;
  bool is_read = true;
};

/// Summary of the files that are newer than their metadata, for one note.
struct Newer {
  std::size_t count = 0;
  const fs::path* first = nullptr;
  std::int64_t longest_ns = 0;
};

/// Validates the times of files that are newer than their metadata, and adds the files to `newer`.
/// \param files  The files of `metadata`, sorted by time.
void validate_newer(const fs::path& metadata, std::int64_t saved_ns, const std::vector<Written>& files, Newer& newer) {
  const auto next =
      std::find_if(files.begin(), files.end(), [&](const Written& file) { return file.at_ns > saved_ns; });
  if (next == files.end()) return;
  std::int64_t before_ns = saved_ns;
  for (auto file = next; file != files.end(); ++file) {
    // A copy starts each file as soon as the previous file is complete.
    if (file->is_read && file->at_ns - before_ns > longest_gap_ns(kNotableNs, file->size_bytes))
      throw Error(ErrorKind::kBadInput,
                  fmt::format("was written {} after {}, which a save writes last: a later save into this directory was "
                              "interrupted, and its files may belong to two steps",
                              duration(file->at_ns - saved_ns), metadata.filename().string()))
          .in(*file->path)
          .hint(
              fmt::format("use another checkpoint; only if it is a copy that did not preserve times: `touch {0}`, or, "
                          "to leave it as it is, copy {1} and link the other files into a new directory",
                          metadata.string(), metadata.filename().string()));
    before_ns = file->at_ns;
    if (!file->is_read || file->at_ns - saved_ns <= kNotableNs) continue;
    if (newer.count++ == 0) newer.first = file->path;
    newer.longest_ns = std::max(newer.longest_ns, file->at_ns - saved_ns);
  }
}

/// Validates that ranks with separate metadata were saved at the same step.
/// \param all  Files and metadata of all ranks, sorted by time.
void validate_ranks(const std::vector<Written>& all) {
  for (std::size_t i = 1; i < all.size(); ++i) {
    const std::int64_t gap_ns = all[i].at_ns - all[i - 1].at_ns;
    if (all[i].is_read && gap_ns > longest_gap_ns(kRanksNs, all[i].size_bytes))
      throw Error(
          ErrorKind::kBadInput,
          fmt::format("was written {} after {}, which belongs to an earlier save: ranks of two steps would be mixed",
                      duration(gap_ns), all[i - 1].path->filename().string()))
          .in(*all[i].path)
          .hint("use another checkpoint; only if it is a copy that did not preserve times: `touch " +
                (all[i].path->parent_path() / "*").string() + "`, and the `*.metadata` after that");
  }
}

/// Whether every file is newer than all metadata, beyond the tolerance of clocks. A download starts with the small
/// metadata and may take hours. If a later save caused this instead, it rewrote every file, so no steps are mixed.
bool are_all_newer(Files& files, const std::map<fs::path, std::vector<Written>>& by_metadata) {
  for (const auto& [metadata, written] : by_metadata) {
    const auto saved_ns = files.modified_ns(metadata);
    if (!saved_ns) return false;
    for (const auto& [other, later] : by_metadata)
      if (std::any_of(later.begin(), later.end(),
                      [&](const Written& file) { return file.at_ns - *saved_ns <= kNotableNs; }))
        return false;
  }
  return true;
}

/// Validates modification times to detect an interrupted save. torch rewrites files in place and writes metadata last,
/// so an interrupted save leaves files that are newer than their metadata, and torch itself would read a mixture of two
/// steps. A copy that does not preserve times also has newer files, but starts each file as soon as the previous one is
/// complete. Each newer file may therefore be later than the previous file only by the time to copy its bytes. If each
/// rank has its own metadata, this limit applies to the files of all ranks. No limit applies if all files are newer
/// (are_all_newer). `notes` receives a note if newer files may be due to either cause. No-op if the storage does not
/// record times.
/// \throws Error kBadInput for a file that is later than this; kIo.
void validate_dcp_times(Files& files, std::span<const DcpSavedFile> saved, Notes& notes) {
  std::map<fs::path, std::vector<Written>> by_metadata;
  for (const DcpSavedFile& file : saved)
    if (const auto at_ns = files.modified_ns(file.path))
      by_metadata[file.metadata].push_back({*at_ns, &file.path, file.size_bytes, file.is_read});
  const auto by_time = [](const Written& a, const Written& b) {
    return std::tie(a.at_ns, *a.path) < std::tie(b.at_ns, *b.path);
  };
  if (!by_metadata.empty() && are_all_newer(files, by_metadata)) {
    notes.mismatch(
        "every file was written after the metadata, which a save writes last: a download has this effect; if instead a "
        "later save was interrupted before it wrote the metadata, the values are those of that save");
    return;
  }
  Newer newer;
  std::vector<Written> all;
  for (auto& [metadata, written] : by_metadata) {
    const auto saved_ns = files.modified_ns(metadata);
    if (!saved_ns) continue;
    std::sort(written.begin(), written.end(), by_time);
    validate_newer(metadata, *saved_ns, written, newer);
    all.insert(all.end(), written.begin(), written.end());
    all.push_back({*saved_ns, &metadata, 0});
  }
  if (by_metadata.size() > 1) {
    std::sort(all.begin(), all.end(), by_time);
    validate_ranks(all);
  }
  if (newer.count == 0) return;
  notes.mismatch(
      fmt::format("{} file{} written up to {} after the metadata, which a save writes last, such as {}: a copy that "
                  "does not preserve times has this effect; but if a later save into this directory was interrupted, "
                  "the output mixes two steps",
                  newer.count, newer.count == 1 ? " was" : "s were", duration(newer.longest_ns),
                  printable(newer.first->filename().string())));
}

/// Adds the archive at `place` unless it is the last of `archives`, as for tied tensors, which share an archive.
/// \param archives  Archives at smaller or equal offsets, in ascending order.
void add_archive(std::vector<SourceFile::Archive>& archives, const DcpPlace& place) {
  if (archives.empty() || archives.back().offset_bytes != place.offset_bytes)
    archives.push_back({place.offset_bytes, place.length_bytes});
}

}  // namespace

std::vector<ChunkedTensor> DcpChunkFinder::find() {
  validate_chunks(tensors_, where_);
  std::sort(wanted_.begin(), wanted_.end(), [](const Wanted& a, const Wanted& b) { return a.key() < b.key(); });
  validate_places();
  std::vector<std::span<const Wanted>> by_file;
  for (auto begin = wanted_.begin(); begin != wanted_.end();) {
    const auto end =
        std::find_if(begin, wanted_.end(), [&](const Wanted& one) { return one.place->file != begin->place->file; });
    by_file.emplace_back(begin, end);
    begin = end;
  }
  auto reads = read_each(by_file.size(), [&](std::size_t i) { return find_in_file(by_file[i]); });
  std::vector<DcpSavedFile> saved;
  sizes_.resize(metadata_.files.size());
  for (std::size_t i = 0; i < by_file.size(); ++i) {
    FoundInFile in_file = reads[i].get();
    const SourceFile& whole = in_file.files.front();
    const std::uint32_t number = by_file[i].front().place->file;
    sizes_[number] = whole.size_bytes;
    saved.push_back({whole.path, of_file_[number], whole.size_bytes});
    const auto first = static_cast<std::uint32_t>(found_.size());
    std::move(in_file.files.begin(), in_file.files.end(), std::back_inserter(found_));
    auto object_bytes = in_file.object_bytes.begin();
    for (const Wanted& one : by_file[i]) {
      ChunkedTensor::Chunk& chunk = tensors_[one.index].chunks[one.number];
      chunk.file += first;
      if (one.object != nullptr) set_size(tensors_[one.index], chunk, *object_bytes++);
    }
  }
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    if (sizes_[i]) continue;
    const std::filesystem::path path = directory_ / metadata_.files[i];
    if ((sizes_[i] = dcp_file_size(files_, path))) saved.push_back({path, of_file_[i], *sizes_[i], false});
  }
  validate_dcp_times(files_, saved, notes_);
  return std::move(tensors_);
}

/// Validates that items do not overlap, and that two chunks of a tensor are not the same item. Two names of a tied
/// parameter may be one item. If torch writes safetensors, all items of a file have the same place and are found by
/// tensor name.
void DcpChunkFinder::validate_places() const {
  for (std::size_t i = 1; i < wanted_.size(); ++i) {
    const Wanted &a = wanted_[i - 1], &b = wanted_[i];
    if (a.place->file != b.place->file) continue;
    const bool is_one = *a.place == *b.place;
    const bool overlap = !is_one && b.place->offset_bytes - a.place->offset_bytes < a.place->length_bytes;
    if (!overlap && !(is_one && a.index == b.index && b.tensor != nullptr)) continue;
    const std::string& entry = tensors_[b.index].entry;
    throw Error(
        ErrorKind::kBadInput,
        overlap ? fmt::format(".metadata assigns it bytes that also belong to {}", printable(tensors_[a.index].entry))
                : fmt::format("its chunks at {} and {} would be the same item of this file",
                              to_string(a.chunk->box.begin), to_string(b.chunk->box.begin)))
        .in(directory_ / metadata_.files[b.place->file])
        .tensor(entry)
        .hint(
            "torch keeps only the last chunk of a tensor in a file of SerializationFormat.SAFETENSORS: save again "
            "without");
  }
}

DcpChunkFinder::FoundInFile DcpChunkFinder::find_in_file(std::span<const Wanted> wanted) {
  DcpFile file(files_, directory_ / metadata_.files[wanted.front().place->file]);
  FoundInFile found;
  const auto add = [&](std::uint64_t size_bytes, const std::optional<ZstdFrame>& frame) {
    found.files.push_back({{file.path(), size_bytes}});
    found.files.back().stamp = file.stamp();
    found.files.back().frame = frame;
  };
  add(file.size_bytes(), {});
  for (const Wanted& one : wanted) {
    const DcpPlace& place = *one.place;
    const std::vector<std::string>& transforms = metadata_.transforms[place.transforms];
    DcpItem item =
        one.tensor != nullptr ? file.find(*one.tensor, *one.chunk, transforms) : file.find(*one.object, transforms);
    if (item.frame && found.files.back().frame != item.frame) add(item.decoded_bytes, item.frame);
    if (!item.frame && file.has_archives()) add_archive(found.files.front().archives, place);
    ChunkedTensor::Chunk& chunk = tensors_[one.index].chunks[one.number];  // modified only by this file's task
    chunk.file = static_cast<std::uint32_t>(item.frame ? found.files.size() - 1 : 0);
    chunk.offset_bytes = item.tensor.offset_bytes;
    chunk.strides = std::move(item.tensor.strides);
    if (one.object != nullptr) found.object_bytes.push_back(item.tensor.size_bytes);
  }
  return found;
}

void DcpChunkFinder::set_size(ChunkedTensor& object, ChunkedTensor::Chunk& chunk, std::uint64_t size_bytes) const {
  if (object.shape.empty()) object.shape = {size_bytes};
  if (object.shape != Dims{size_bytes})
    throw Error(ErrorKind::kUnsupported,
                fmt::format("is an object of {} bytes on one rank, and of {} on another", object.shape[0], size_bytes))
        .in(where_)
        .tensor(object.entry)
        .hint("only objects that are equal on all ranks can be converted: leave out `with-optimizer`");
  chunk.box = whole(object.shape);
}

}  // namespace reshard
