#include "reshard/formats/torch/torch_file.h"

#include <algorithm>

#include "reshard/base/strings.h"
#include "reshard/formats/common/little_endian.h"
#include "reshard/formats/common/magic.h"
#include "reshard/formats/safetensors/safetensors.h"
#include "reshard/formats/torch/torch_legacy.h"
#include "reshard/formats/zip/zip.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kFirstLookBytes = 512;  // a tar's magic is at 257
constexpr std::uint64_t kMaxByteorderBytes = 16;

Error bad(const fs::path& path, std::string message) {
  return Error(ErrorKind::kBadInput, std::move(message)).in(path);
}

Error unsupported(const fs::path& path, std::string message) {
  return Error(ErrorKind::kUnsupported, std::move(message)).in(path);
}

bool looks_like_safetensors(std::string_view start, std::uint64_t file_bytes) {
  if (start.size() < 9 || start[8] != '{') return false;
  const auto header_bytes = load_le<std::uint64_t>(start, 0);
  return header_bytes <= kMaxHeaderBytes && header_bytes <= file_bytes - 8;
}

/// What is neither an archive nor a stream, by its first bytes.
void refuse_other_formats(std::string_view start, std::uint64_t file_bytes, const fs::path& path) {
  refuse_foreign(start, path);
  if (start.empty()) throw bad(path, "is empty").hint("fetch or save it again");
  if (looks_like_safetensors(start, file_bytes))
    throw bad(path, "is a safetensors file, though its name says otherwise").hint("give it a name in .safetensors");
  if (start.starts_with("PYTORCH1"))
    throw unsupported(path, "is of a preview of torch's format that no release has written");
  if (start.size() > 262 && start.substr(257, 5) == "ustar")
    throw unsupported(path, "is a tar archive, as torch before 0.1.10 wrote them")
        .hint("load it with an old torch and save it again");
}

/// The name of the folder that all entries of a torch archive are in, with its slash.
std::string archive_prefix(const ZipDirectory& zip, const fs::path& path) {
  const std::string first = zip.entries().empty() ? std::string() : zip.entries().front().name;
  const std::size_t slash = first.find('/');
  const std::string prefix = first.substr(0, slash == first.npos ? 0 : slash + 1);
  if (zip.find(prefix + "constants.pkl") != nullptr)
    throw unsupported(path, "is a TorchScript program (torch.jit.save), not a state dict")
        .hint("load it with torch.jit.load and save its state_dict() with torch.save or safetensors");
  if (prefix.empty() || zip.find(prefix + "data.pkl") == nullptr)
    throw bad(path, "is a zip archive, but not one that torch.save wrote: it has no data.pkl");
  for (const ZipEntry& entry : zip.entries())
    if (entry.compressed)
      throw unsupported(path, "the zip entry " + printable(entry.name) +
                                  " is compressed; torch stores its entries as "
                                  "they are")
          .at_byte(entry.offset_bytes)
          .hint(
              "another program has packed the file again: unpack it and `zip -0 -r` the same folder, or save it again");
  return prefix;
}

void refuse_big_endian(const Source& source, const ZipEntry* byteorder, const fs::path& path) {
  if (byteorder == nullptr) return;  // files before torch 2.1 do not say, and are little-endian
  std::string order(std::min(byteorder->size_bytes, kMaxByteorderBytes), '\0');
  source.read_at(byteorder->offset_bytes, std::as_writable_bytes(std::span(order)));
  if (order == "big") throw unsupported(path, "was saved on a big-endian machine").at_byte(byteorder->offset_bytes);
  if (order != "little") throw bad(path, "has an unknown byteorder").at_byte(byteorder->offset_bytes);
}

FileMetadata read_metadata_entry(const Source& source, const ZipEntry* entry, const fs::path& path) {
  if (entry == nullptr) return {};
  if (entry->size_bytes > kMaxArchiveMetadataBytes)
    throw unsupported(path, "its zip entry " + printable(entry->name) + " has " + format_bytes(entry->size_bytes) +
                                ", more than the " + format_bytes(kMaxArchiveMetadataBytes) + " that are read")
        .at_byte(entry->offset_bytes);
  std::string text(entry->size_bytes, '\0');
  source.read_at(entry->offset_bytes, std::as_writable_bytes(std::span(text)));
  return parse_archive_metadata(text, path, entry->offset_bytes);
}

TorchFile read_torch_archive(const Source& source, const fs::path& path) {
  const ZipDirectory zip = read_zip(source, path);
  const std::string prefix = archive_prefix(zip, path);
  refuse_big_endian(source, zip.find(prefix + "byteorder"), path);
  const ZipEntry& stream = *zip.find(prefix + "data.pkl");
  if (stream.size_bytes > kMaxPickleBytes)
    throw unsupported(path, "its pickle has " + format_bytes(stream.size_bytes) + ", more than the " +
                                format_bytes(kMaxPickleBytes) + " that are read")
        .at_byte(stream.offset_bytes)
        .hint("save the state dict alone, without what surrounds it");
  std::vector<char> bytes(stream.size_bytes);
  source.read_at(stream.offset_bytes, std::as_writable_bytes(std::span(bytes)));
  Pickle pickle = read_pickle({bytes.data(), bytes.size()}, path, stream.offset_bytes);
  if (pickle.size_bytes() != stream.size_bytes)
    throw bad(path, "has something after its pickle").at_byte(stream.offset_bytes + pickle.size_bytes());

  const std::string data = prefix + "data/";
  std::vector<TorchStorage> storages;
  for (const ZipEntry& entry : zip.entries())
    if (entry.name.starts_with(data))
      storages.push_back({entry.name.substr(data.size()), entry.offset_bytes, entry.size_bytes});
  std::sort(storages.begin(), storages.end(),
            [](const TorchStorage& a, const TorchStorage& b) { return a.key < b.key; });
  FileMetadata metadata = read_metadata_entry(source, zip.find(prefix + kArchiveMetadataEntry), path);
  return {path, source.size_bytes(), std::move(bytes), std::move(pickle), std::move(storages), std::move(metadata)};
}

}  // namespace

TorchFile::TorchFile(fs::path path, std::uint64_t size_bytes, std::vector<char> stream, Pickle pickle,
                     std::vector<TorchStorage> storages, FileMetadata metadata)
    : path_(std::move(path)),
      size_bytes_(size_bytes),
      stream_(std::move(stream)),
      pickle_(std::move(pickle)),
      storages_(std::move(storages)),
      metadata_(std::move(metadata)) {}

TorchFile read_torch_file(const Source& source, const fs::path& path) {
  const std::string start = first_bytes(source, kFirstLookBytes);
  if (start.starts_with("PK\3\4")) return read_torch_archive(source, path);
  refuse_other_formats(start, source.size_bytes(), path);
  if (start[0] == '\x80' || start[0] == 'L') return read_torch_stream(source, path);
  throw bad(path, "is not a file of torch.save: it is neither a zip archive nor a pickle");
}

}  // namespace reshard
