#include "reshard/layouts/dcp_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <unordered_map>

#include "reshard/base/checked.h"
#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/formats/dcp_item.h"
#include "reshard/formats/dcp_metadata.h"
#include "reshard/formats/dcp_shards.h"
#include "reshard/formats/read_container.h"
#include "reshard/layouts/trained_model.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSecondNs = 1'000'000'000;
/// A save writes `.metadata` last. A copy, which may write it first, writes the next file soon after it; between two
/// saves into one directory lies the training in between.
constexpr std::int64_t kLongestCopyNs = 300 * kSecondNs;

/// In which order the elements of entry `index` are.
void take_order(const StateNames& names, std::size_t index, ChunkedTensor& tensor) {
  const Family::OtherName* other = names.others.empty() ? nullptr : names.others[index];
  tensor.stacked = other != nullptr && other->stacked();
  tensor.interleaved = other != nullptr && other->interleaved;
}

/// Finds the chunks of the tensors that the model has in the files, each of which is opened once.
class ChunkFinder {
 public:
  ChunkFinder(Files& files, const fs::path& directory, const DcpMetadata& metadata, DcpSource& source)
      : files_(files), directory_(directory), metadata_(metadata), source_(source) {}

  /// `names` are those of the metadata's tensors.
  void find(StateNames names) {
    for (std::uint32_t t = 0; t < names.names.size(); ++t) {
      if (names.names[t].empty()) continue;
      add(metadata_.tensors[t], std::move(names.names[t]));
      take_order(names, t, source_.tensors.back());
    }
    validate_chunks(source_.tensors, source_.where);
    std::sort(wanted_.begin(), wanted_.end(), [](const Wanted& a, const Wanted& b) {
      const DcpPlace &x = a.chunk->place, &y = b.chunk->place;
      return std::tie(x.file, x.offset_bytes) < std::tie(y.file, y.offset_bytes);
    });
    std::unique_ptr<DcpFile> file;
    std::uint32_t open = 0;  // the number of `file` in the metadata
    std::size_t whole = 0;   // and of all of it among those of the source
    for (const Wanted& one : wanted_) {
      const DcpPlace& place = one.chunk->place;
      if (!file || open != place.file) {
        file = std::make_unique<DcpFile>(files_, directory_ / metadata_.files[place.file]);
        open = place.file;
        add_file(*file, file->size_bytes(), {});
        whole = source_.files.size() - 1;
      }
      DcpItem item = file->find(*one.tensor, *one.chunk, metadata_.transforms[place.transforms]);
      if (item.frame) add_file(*file, item.decoded_bytes, item.frame);
      ChunkedTensor::Chunk& chunk = source_.tensors[one.index].chunks[one.chunk - one.tensor->chunks.data()];
      chunk.file = static_cast<std::uint32_t>(item.frame ? source_.files.size() - 1 : whole);
      chunk.offset_bytes = item.tensor.offset_bytes;
      chunk.strides = std::move(item.tensor.strides);
    }
    validate_times();
  }

 private:
  struct Wanted {
    std::uint32_t index;  // into DcpSource::tensors
    const DcpTensor* tensor;
    const DcpChunk* chunk;
  };

  void add_file(const DcpFile& file, std::uint64_t size_bytes, const std::optional<ZstdFrame>& frame) {
    source_.files.push_back({file.path(), size_bytes});
    source_.files.back().stamp = file.stamp();
    source_.files.back().frame = frame;
  }

  void add(const DcpTensor& tensor, std::string name) {
    if (!tensor.dtype)
      throw Error(ErrorKind::kUnsupported,
                  "is of dtype " + printable(tensor.torch_dtype) + ", which safetensors does not have")
          .in(source_.where)
          .tensor(tensor.name);
    const auto index = static_cast<std::uint32_t>(source_.tensors.size());
    source_.tensors.push_back({tensor.name, std::move(name), *tensor.dtype, tensor.shape, {}});
    source_.tensors.back().chunks.reserve(tensor.chunks.size());
    for (const DcpChunk& chunk : tensor.chunks) {
      source_.tensors.back().chunks.push_back({chunk.box});
      wanted_.push_back({index, &tensor, &chunk});
    }
  }

