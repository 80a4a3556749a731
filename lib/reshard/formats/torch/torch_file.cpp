#include "reshard/formats/torch/torch_file.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>

#include "reshard/base/checked.h"
#include "reshard/base/strings.h"
#include "reshard/formats/common/little_endian.h"
#include "reshard/formats/common/magic.h"
#include "reshard/formats/safetensors/safetensors.h"
#include "reshard/formats/torch/torch_storage.h"
#include "reshard/formats/zip/zip.h"
#include "reshard/io/files.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagicBytes = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
constexpr std::string_view kMagicDigits = "119547037146038801333356";  // in protocol 0
constexpr std::int64_t kStreamProtocol = 1001;
constexpr std::uint64_t kFirstWindowBytes = std::uint64_t{1} << 20;

/// Contents of the pickles at the start of the stream.
struct StreamHead {
  Pickle object;
  std::vector<std::string> keys;
  std::uint64_t data_at = 0;  // offset of the first storage in the file
};

class StreamReader {
 public:
  StreamReader(const Source& source, const std::filesystem::path& path)
      : source_(source), path_(path), file_bytes_(source.size_bytes()) {}

  TorchFile read() {
    // The pickles have no recorded length: reads a growing part of the file until they are complete.
    const std::uint64_t most = std::min(file_bytes_, kMaxPickleBytes);
    std::vector<char> window;
    std::uint64_t window_bytes = std::min(most, kFirstWindowBytes);
    while (true) {
      const std::size_t had = window.size();
      window.resize(window_bytes);
      source_.read_at(had, std::as_writable_bytes(std::span(window).subspan(had)));
      try {
        StreamHead head = read_head({window.data(), window.size()});
        std::vector<TorchStorage> storages = find_storages(head);
        return {path_, file_bytes_, std::move(window), std::move(head.object), std::move(storages)};
      } catch (const PickleCutOff&) {
        if (window_bytes == most && most < file_bytes_)
          throw Error(ErrorKind::kUnsupported,
                      "its pickle is longer than the " + format_bytes(most) + " that are supported")
              .in(path_)
              .hint("save the state dict alone, without the objects around it");
        if (window_bytes == most) throw;
      }
      window_bytes = std::min(most, window_bytes * 4);
    }
  }

 private:
  Error bad_file(std::string message) const { return Error(ErrorKind::kBadInput, std::move(message)).in(path_); }

  StreamHead read_head(std::string_view window) const;
  std::vector<std::string> read_keys(const Pickle& list) const;
  std::map<std::string, TorchStorageId> storage_ids(const Pickle& object) const;
  std::vector<TorchStorage> find_storages(const StreamHead& head) const;

  const Source& source_;
  const std::filesystem::path& path_;
  std::uint64_t file_bytes_;
};

StreamHead StreamReader::read_head(std::string_view window) const {
  std::uint64_t at = 0;
  const auto next = [&] {
    Pickle pickle = read_pickle(window.substr(at), path_, at);
    at += pickle.size_bytes();
    return pickle;
  };
  const Pickle magic = next();
  const std::string_view number = magic.text(magic.root());
  if (magic.kind(magic.root()) != PickleKind::kBigInt || (number != kMagicBytes && number != kMagicDigits))
    throw bad_file("is a pickle, but not one that torch.save wrote").hint("save the model as safetensors");
  const Pickle protocol = next();
  if (protocol.integer(protocol.root()) != kStreamProtocol)
    throw Error(ErrorKind::kUnsupported, "uses another pickle protocol than torch's streams").in(path_);
  const Pickle system = next();
  for (const auto& [key, value] : system.pairs(system.root()))
    if (system.text(key) == "little_endian" && system.integer(value) == 0)
      throw Error(ErrorKind::kUnsupported, "was saved on a big-endian machine").in(path_);
  StreamHead head{next(), {}, 0};
  head.keys = read_keys(next());
  head.data_at = at;
  return head;
}

std::vector<std::string> StreamReader::read_keys(const Pickle& list) const {
  if (list.kind(list.root()) != PickleKind::kList)
    throw bad_file("its list of storages is " + list.describe(list.root()));
  std::vector<std::string> keys;
  for (const PickleRef key : list.items(list.root())) {
    auto text = storage_key(list, key);
    if (!text) throw bad_file("its list of storages contains " + list.describe(key) + " that is not a key");
    keys.push_back(*std::move(text));
  }
  return keys;
}

