#include "reshard/formats/dcp/dcp_metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "reshard/base/checked.h"
#include "reshard/base/strings.h"
#include "reshard/formats/common/tensor_names.h"
#include "reshard/formats/pickle/pickle.h"
#include "reshard/formats/torch/torch_storage.h"
#include "reshard/tensor/values/shape.h"

namespace reshard {
namespace {

// An object of a pickle may be the attributes or the shape of millions of others, so it must be short.
constexpr std::size_t kMaxAttributes = 32;
constexpr std::size_t kMaxChunkDims = 64;                  // as in torch
constexpr std::size_t kMaxNumbers = std::size_t{1} << 25;  // in the boxes of all chunks
constexpr std::size_t kMaxFileNameBytes = 4096;
constexpr std::size_t kMaxTransforms = 4;
constexpr std::size_t kMaxTransformBytes = 128;  // length of a name; "stream.zstd/1" is the longest known
/// Maximum total length of names in paths, per byte of the file: torch's paths consist of the entries' names, which it
/// stores once.
constexpr std::uint64_t kMaxPathBytesPerByte = 4;
constexpr std::string_view kTorchModules = "torch.distributed.";
constexpr std::size_t kBytesPerNode = 8;  // minimum size of a node in the pickle if there are many chunks
constexpr const char* kTooLarge = "convert it with torch, in parts";

/// An entry of storage_data.
struct Stored {
  std::uint32_t name = 0;   // from MetadataReader::id_of
  bool has_offset = false;  // only tensors have one
  Dims offset;
  DcpPlace place;

  auto key() const { return std::tie(name, has_offset, offset); }
};

class MetadataReader {
 public:
  MetadataReader(const Pickle& pickle, const std::filesystem::path& path) : pickle_(pickle), path_(path) {}

  DcpMetadata read(DcpPaths paths);

 private:
  using Pairs = std::span<const PicklePair>;

  Error bad(std::string message, std::string_view name = {}) const {
    Error error(ErrorKind::kBadInput, std::move(message));
    error.in(path_);
    if (!name.empty()) error.tensor(std::string(name));
    return error;
  }

  bool is_of(PickleRef node, std::string_view torch_class) const;
  Pairs attributes(PickleRef node, std::string_view torch_class, std::string_view name) const;
  PickleRef find(Pairs attributes, std::string_view attribute, std::string_view name) const;
  PickleRef need(Pairs attributes, std::string_view attribute, std::string_view name) const;
  Pairs dict(PickleRef node, const char* what) const;
  std::string_view entry_name(PickleRef node);
  std::uint32_t id_of(PickleRef name_node);
  std::uint64_t number(PickleRef node, const char* what, std::string_view name) const;
  Dims dims(PickleRef node, const char* what, std::string_view name) const;

  void read_storage(Pairs storage);
  Stored stored(PickleRef index, PickleRef info);
  std::uint32_t file_of(PickleRef relative_path, std::string_view name);
  std::uint32_t add_file(std::string_view relative_path, std::string_view name);
  std::uint32_t transforms_of(PickleRef list, std::string_view name);
  const DcpPlace* place_of(std::uint32_t name, const Dims* offset) const;
  void count_numbers(std::size_t more);
  void read_entry(PickleRef name_node, PickleRef node);
  void read_properties(PickleRef node, DcpTensor& tensor) const;
  void read_chunks(PickleRef node, std::uint32_t id, DcpTensor& tensor);
  void read_paths(Pairs planner_data);