  /// torch writes into files that are there already, and `.metadata` last: what is newer is of a save that did not
  /// finish, and torch itself would read a mixture of two steps.
  void validate_times() const {
    if (source_.where == directory_) return;  // each rank has metadata of its own
    const auto saved = files_.modified_ns(source_.where);
    const TensorFile* next = nullptr;  // the first that was written after it
    std::int64_t next_ns = 0;
    for (const TensorFile& file : source_.files) {
      const auto written = files_.modified_ns(file.path);
      if (!saved || !written || *written <= *saved || (next != nullptr && *written >= next_ns)) continue;
      next = &file;
      next_ns = *written;
    }
    if (next == nullptr || next_ns - *saved <= kLongestCopyNs) return;
    throw Error(ErrorKind::kBadInput,
                fmt::format("was written {} minutes after .metadata, which a save writes last: a later save into this "
                            "directory did not finish, and its files may be of two steps",
                            (next_ns - *saved) / (60 * kSecondNs)))
        .in(next->path)
        .hint("take another checkpoint; if it is a copy that was made without the times of its files, `touch " +
              source_.where.string() + "` says so");
  }

  Files& files_;
  const fs::path& directory_;
  const DcpMetadata& metadata_;
  DcpSource& source_;
  std::vector<Wanted> wanted_;
};

constexpr const char* kFirstMetadataFile = "__0.metadata";

/// The number in "__12.metadata", which a rank writes that saves without the others (2.9, use_collectives=False).
std::optional<std::uint64_t> rank_of_metadata(std::string_view name) {
  constexpr std::string_view kBegin = "__";
  if (!name.starts_with(kBegin) || !name.ends_with(kDcpMetadataFile)) return std::nullopt;
  name.remove_prefix(kBegin.size());
  name.remove_suffix(std::string_view(kDcpMetadataFile).size());
  return parse_unsigned(name);
}

/// Adds what a rank's metadata says to that of the ranks before it. Entries that are no tensors are each rank's own.
void add_metadata(DcpMetadata other, const fs::path& where, DcpMetadata& all,
                  std::unordered_map<std::string, std::size_t>& by_name) {
  const auto first_file = static_cast<std::uint32_t>(all.files.size());
  const auto first_transforms = static_cast<std::uint32_t>(all.transforms.size());
  std::move(other.files.begin(), other.files.end(), std::back_inserter(all.files));
  std::move(other.transforms.begin(), other.transforms.end(), std::back_inserter(all.transforms));
  for (DcpTensor& tensor : other.tensors) {
    for (DcpChunk& chunk : tensor.chunks) {
      chunk.place.file += first_file;
      chunk.place.transforms += first_transforms;
    }
    const auto [found, is_new] = by_name.emplace(tensor.name, all.tensors.size());
    if (is_new) {
      all.tensors.push_back(std::move(tensor));
      continue;
    }
    DcpTensor& known = all.tensors[found->second];
    if (known.torch_dtype != tensor.torch_dtype || known.shape != tensor.shape)
      throw Error(ErrorKind::kBadInput, fmt::format("is {} {}, but {} {} by other ranks", tensor.torch_dtype,
                                                    to_string(tensor.shape), known.torch_dtype, to_string(known.shape)))
          .in(where)
          .tensor(tensor.name)
          .hint("the files are of several saves");
    std::move(tensor.chunks.begin(), tensor.chunks.end(), std::back_inserter(known.chunks));
  }
  for (DcpBytes& bytes : other.bytes) {
    bytes.place.file += first_file;
    bytes.place.transforms += first_transforms;
    all.bytes.push_back(std::move(bytes));
  }
}

DcpMetadata read_all_metadata(Files& files, const fs::path& directory, DcpSource& source) {
  const auto read = [&](const fs::path& path) { return read_dcp_metadata(*files.open(path), path); };
  source.where = directory / kDcpMetadataFile;
  if (files.is_file(source.where)) return read(source.where);
  source.where = directory;
  DcpMetadata all;
  std::unordered_map<std::string, std::size_t> by_name;
  std::size_t ranks = 0;
  for (const DirectoryEntry& entry : files.list(directory)) {
    if (!rank_of_metadata(entry.name)) continue;
    add_metadata(read(directory / entry.name), directory / entry.name, all, by_name);
    ++ranks;
  }
  source.notes.push_back(
      fmt::format("there is no {}: the metadata of {} rank{} is read", kDcpMetadataFile, ranks, ranks == 1 ? "" : "s"));
  return all;
}