std::map<std::string, TorchStorageId> StreamReader::storage_ids(const Pickle& object) const {
  std::map<std::string, TorchStorageId> ids;
  for (PickleRef node = 0; node < object.num_nodes(); ++node) {
    if (object.kind(node) != PickleKind::kPersistentId) continue;
    auto id = read_storage_id(object, node, path_, {});
    if (!id) continue;
    const auto [same_key, is_new] = ids.emplace(id->key, *id);
    if (same_key->second.size_bytes != id->size_bytes || same_key->second.element != id->element)
      throw bad_file("describes the storage " + printable(id->key) + " differently in two places");
  }
  return ids;
}

std::vector<TorchStorage> StreamReader::find_storages(const StreamHead& head) const {
  const auto ids = storage_ids(head.object);
  std::vector<TorchStorage> storages;
  std::uint64_t at = head.data_at;
  for (const std::string& key : head.keys) {
    const auto id = ids.find(key);
    if (id == ids.end())
      throw bad_file("contains the storage " + printable(key) + ", but no tensor uses it").at_byte(at);
    std::array<char, sizeof(std::int64_t)> length{};
    if (file_bytes_ - at < length.size())
      throw bad_file("ends before the storage " + printable(key))
          .at_byte(at)
          .hint("the file is cut off; fetch it again");
    source_.read_at(at, std::as_writable_bytes(std::span(length)));
    const auto elems = load_le<std::uint64_t>({length.data(), length.size()}, 0);
    const auto size_bytes = checked_mul(elems, id->second.element->size_bytes);
    if (size_bytes != id->second.size_bytes)
      throw bad_file("the storage " + printable(key) + " should have " + std::to_string(id->second.size_bytes) +
                     " bytes, but has " + std::to_string(elems) + " elements")
          .at_byte(at);
    at += length.size();
    if (*size_bytes > file_bytes_ - at)
      throw bad_file("ends inside the storage " + printable(key))
          .at_byte(at)
          .hint("the file is cut off; fetch it again");
    storages.push_back({key, at, *size_bytes});
    at += *size_bytes;
  }
  std::sort(storages.begin(), storages.end(),
            [](const TorchStorage& a, const TorchStorage& b) { return a.key < b.key; });
  const auto twice = std::adjacent_find(storages.begin(), storages.end(),
                                        [](const TorchStorage& a, const TorchStorage& b) { return a.key == b.key; });
  if (twice != storages.end()) throw bad_file("contains the storage " + printable(twice->key) + " twice");
  return storages;
}

/// Reads a stream of torch.save before torch 1.6 (or `_use_new_zipfile_serialization=False`): five pickles (a magic
/// number, the protocol, the system, the object, the keys of the storages), then each storage with its number of
/// elements.
/// \throws Error like read_torch_file.
TorchFile read_torch_stream(const Source& source, const std::filesystem::path& path) {
  return StreamReader(source, path).read();
}

constexpr std::size_t kFirstLookBytes = 512;  // a tar's magic is at 257
constexpr std::uint64_t kMaxByteorderBytes = 16;
constexpr std::uint64_t kMostUnmarkedBytes = std::uint64_t{64} << 20;  // larger files are no pickles of protocol 0

