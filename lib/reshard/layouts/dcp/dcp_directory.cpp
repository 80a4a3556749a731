#include "reshard/layouts/dcp/dcp_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <unordered_map>

#include "reshard/base/checked.h"
#include "reshard/base/error.h"
#include "reshard/base/numbered_name.h"
#include "reshard/base/strings.h"
#include "reshard/io/read_each.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kItemsEnding = ".distcp";

constexpr NumberedName kRankMetadataName("__{rank}.metadata", UINT64_MAX);

/// Merges a rank's metadata into that of the previous ranks. Keeps entries other than tensors separate per rank.
/// \param by_path, by_name  Indices of the files and tensors in `read`.
void add_metadata(DcpMetadata other, const fs::path& where, DcpDirectory& read,
                  std::unordered_map<std::string, std::uint32_t>& by_path,
                  std::unordered_map<std::string, std::size_t>& by_name) {
  DcpMetadata& all = read.all;
  std::vector<std::uint32_t> file_of;  // file number in `other` → number in `all`; ranks may share a file
  for (std::string& file : other.files) {
    const auto [known, is_new] = by_path.emplace(file, static_cast<std::uint32_t>(all.files.size()));
    file_of.push_back(known->second);
    if (!is_new) continue;
    all.files.push_back(std::move(file));
    read.of_file.push_back(where);
  }
  const auto first_transforms = static_cast<std::uint32_t>(all.transforms.size());
  std::move(other.transforms.begin(), other.transforms.end(), std::back_inserter(all.transforms));
  for (DcpTensor& tensor : other.tensors) {
    for (DcpChunk& chunk : tensor.chunks) {
      chunk.place.file = file_of[chunk.place.file];
      chunk.place.transforms += first_transforms;
    }
    const auto [found, is_new] = by_name.emplace(tensor.name, all.tensors.size());
    if (is_new) {
      all.tensors.push_back(std::move(tensor));
      continue;
    }
    DcpTensor& known = all.tensors[found->second];
    if (known.torch_dtype != tensor.torch_dtype || known.shape != tensor.shape)
      throw Error(ErrorKind::kBadInput, fmt::format("is {} {}, but {} {} on other ranks", tensor.torch_dtype,
                                                    to_string(tensor.shape), known.torch_dtype, to_string(known.shape)))
          .in(where)
          .tensor(tensor.name)
          .hint("the files belong to several saves");
    std::move(tensor.chunks.begin(), tensor.chunks.end(), std::back_inserter(known.chunks));
  }
  std::move(other.paths.begin(), other.paths.end(), std::back_inserter(all.paths));
  for (DcpBytes& bytes : other.bytes) {
    bytes.place.file = file_of[bytes.place.file];
    bytes.place.transforms += first_transforms;
    all.bytes.push_back(std::move(bytes));
  }
}

/// Returns the number of ranks with metadata in `directory`. Cannot detect missing metadata of the last ranks.
/// \throws Error kBadInput if the metadata of any earlier rank is missing.
std::uint64_t count_ranks(Files& files, const fs::path& directory) {
  std::set<std::uint64_t> ranks;
  for (const DirectoryEntry& entry : files.list(directory))
    if (const auto numbers = kRankMetadataName.parse_printed(entry.name)) ranks.insert(numbers->at("rank"));
  std::uint64_t expected = 0;
  for (const std::uint64_t rank : ranks) {
    if (rank != expected)
      throw Error(ErrorKind::kBadInput,
                  fmt::format("is missing, although {} exists", kRankMetadataName.print({{"rank", rank}})))
          .in(directory / kRankMetadataName.print({{"rank", expected}}))
          .hint("the files of this rank were not copied, or its save is incomplete; each rank has its own tensors");
    ++expected;
  }
  return expected;
}

/// Returns the error for items without metadata, a hidden file that copies often omit.
Error lost_metadata(Files& files, const fs::path& directory) {
  std::vector<std::string> items;
  for (const DirectoryEntry& entry : files.list(directory))
    if (is_dcp_items_name(entry.name)) items.push_back(entry.name);
  std::sort(items.begin(), items.end(), natural_less);
  return Error(ErrorKind::kBadInput,
               fmt::format("contains files of torch.distributed.checkpoint ({}), but no {}, which describes them",
                           list_names(items), kDcpMetadataFile))
      .in(directory)
      .hint(fmt::format("`cp FROM/*` does not copy {}, whose name begins with a dot: copy it too, for instance with "
                        "`cp -r FROM/. TO`; if it does not exist, the save is incomplete",
                        kDcpMetadataFile));
}

}  // namespace