/// Adds a file's tensors as chunks to those that have the same names.
void add_shard(const Container& file, const std::vector<Dims>& offsets, DcpSource& source,
               std::map<std::string, std::size_t>& by_name) {
  const auto index = static_cast<std::uint32_t>(source.files.size());
  source.files.push_back({file.path, file.size_bytes});
  source.files.back().stamp = file.files.front().stamp;
  for (std::size_t t = 0; t < file.tensors.size(); ++t) {
    const TensorEntry& entry = file.tensors[t];
    const auto [found, is_new] = by_name.emplace(entry.name, source.tensors.size());
    if (is_new) source.tensors.push_back({entry.name, {}, entry.dtype, entry.shape, {}});
    ChunkedTensor& tensor = source.tensors[found->second];
    if (tensor.dtype != entry.dtype || tensor.shape.size() != entry.shape.size())
      throw Error(ErrorKind::kBadInput, fmt::format("is {} of {} dims, but {} of {} in another file", name(entry.dtype),
                                                    entry.shape.size(), name(tensor.dtype), tensor.shape.size()))
          .in(file.path)
          .tensor(entry.name)
          .hint("the files are of several saves");
    if (num_elems(entry.shape) == 0u) continue;  // of a rank without a share
    if (tensor.chunks.empty()) tensor.shape = Dims(entry.shape.size());
    for (std::size_t d = 0; d < entry.shape.size(); ++d) {
      const auto end = checked_add(offsets[t][d], entry.shape[d]);
      if (!end) throw Error(ErrorKind::kBadInput, "its end overflows 64 bits").in(file.path).tensor(entry.name);
      tensor.shape[d] = std::max(tensor.shape[d], *end);
    }
    tensor.chunks.push_back({{offsets[t], entry.shape}, index, entry.offset_bytes, {}});
  }
}

}  // namespace

DcpSource read_dcp_source(Files& files, const fs::path& directory, const Family* family) {
  DcpSource source;
  const DcpMetadata metadata = read_all_metadata(files, directory, source);
  std::vector<StateEntry> entries;
  entries.reserve(metadata.tensors.size());
  for (const DcpTensor& tensor : metadata.tensors)
    entries.push_back({tensor.name, tensor.dtype ? num_bytes(*tensor.dtype, tensor.shape).value_or(0) : 0});
  StateNames names = names_in_model(entries, family, source.where, source.notes);
  leave_out_others(entries, names.names, source.beside, source.notes);
  if (metadata.bytes.size() == 1)
    source.notes.push_back(printable(metadata.bytes.front().name) + ", which is no tensor, is left out");
  else if (!metadata.bytes.empty())
    source.notes.push_back(fmt::format("{} entries that are no tensors are left out, as {}", metadata.bytes.size(),
                                       printable(metadata.bytes.front().name)));
  ChunkFinder(files, directory, metadata, source).find(std::move(names));
  return source;
}

bool holds_dcp_metadata(Files& files, const fs::path& directory) {
  return files.is_file(directory / kDcpMetadataFile) || files.is_file(directory / kFirstMetadataFile);
}

bool holds_dcp_shards(Files& files, const fs::path& directory) {
  const std::vector<DirectoryEntry> entries = files.list(directory);
  return std::any_of(entries.begin(), entries.end(), [](const DirectoryEntry& entry) {
    return entry.kind == FileKind::kFile && is_dcp_shard_name(entry.name);
  });
}

DcpSource read_dcp_shards(Files& files, const fs::path& directory, const Family* family) {
  DcpSource source;
  source.format = Format::kSafetensors;
  source.where = directory;
  std::map<std::string, std::size_t> by_name;
  for (const DirectoryEntry& entry : files.list(directory)) {
    if (!is_dcp_shard_name(entry.name)) continue;
    const Container file = read_container(files, directory / entry.name, Format::kSafetensors);
    add_shard(file, read_saved_offsets(file), source, by_name);
  }
  std::vector<StateEntry> entries;
  for (ChunkedTensor& tensor : source.tensors) {
    const auto bytes = num_bytes(tensor.dtype, tensor.shape);
    if (!bytes)
      throw Error(ErrorKind::kBadInput, "its chunks lie too far apart for any tensor")
          .in(directory)
          .tensor(tensor.entry);
    entries.push_back({tensor.entry, *bytes});
  }
  StateNames names = names_in_model(entries, family, source.where, source.notes);
  leave_out_others(entries, names.names, source.beside, source.notes);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    source.tensors[i].name = std::move(names.names[i]);
    take_order(names, i, source.tensors[i]);
  }
  std::erase_if(source.tensors, [](const ChunkedTensor& tensor) { return tensor.name.empty(); });
  validate_chunks(source.tensors, directory);
  return source;
}

}  // namespace reshard