Error bad_file(const fs::path& path, std::string message) {
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

/// Rejects other formats than archives and streams, by their first bytes.
void refuse_other_formats(std::string_view start, std::uint64_t file_bytes, const fs::path& path) {
  refuse_foreign(start, path);
  if (start.empty()) throw bad_file(path, "is empty").hint("fetch or save it again");
  if (looks_like_safetensors(start, file_bytes))
    throw bad_file(path, "is a safetensors file, though its name says otherwise")
        .hint("rename it to end in .safetensors");
  if (start.starts_with("PYTORCH1"))
    throw unsupported(path, "uses a preview of torch's format that no release has written");
  if (start.size() > 262 && start.substr(257, 5) == "ustar")
    throw unsupported(path, "is a tar archive, as written by torch before 0.1.10")
        .hint("load it with an old version of torch and save it again");
}

/// Returns the folder that contains all entries of a torch archive, with a trailing slash.
std::string archive_prefix(const ZipDirectory& zip, const fs::path& path) {
  const std::string first = zip.entries().empty() ? std::string() : zip.entries().front().name;
  const std::size_t slash = first.find('/');
  std::string prefix = first.substr(0, slash == first.npos ? 0 : slash + 1);
  if (zip.find(prefix + "constants.pkl") != nullptr)
    throw unsupported(path, "is a TorchScript program (torch.jit.save), not a state dict")
        .hint("load it with torch.jit.load and save its state_dict() with torch.save or safetensors");
  if (prefix.empty() || zip.find(prefix + "data.pkl") == nullptr)
    throw bad_file(path, "is a zip archive, but not one that torch.save wrote: it has no data.pkl");
  for (const ZipEntry& entry : zip.entries())
    if (entry.compressed)
      throw unsupported(path,
                        "the zip entry " + printable(entry.name) + " is compressed; torch stores entries uncompressed")
          .at_byte(entry.offset_bytes)
          .hint("another program has repacked the file: unpack it and `zip -0 -r` the same folder, or save it again");
  return prefix;
}

void refuse_big_endian(const Source& source, const ZipEntry* byteorder, const fs::path& path) {
  if (byteorder == nullptr) return;  // files before torch 2.1 do not record it, and are little-endian
  std::string order(std::min(byteorder->size_bytes, kMaxByteorderBytes), '\0');
  source.read_at(byteorder->offset_bytes, std::as_writable_bytes(std::span(order)));
  if (order == "big") throw unsupported(path, "was saved on a big-endian machine").at_byte(byteorder->offset_bytes);
  if (order != "little") throw bad_file(path, "has an unknown byteorder").at_byte(byteorder->offset_bytes);
}

FileMetadata read_metadata_entry(const Source& source, const ZipEntry* entry, const fs::path& path) {
  if (entry == nullptr) return {};
  if (entry->size_bytes > kMaxArchiveMetadataBytes)
    throw unsupported(path, "its zip entry " + printable(entry->name) + " has " + format_bytes(entry->size_bytes) +
                                ", more than the " + format_bytes(kMaxArchiveMetadataBytes) + " that are supported")
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
                                format_bytes(kMaxPickleBytes) + " that are supported")
        .at_byte(stream.offset_bytes)
        .hint("save the state dict alone, without the objects around it");
  std::vector<char> bytes(stream.size_bytes);
  source.read_at(stream.offset_bytes, std::as_writable_bytes(std::span(bytes)));
  Pickle pickle = read_pickle({bytes.data(), bytes.size()}, path, stream.offset_bytes);
  if (pickle.size_bytes() != stream.size_bytes)
    throw bad_file(path, "has trailing data after its pickle").at_byte(stream.offset_bytes + pickle.size_bytes());

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

/// Whether a zip archive has torch's pickle, wherever it is in the archive. True if the archive is damaged.
bool holds_torch_archive(const Source& source, const fs::path& path) {
  try {
    const ZipDirectory zip = read_zip(source, path);
    return std::any_of(zip.entries().begin(), zip.entries().end(),
                       [](const ZipEntry& entry) { return entry.name.ends_with("/data.pkl"); });
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kIo) throw;
    return true;
  }
}

/// Returns the classes and functions of the pickle at the start of a file.
std::vector<PickleName> read_bare_pickle(const Source& source, const fs::path& path) {
  std::vector<char> stream(std::min(source.size_bytes(), kMaxPickleBytes));
  source.read_at(0, std::as_writable_bytes(std::span(stream)));
  return pickle_names(read_pickle({stream.data(), stream.size()}, path));
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
  throw bad_file(path, "is not a file of torch.save: it is neither a zip archive nor a pickle")
      .hint("the file is damaged, or something is in front of it: fetch it again");
}

bool is_safetensors(const Source& source) {
  return looks_like_safetensors(first_bytes(source, kFirstLookBytes), source.size_bytes());
}

bool holds_pickle(const Source& source, const fs::path& path) {
  const std::string start = first_bytes(source, kFirstLookBytes);
  if (looks_like_safetensors(start, source.size_bytes())) return false;
  if (start.starts_with("PK\3\4")) return holds_torch_archive(source, path);
  if (start.size() > 1 && start[0] == '\x80' && start[1] >= 2 && start[1] <= 5) return true;
  if (source.size_bytes() > kMostUnmarkedBytes) return false;
  try {
    read_bare_pickle(source, path);
  } catch (const PickleRefused&) {
    return true;
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kIo) throw;
    return false;
  }
  return true;
}

std::vector<PickleName> read_pickle_names(const Source& source, const fs::path& path) {
  const std::string start = first_bytes(source, kFirstLookBytes);
  const bool is_stream = start.find(kMagicBytes) != start.npos || start.find(kMagicDigits) != start.npos;
  if (is_stream || start.starts_with("PK\3\4") || !holds_pickle(source, path))
    return pickle_names(read_torch_file(source, path).pickle());
  return read_bare_pickle(source, path);
}

}  // namespace reshard