bool is_dcp_metadata_name(std::string_view name) {
  return name == kDcpMetadataFile || kRankMetadataName.parse_printed(name);
}

bool holds_dcp_metadata(Files& files, const fs::path& directory) {
  if (files.is_file(directory / kDcpMetadataFile)) return true;
  if (!files.is_directory(directory)) return false;
  const std::vector<DirectoryEntry> entries = files.list(directory);
  return std::any_of(entries.begin(), entries.end(), [](const DirectoryEntry& entry) {
    return entry.kind == FileKind::kFile && is_dcp_metadata_name(entry.name);
  });
}

bool is_dcp_items_name(std::string_view name) {
  return name.ends_with(kItemsEnding);
}

bool holds_dcp_items(Files& files, const fs::path& directory) {
  const std::vector<DirectoryEntry> entries = files.list(directory);
  return std::any_of(entries.begin(), entries.end(), [](const DirectoryEntry& entry) {
    return entry.kind == FileKind::kFile && is_dcp_items_name(entry.name);
  });
}

DcpDirectory read_dcp_directory(Files& files, const fs::path& directory, DcpPaths paths, Notes& notes) {
  const auto read = [&](const fs::path& path) { return read_dcp_metadata(*files.open(path), path, paths); };
  DcpDirectory metadata;
  metadata.where = directory / kDcpMetadataFile;
  if (files.is_file(metadata.where)) {
    metadata.all = read(metadata.where);
    metadata.of_file.assign(metadata.all.files.size(), metadata.where);
    return metadata;
  }
  metadata.where = directory;
  std::unordered_map<std::string, std::uint32_t> by_path;
  std::unordered_map<std::string, std::size_t> by_name;
  const std::uint64_t ranks = count_ranks(files, directory);
  if (ranks == 0) throw lost_metadata(files, directory);
  std::vector<fs::path> of_ranks;
  for (std::uint64_t rank = 0; rank < ranks; ++rank)
    of_ranks.push_back(directory / kRankMetadataName.print({{"rank", rank}}));
  auto reads = read_each(of_ranks.size(), [&](std::size_t i) { return read(of_ranks[i]); });
  for (std::size_t i = 0; i < of_ranks.size(); ++i)
    add_metadata(reads[i].get(), of_ranks[i], metadata, by_path, by_name);
  notes.assumed(fmt::format(
      "there is no {}: the metadata of {} rank{} is read; if that of later ranks is missing, this shows only in "
      "what the model lacks",
      kDcpMetadataFile, ranks, ranks == 1 ? "" : "s"));
  return metadata;
}

std::optional<std::uint64_t> dcp_file_size(Files& files, const fs::path& path) {
  return files.is_file(path) ? std::optional(files.size_bytes(path)) : std::nullopt;
}

void note_incomplete_files(const std::vector<std::optional<std::uint64_t>>& sizes_bytes, const DcpMetadata& metadata,
                           Notes& notes) {
  constexpr std::uint64_t kNoEnd = std::numeric_limits<std::uint64_t>::max();
  std::vector<std::uint64_t> ends(metadata.files.size());
  const auto add = [&](const DcpPlace& place) {
    ends[place.file] = std::max(ends[place.file], checked_add(place.offset_bytes, place.length_bytes).value_or(kNoEnd));
  };
  for (const DcpTensor& tensor : metadata.tensors)
    for (const DcpChunk& chunk : tensor.chunks) add(chunk.place);
  for (const DcpBytes& object : metadata.bytes) add(object.place);
  std::vector<std::string> incomplete;
  for (std::size_t i = 0; i < ends.size(); ++i)
    if (ends[i] > 0 && (!sizes_bytes[i] || *sizes_bytes[i] < ends[i])) incomplete.push_back(metadata.files[i]);
  if (incomplete.empty()) return;
  std::sort(incomplete.begin(), incomplete.end(), natural_less);
  notes
      .missing(
          fmt::format("the model's tensors that the metadata lists are complete, but the entries that are left out are "
                      "not: {} {} missing or cut off, so training cannot continue from this checkpoint",
                      list_names(incomplete), incomplete.size() == 1 ? "is" : "are"))
      .of(incomplete);
}

}  // namespace reshard