  const Pickle& pickle_;
  const std::filesystem::path& path_;
  DcpMetadata metadata_;
  std::vector<Stored> stored_;  // sorted by key
  // A string of the file may be the name of millions of entries; it is validated only once.
  std::unordered_map<PickleRef, std::uint32_t> id_by_node_;
  std::unordered_map<std::string_view, std::uint32_t> id_by_name_;
  std::unordered_map<PickleRef, std::uint32_t> file_by_node_;
  std::unordered_map<std::string_view, std::uint32_t> file_by_path_;
  std::unordered_map<std::string, std::uint32_t> file_by_plain_path_;
  std::size_t chunks_ = 0;
  std::size_t numbers_ = 0;
};

bool MetadataReader::is_of(PickleRef node, std::string_view torch_class) const {
  if (pickle_.kind(node) != PickleKind::kObject) return false;
  const PickleGlobal made_by = pickle_.global(pickle_.callee(node));
  return made_by.name == torch_class && made_by.module.starts_with(kTorchModules);
}

/// Returns the attributes of an object of `torch_class`; `name` is the entry that it describes.
MetadataReader::Pairs MetadataReader::attributes(PickleRef node, std::string_view torch_class,
                                                 std::string_view name) const {
  if (!is_of(node, torch_class))
    throw bad(fmt::format("has {} instead of a {}", pickle_.describe(node), torch_class), name);
  const PickleRef state = pickle_.state(node);
  if (state == kNoNode || pickle_.kind(state) != PickleKind::kDict)
    throw bad(fmt::format("has a {} without attributes", torch_class), name);
  return pickle_.pairs(state);
}

/// Returns kNoNode if the attribute is absent or None. Fails if it occurs twice: Python would use the last.
PickleRef MetadataReader::find(Pairs attributes, std::string_view attribute, std::string_view name) const {
  if (attributes.size() > kMaxAttributes)
    throw bad(fmt::format("has an object with {} attributes", attributes.size()), name);
  const PicklePair* found = nullptr;
  for (const PicklePair& one : attributes) {
    if (pickle_.text(one.first) != attribute) continue;
    if (found != nullptr) throw bad(fmt::format("contradicts itself: an object has \"{}\" twice", attribute), name);
    found = &one;
  }
  return found == nullptr || pickle_.kind(found->second) == PickleKind::kNone ? kNoNode : found->second;
}

PickleRef MetadataReader::need(Pairs attributes, std::string_view attribute, std::string_view name) const {
  const PickleRef found = find(attributes, attribute, name);
  if (found == kNoNode) throw bad(fmt::format("has an object without the attribute \"{}\"", attribute), name);
  return found;
}

MetadataReader::Pairs MetadataReader::dict(PickleRef node, const char* what) const {
  if (node == kNoNode) throw bad(fmt::format("has no {}", what));
  if (pickle_.kind(node) != PickleKind::kDict)
    throw bad(fmt::format("has {} instead of {}", pickle_.describe(node), what));
  return pickle_.pairs(node);
}

std::string_view MetadataReader::entry_name(PickleRef node) {
  if (pickle_.kind(node) != PickleKind::kString)
    throw bad("has " + pickle_.describe(node) + " instead of an entry's name");
  const std::string_view name = pickle_.text(node);
  if (id_by_node_.count(node) > 0) return name;
  if (name.empty() || name.size() > kMaxTensorNameBytes)
    throw bad(fmt::format("has an entry whose name has {} bytes", name.size()));
  if (has_control(name)) throw bad("has a control character in the name of an entry, " + printable(name));
  if (!is_plain_text(name)) throw bad("has an entry whose name is not UTF-8, " + printable(name));
  const auto next = static_cast<std::uint32_t>(id_by_name_.size());
  id_by_node_.emplace(node, id_by_name_.emplace(name, next).first->second);
  return name;
}

/// Returns a number for a name; equal names have the same number.
std::uint32_t MetadataReader::id_of(PickleRef name_node) {
  entry_name(name_node);
  return id_by_node_.at(name_node);
}

std::uint64_t MetadataReader::number(PickleRef node, const char* what, std::string_view name) const {
  if (pickle_.kind(node) != PickleKind::kInt) throw bad(fmt::format("{} is {}", what, pickle_.describe(node)), name);
  if (pickle_.integer(node) < 0) throw bad(fmt::format("{} is {}", what, pickle_.integer(node)), name);
  return static_cast<std::uint64_t>(pickle_.integer(node));
}

/// Reads a torch.Size or a plain tuple.
Dims MetadataReader::dims(PickleRef node, const char* what, std::string_view name) const {
  if (pickle_.is_object_of(node, "torch", "Size") && pickle_.items(pickle_.args(node)).size() == 1)
    node = pickle_.items(pickle_.args(node))[0];
  if (pickle_.kind(node) != PickleKind::kTuple && pickle_.kind(node) != PickleKind::kList)
    throw bad(fmt::format("{} is {}", what, pickle_.describe(node)), name);
  const auto items = pickle_.items(node);
  if (items.size() > kMaxChunkDims) throw bad(fmt::format("{} has {} dims", what, items.size()), name);
  Dims dims;
  dims.reserve(items.size());
  for (const PickleRef item : items) dims.push_back(number(item, what, name));
  return dims;
}

void MetadataReader::count_numbers(std::size_t more) {
  numbers_ += more;
  if (numbers_ > kMaxNumbers)
    throw Error(ErrorKind::kUnsupported, fmt::format("has more than {} chunks and dims", kMaxNumbers))
        .in(path_)
        .hint(kTooLarge);
}

std::uint32_t MetadataReader::file_of(PickleRef relative_path, std::string_view name) {
  const auto [known, is_new] = file_by_node_.emplace(relative_path, 0);
  if (!is_new) return known->second;
  if (pickle_.kind(relative_path) != PickleKind::kString)
    throw bad("has " + pickle_.describe(relative_path) + " instead of a file name", name);
  return known->second = add_file(pickle_.text(relative_path), name);
}

/// Adds a file whose path stays inside the directory.
std::uint32_t MetadataReader::add_file(std::string_view relative_path, std::string_view name) {
  const auto known = file_by_path_.find(relative_path);
  if (known != file_by_path_.end()) return known->second;
  const auto refuse = [&](const char* why) {
    throw bad(fmt::format("assigns it to the file \"{}\", {}", printable(relative_path), why), name);
  };
  if (relative_path.empty() || relative_path.size() > kMaxFileNameBytes || has_control(relative_path))
    refuse("which is not a valid file name");
  if (relative_path.front() == '/') refuse("which is not relative to the checkpoint's directory");
  std::string plain;  // normalized: items of one file must not overlap, however its path is spelled
  for (const std::string& part : split(relative_path, '/')) {
    if (part == "..") refuse("which is outside the checkpoint's directory");
    if (!part.empty() && part != ".") plain += (plain.empty() ? "" : "/") + part;
  }
  if (plain.empty()) refuse("which is not a valid file name");
  const auto [file, is_new] = file_by_plain_path_.emplace(plain, static_cast<std::uint32_t>(metadata_.files.size()));
  if (is_new) metadata_.files.push_back(std::move(plain));
  file_by_path_.emplace(relative_path, file->second);
  return file->second;
}

std::uint32_t MetadataReader::transforms_of(PickleRef list, std::string_view name) {
  if (list == kNoNode) return 0;
  const auto items = pickle_.items(list);
  const bool is_list = pickle_.kind(list) == PickleKind::kList || pickle_.kind(list) == PickleKind::kTuple;
  if (!is_list || items.size() > kMaxTransforms) throw bad("has transforms that are not a short list of names", name);
  std::vector<std::string> names;
  for (const PickleRef item : items) names.emplace_back(pickle_.text(item).substr(0, kMaxTransformBytes));
  const auto known = std::find(metadata_.transforms.begin(), metadata_.transforms.end(), names);
  if (known != metadata_.transforms.end()) return static_cast<std::uint32_t>(known - metadata_.transforms.begin());
  if (metadata_.transforms.size() > kMaxAttributes) throw bad("has more kinds of transforms than exist", name);
  metadata_.transforms.push_back(std::move(names));
  return static_cast<std::uint32_t>(metadata_.transforms.size() - 1);
}

Stored MetadataReader::stored(PickleRef index, PickleRef info) {
  Stored one;
  const Pairs key = attributes(index, "MetadataIndex", {});
  const PickleRef name_node = need(key, "fqn", {});
  const std::string_view name = entry_name(name_node);
  one.name = id_of(name_node);
  if (const PickleRef offset = find(key, "offset", name); offset != kNoNode) {
    one.has_offset = true;
    one.offset = dims(offset, "the offset of a chunk", name);
    count_numbers(one.offset.size());
  }
  const Pairs place = attributes(info, "_StorageInfo", name);
  one.place.file = file_of(need(place, "relative_path", name), name);
  one.place.offset_bytes = number(need(place, "offset", name), "its offset in the file", name);
  one.place.length_bytes = number(need(place, "length", name), "its length in the file", name);
  one.place.transforms = transforms_of(find(place, "transform_descriptors", name), name);
  if (!checked_add(one.place.offset_bytes, one.place.length_bytes))
    throw bad("its location in the file overflows 64 bits", name);
  return one;
}

void MetadataReader::read_storage(Pairs storage) {
  stored_.reserve(storage.size());
  std::vector<bool> seen(pickle_.num_nodes());
  for (const auto& [index, info] : storage) {
    if (seen[index]) throw bad("has a duplicate key in its storage_data");
    seen[index] = true;
    stored_.push_back(stored(index, info));
  }
  std::sort(stored_.begin(), stored_.end(), [](const Stored& a, const Stored& b) { return a.key() < b.key(); });
  const auto text_of = [&](std::uint32_t id) {
    return std::find_if(id_by_name_.begin(), id_by_name_.end(), [&](const auto& one) { return one.second == id; })
        ->first;
  };
  for (std::size_t i = 1; i < stored_.size(); ++i)
    if (stored_[i].key() == stored_[i - 1].key() && stored_[i].place != stored_[i - 1].place)
      throw bad(stored_[i].has_offset
                    ? fmt::format("has two locations for its chunk at {}", to_string(stored_[i].offset))
                    : std::string("has two locations for it"),
                text_of(stored_[i].name));
}

/// Returns nullptr if no place is recorded.
const DcpPlace* MetadataReader::place_of(std::uint32_t name, const Dims* offset) const {
  static const Dims kNone;
  const Stored wanted{name, offset != nullptr, offset != nullptr ? *offset : kNone, {}};
  const auto found = std::lower_bound(stored_.begin(), stored_.end(), wanted,
                                      [](const Stored& a, const Stored& b) { return a.key() < b.key(); });
  return found != stored_.end() && found->key() == wanted.key() ? &found->place : nullptr;
}

/// The state of TensorProperties is a tuple: dtype, layout, requires_grad, memory format, pin_memory.
void MetadataReader::read_properties(PickleRef node, DcpTensor& tensor) const {
  if (!is_of(node, "TensorProperties"))
    throw bad("has " + pickle_.describe(node) + " instead of its properties", tensor.name);
  const PickleRef state = pickle_.state(node);
  const auto fields = state == kNoNode ? std::span<const PickleRef>() : pickle_.items(state);
  const PickleGlobal dtype = fields.empty() ? PickleGlobal() : pickle_.global(fields[0]);
  if (dtype.module != "torch") throw bad("has no dtype", tensor.name);
  tensor.torch_dtype = dtype.name;
  tensor.dtype = dtype_from_torch_name(dtype.name);
}

void MetadataReader::read_chunks(PickleRef node, std::uint32_t id, DcpTensor& tensor) {
  if (pickle_.kind(node) != PickleKind::kList)
    throw bad("has " + pickle_.describe(node) + " instead of its chunks", tensor.name);
  const auto items = pickle_.items(node);
  chunks_ += items.size();
  if (chunks_ > pickle_.num_nodes()) throw bad("has chunks that belong to several tensors", tensor.name);
  tensor.chunks.reserve(items.size());
  for (const PickleRef item : items) {
    const Pairs chunk = attributes(item, "ChunkStorageMetadata", tensor.name);
    DcpChunk one;
    one.box.begin = dims(need(chunk, "offsets", tensor.name), "the offset of a chunk", tensor.name);
    one.box.size = dims(need(chunk, "sizes", tensor.name), "the size of a chunk", tensor.name);
    count_numbers(2 * one.box.begin.size());
    if (one.box.begin.size() != one.box.size.size() || !contains(tensor.shape, one.box))
      throw bad(fmt::format("has a chunk of {} at {}, which is not inside its shape {}", to_string(one.box.size),
                            to_string(one.box.begin), to_string(tensor.shape)),
                tensor.name);
    if (volume(one.box) == 0) continue;  // a rank with an empty slice
    const DcpPlace* place = place_of(id, &one.box.begin);
    if (place == nullptr)
      throw bad(fmt::format("does not record where its chunk at {} is stored", to_string(one.box.begin)), tensor.name);
    one.place = *place;
    tensor.chunks.push_back(std::move(one));
  }
}

void MetadataReader::read_entry(PickleRef name_node, PickleRef node) {
  const std::string_view name = pickle_.text(name_node);
  const std::uint32_t id = id_of(name_node);
  if (is_of(node, "BytesStorageMetadata")) {
    const DcpPlace* place = place_of(id, nullptr);
    if (place == nullptr) throw bad("does not record where it is stored", name);
    metadata_.bytes.push_back({std::string(name), *place});
    return;
  }
  if (!is_of(node, "TensorStorageMetadata"))
    throw Error(ErrorKind::kUnsupported,
                "has " + pickle_.describe(node) + " instead of a tensor: torch 1.13 and later have no such class")
        .in(path_)
        .tensor(std::string(name))
        .hint("load the checkpoint with the program that wrote it, and save it again with torch 2.0 or later");
  const Pairs attributes_of = attributes(node, "TensorStorageMetadata", name);
  DcpTensor tensor;
  tensor.name = name;
  read_properties(need(attributes_of, "properties", name), tensor);
  tensor.shape = dims(need(attributes_of, "size", name), "its size", name);
  if (!num_elems(tensor.shape) || (tensor.dtype && !num_bytes(*tensor.dtype, tensor.shape)))
    throw bad(fmt::format("its shape {} overflows 64 bits", to_string(tensor.shape)), name);
  count_numbers(tensor.shape.size());
  read_chunks(need(attributes_of, "chunks", name), id, tensor);
  metadata_.tensors.push_back(std::move(tensor));
}

void MetadataReader::read_paths(Pairs planner_data) {
  std::size_t parts = 0;
  std::uint64_t part_bytes = 0;
  std::unordered_set<std::uint32_t> names;
  metadata_.paths.reserve(planner_data.size());
  for (const auto& [key, value] : planner_data) {
    const std::string_view name = entry_name(key);
    if (!names.insert(id_of(key)).second) throw bad("has a path to it twice", name);
    const auto items = pickle_.items(value);
    parts += items.size();
    if (pickle_.kind(value) != PickleKind::kTuple || items.size() > kMaxChunkDims || parts > pickle_.num_nodes())
      throw bad("has a path to it that is not a short tuple", name);
    DcpPath path;
    for (const PickleRef item : items) {
      if (pickle_.kind(item) == PickleKind::kInt) {
        path.emplace_back(pickle_.integer(item));
        continue;
      }
      const std::string_view part = entry_name(item);
      part_bytes += part.size();
      if (part_bytes / kMaxPathBytesPerByte > pickle_.size_bytes())
        throw bad("has paths with more names than the entire file", name);
      path.emplace_back(std::string(part));
    }
    metadata_.paths.emplace_back(std::string(name), std::move(path));
  }
}

DcpMetadata MetadataReader::read(DcpPaths paths) {
  metadata_.transforms.emplace_back();
  if (!is_of(pickle_.root(), "Metadata"))
    throw bad("is not the metadata of torch.distributed.checkpoint: it contains " + pickle_.describe(pickle_.root()));
  const Pairs root = attributes(pickle_.root(), "Metadata", {});
  read_storage(dict(find(root, "storage_data", {}), "storage_data"));
  const Pairs entries = dict(find(root, "state_dict_metadata", {}), "state_dict_metadata");
  std::unordered_set<std::uint32_t> names;
  names.reserve(entries.size());
  for (const auto& [key, value] : entries) {
    if (!names.insert(id_of(key)).second) throw bad("has it twice", pickle_.text(key));
    read_entry(key, value);
  }
  // Planners of other programs may store anything.
  const PickleRef planner_data = find(root, "planner_data", {});
  if (paths == DcpPaths::kRead && planner_data != kNoNode && pickle_.kind(planner_data) == PickleKind::kDict)
    read_paths(pickle_.pairs(planner_data));
  return std::move(metadata_);
}

}  // namespace

DcpMetadata read_dcp_metadata(const Source& source, const std::filesystem::path& path, DcpPaths paths) {
  if (source.size_bytes() > kMaxPickleBytes)
    throw Error(ErrorKind::kUnsupported, "has " + format_bytes(source.size_bytes()) + ", more than the " +
                                             format_bytes(kMaxPickleBytes) + " that are supported")
        .in(path)
        .hint(kTooLarge);
  std::vector<char> stream(source.size_bytes());
  source.read_at(0, std::as_writable_bytes(std::span(stream)));
  Pickle pickle = read_pickle({stream.data(), stream.size()}, path, 0, stream.size() / kBytesPerNode);
  if (pickle.size_bytes() != stream.size())
    throw Error(ErrorKind::kBadInput, "has trailing data after its pickle").in(path).at_byte(pickle.size_bytes());
  pickle.take_texts();  // with many chunks the texts are a small part of the file, which is no longer needed
  std::vector<char>().swap(stream);
  return MetadataReader(pickle, path).read(paths);
}

}  // namespace reshard
