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
                "is of dtype " + printable(tensor.torch_dtype) + ", which safetensors does not have")
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

/// A file of items, and the `.metadata` (or `__R.metadata`) that says what is in it.
struct DcpSavedFile {
  std::filesystem::path path;
  std::filesystem::path metadata;
  std::uint64_t size_bytes = 0;
  bool is_read = true;  // else it is the optimizer's, say, and only takes its time in a copy
};

constexpr std::int64_t kSecondNs = 1'000'000'000;
/// What clocks of machines and a short copy may differ by.
constexpr std::int64_t kNotableNs = 5 * kSecondNs;
/// Ranks that save without the others begin at other times, but within one step of the training.
constexpr std::int64_t kRanksNs = 60 * kSecondNs;
/// A copy that shares its network with others; a faster rate would refuse copies, a slower one would take more of the
/// saves that were cut off for copies.
constexpr std::uint64_t kSlowestBytesPerSecond = std::uint64_t{32} << 20;
constexpr std::int64_t kLongestCopyNs = 300 * kSecondNs;  // of one file

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

/// What the files that are newer than their metadata have in common, for one note.
struct Newer {
  std::size_t count = 0;
  const fs::path* first = nullptr;
  std::int64_t longest_ns = 0;
};

/// \param files  those of `metadata`, by time.
void validate_newer(const fs::path& metadata, std::int64_t saved_ns, const std::vector<Written>& files, Newer& newer) {
  const auto next =
      std::find_if(files.begin(), files.end(), [&](const Written& file) { return file.at_ns > saved_ns; });
  if (next == files.end()) return;
  std::int64_t before_ns = saved_ns;
  for (auto file = next; file != files.end(); ++file) {
    // A copy writes the next file as soon as it has written the one before.
    if (file->is_read && file->at_ns - before_ns > longest_gap_ns(kNotableNs, file->size_bytes))
      throw Error(ErrorKind::kBadInput,
                  fmt::format("was written {} after {}, which a save writes last: a later save into this directory was "
                              "cut off, and its files may be of two steps",
                              duration(file->at_ns - saved_ns), metadata.filename().string()))
          .in(*file->path)
          .hint("take another checkpoint; only if it is a copy that did not keep times: `touch " + metadata.string() +
                "`");
    before_ns = file->at_ns;
    if (!file->is_read || file->at_ns - saved_ns <= kNotableNs) continue;
    if (newer.count++ == 0) newer.first = file->path;
    newer.longest_ns = std::max(newer.longest_ns, file->at_ns - saved_ns);
  }
}

/// Each rank has metadata of its own, which may be of another step than those of other ranks.
/// \param all  files and metadata, by time.
void validate_ranks(const std::vector<Written>& all) {
  for (std::size_t i = 1; i < all.size(); ++i) {
    const std::int64_t gap_ns = all[i].at_ns - all[i - 1].at_ns;
    if (all[i].is_read && gap_ns > longest_gap_ns(kRanksNs, all[i].size_bytes))
      throw Error(ErrorKind::kBadInput,
                  fmt::format("was written {} after {}, which is of an earlier save: ranks of two steps would be mixed",
                              duration(gap_ns), all[i - 1].path->filename().string()))
          .in(*all[i].path)
          .hint("take another checkpoint; only if it is a copy that did not keep times: `touch " +
                (all[i].path->parent_path() / "*").string() + "`, and the `*.metadata` after that");
  }
}

/// Compares the times of files: torch rewrites files in place and metadata last, so that a save that was
/// cut off leaves files that are newer than their metadata, and torch itself would read a mixture of two steps. A copy
/// that does not keep times has such files, too, but writes the next file as soon as it has written metadata. So each
/// newer file may come as much later than the one before as its bytes take to copy; where each rank has metadata of its
/// own, so may each next file of all ranks. `notes` gets one for what may be either.
/// \throws Error kBadInput for a file that came later; kIo.
/// Does nothing where the storage has no times.
void validate_dcp_times(Files& files, std::span<const DcpSavedFile> saved, std::vector<std::string>& notes) {
  std::map<fs::path, std::vector<Written>> by_metadata;
  for (const DcpSavedFile& file : saved)
    if (const auto at_ns = files.modified_ns(file.path))
      by_metadata[file.metadata].push_back({*at_ns, &file.path, file.size_bytes, file.is_read});
  const auto by_time = [](const Written& a, const Written& b) {
    return std::tie(a.at_ns, *a.path) < std::tie(b.at_ns, *b.path);
  };
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
  notes.push_back(fmt::format(
      "{} file{} written up to {} after the metadata, which a save writes last, such as {}: a copy that does not keep "
      "times does that; but if a later save into this directory was cut off, the output mixes two steps",
      newer.count, newer.count == 1 ? " was" : "s were", duration(newer.longest_ns),
      printable(newer.first->filename().string())));
}

/// \param archives  of the places before, in ascending order: tied tensors have one in common.
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

/// Two names of a tied parameter may be one item. But two chunks of a tensor are not, nor do two items overlap.
/// Where torch writes safetensors, all items of a file have one place, and go by the names of tensors.
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
        overlap ? fmt::format(".metadata puts it into bytes that belong to {}, too", printable(tensors_[a.index].entry))
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
    ChunkedTensor::Chunk& chunk = tensors_[one.index].chunks[one.number];  // of this file alone
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
        .hint("only what all ranks have in common can be carried over: do without `with-optimizer`");
  chunk.box = whole(object.shape);
}

}  // namespace reshard
