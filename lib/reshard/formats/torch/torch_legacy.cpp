#include "reshard/formats/torch/torch_legacy.h"

#include <algorithm>
#include <array>
#include <map>

#include "reshard/base/checked.h"
#include "reshard/base/strings.h"
#include "reshard/formats/common/little_endian.h"
#include "reshard/formats/torch/torch_storage.h"

namespace reshard {
namespace {

constexpr std::string_view kMagicBytes = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
constexpr std::string_view kMagicDigits = "119547037146038801333356";  // as protocol 0 writes it
constexpr std::int64_t kStreamProtocol = 1001;
constexpr std::uint64_t kFirstWindowBytes = std::uint64_t{1} << 20;

/// What the pickles at the start of the stream say.
struct StreamHead {
  Pickle object;
  std::vector<std::string> keys;
  std::uint64_t data_at = 0;  // in the file: of the first storage
};

class StreamReader {
 public:
  StreamReader(const Source& source, const std::filesystem::path& path)
      : source_(source), path_(path), file_bytes_(source.size_bytes()) {}

  TorchFile read() {
    // Where the pickles end is known only once they are read: try with more and more of the file.
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
          throw Error(ErrorKind::kUnsupported, "its pickle is longer than the " + format_bytes(most) + " that are read")
              .in(path_)
              .hint("save the state dict alone, without what surrounds it");
        if (window_bytes == most) throw;
      }
      window_bytes = std::min(most, window_bytes * 4);
    }
  }

 private:
  Error bad(std::string message) const { return Error(ErrorKind::kBadInput, std::move(message)).in(path_); }

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
    throw bad("is a pickle, but not one that torch.save wrote").hint("save the model as safetensors");
  const Pickle protocol = next();
  if (protocol.integer(protocol.root()) != kStreamProtocol)
    throw Error(ErrorKind::kUnsupported, "is of another protocol than torch's streams are").in(path_);
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
  if (list.kind(list.root()) != PickleKind::kList) throw bad("its list of storages is " + list.describe(list.root()));
  std::vector<std::string> keys;
  for (const PickleRef key : list.items(list.root())) {
    auto text = storage_key(list, key);
    if (!text) throw bad("its list of storages holds " + list.describe(key) + " that is no key");
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
      throw bad("describes the storage " + printable(id->key) + " in two ways");
  }
  return ids;
}

std::vector<TorchStorage> StreamReader::find_storages(const StreamHead& head) const {
  const auto ids = storage_ids(head.object);
  std::vector<TorchStorage> storages;
  std::uint64_t at = head.data_at;
  for (const std::string& key : head.keys) {
    const auto id = ids.find(key);
    if (id == ids.end()) throw bad("holds the storage " + printable(key) + ", but no tensor of it").at_byte(at);
    std::array<char, sizeof(std::int64_t)> length{};
    if (file_bytes_ - at < length.size())
      throw bad("ends before the storage " + printable(key)).at_byte(at).hint("the file is cut off; fetch it again");
    source_.read_at(at, std::as_writable_bytes(std::span(length)));
    const auto elems = load_le<std::uint64_t>({length.data(), length.size()}, 0);
    const auto size_bytes = checked_mul(elems, id->second.element->size_bytes);
    if (size_bytes != id->second.size_bytes)
      throw bad("the storage " + printable(key) + " should have " + std::to_string(id->second.size_bytes) +
                " bytes, but has " + std::to_string(elems) + " elements")
          .at_byte(at);
    at += length.size();
    if (*size_bytes > file_bytes_ - at)
      throw bad("ends inside the storage " + printable(key)).at_byte(at).hint("the file is cut off; fetch it again");
    storages.push_back({key, at, *size_bytes});
    at += *size_bytes;
  }
  std::sort(storages.begin(), storages.end(),
            [](const TorchStorage& a, const TorchStorage& b) { return a.key < b.key; });
  const auto twice = std::adjacent_find(storages.begin(), storages.end(),
                                        [](const TorchStorage& a, const TorchStorage& b) { return a.key == b.key; });
  if (twice != storages.end()) throw bad("holds the storage " + printable(twice->key) + " twice");
  return storages;
}

}  // namespace

TorchFile read_torch_stream(const Source& source, const std::filesystem::path& path) {
  return StreamReader(source, path).read();
}

}  // namespace reshard
