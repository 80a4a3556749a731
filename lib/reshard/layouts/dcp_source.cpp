#include "reshard/layouts/dcp_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>

#include "reshard/base/checked.h"
#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/formats/dcp_item.h"
#include "reshard/formats/dcp_metadata.h"
#include "reshard/formats/dcp_shards.h"
#include "reshard/formats/read_container.h"
#include "reshard/layouts/dcp_states.h"
#include "reshard/layouts/dcp_times.h"
#include "reshard/layouts/trained_model.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kItemsEnding = ".distcp";

/// What a directory's metadata say, those of all ranks together.
struct ReadMetadata {
  DcpMetadata all;
  fs::path where;                 // the one file, or the directory of several
  std::vector<fs::path> of_file;  // the metadata of each of `all.files`
};

/// In which order the elements of entry `index` are.
void take_order(const StateNames& names, std::size_t index, ChunkedTensor& tensor) {
  const Family::OtherName* other = names.others.empty() ? nullptr : names.others[index];
  tensor.stacked = other != nullptr && other->stacked();
  tensor.interleaved = other != nullptr && other->interleaved;
}

/// Finds in the files the chunks of what is wanted of one metadata; each file is opened once.
class ChunkFinder {
 public:
  /// Borrows all.
  ChunkFinder(Files& files, const fs::path& directory, const ReadMetadata& metadata, std::vector<TensorFile>& found,
              std::vector<std::string>& notes)
      : files_(files),
        directory_(directory),
        where_(metadata.where),
        metadata_(metadata.all),
        of_file_(metadata.of_file),
        found_(found),
        notes_(notes) {}

  /// A tensor under the model's name for it, without chunks yet; valid until the next one.
  ChunkedTensor& add(const DcpTensor& tensor, std::string name) {
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

  /// An object; of several ranks, all have to be the same.
  ChunkedTensor& add(const std::vector<const DcpBytes*>& objects, std::string name) {
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

  /// In the order in which they were added.
  std::vector<ChunkedTensor> find() {
    validate_chunks(tensors_, where_);
    std::sort(wanted_.begin(), wanted_.end(), [](const Wanted& a, const Wanted& b) { return a.key() < b.key(); });
    validate_places();
    std::unique_ptr<DcpFile> file;
    std::uint32_t open = 0;  // the number of `file` in the metadata
    std::size_t whole = 0;   // and of all of it among those found
    std::vector<DcpSavedFile> saved;
    for (const Wanted& one : wanted_) {
      const DcpPlace& place = *one.place;
      if (!file || open != place.file) {
        file = std::make_unique<DcpFile>(files_, directory_ / metadata_.files[place.file]);
        open = place.file;
        add_file(*file, file->size_bytes(), {});
        whole = found_.size() - 1;
        saved.push_back({file->path(), of_file_[place.file], file->size_bytes()});
      }
      const std::vector<std::string>& transforms = metadata_.transforms[place.transforms];
      DcpItem item =
          one.tensor != nullptr ? file->find(*one.tensor, *one.chunk, transforms) : file->find(*one.object, transforms);
      if (item.frame && found_.back().frame != item.frame) add_file(*file, item.decoded_bytes, item.frame);
      ChunkedTensor::Chunk& chunk = tensors_[one.index].chunks[one.number];
      chunk.file = static_cast<std::uint32_t>(item.frame ? found_.size() - 1 : whole);
      chunk.offset_bytes = item.tensor.offset_bytes;
      chunk.strides = std::move(item.tensor.strides);
      if (one.object != nullptr) set_size(tensors_[one.index], chunk, item.tensor.size_bytes);
    }
    validate_dcp_times(files_, saved, notes_);
    return std::move(tensors_);
  }

 private:
  struct Wanted {
    std::uint32_t index;   // into tensors_
    std::uint32_t number;  // of its chunk
    const DcpPlace* place;
    const DcpTensor* tensor;  // or null
    const DcpChunk* chunk;
    const DcpBytes* object;  // or null

    std::tuple<std::uint32_t, std::uint64_t, std::uint64_t, std::uint32_t> key() const {
      return std::tuple(place->file, place->offset_bytes, place->length_bytes, index);
    }
  };

  /// Two names of a tied parameter may be one item. But two chunks of a tensor are not, nor do two items overlap.
  /// Where torch writes safetensors, all items of a file have one place, and go by the names of tensors.
  void validate_places() const {
    for (std::size_t i = 1; i < wanted_.size(); ++i) {
      const Wanted &a = wanted_[i - 1], &b = wanted_[i];
      if (a.place->file != b.place->file) continue;
      const bool is_one = *a.place == *b.place;
      const bool overlap = !is_one && b.place->offset_bytes - a.place->offset_bytes < a.place->length_bytes;
      if (!overlap && !(is_one && a.index == b.index && b.tensor != nullptr)) continue;
      const std::string& entry = tensors_[b.index].entry;
      throw Error(ErrorKind::kBadInput, overlap
                                            ? fmt::format(".metadata puts it into bytes that belong to {}, too",
                                                          printable(tensors_[a.index].entry))
                                            : fmt::format("its chunks at {} and {} would be the same item of this file",
                                                          to_string(a.chunk->box.begin), to_string(b.chunk->box.begin)))
          .in(directory_ / metadata_.files[b.place->file])
          .tensor(entry)
          .hint(
              "torch keeps only the last chunk of a tensor in a file of SerializationFormat.SAFETENSORS: save again "
              "without");
    }
  }

  void add_file(const DcpFile& file, std::uint64_t size_bytes, const std::optional<ZstdFrame>& frame) {
    found_.push_back({file.path(), size_bytes});
    found_.back().stamp = file.stamp();
    found_.back().frame = frame;
  }

  void set_size(ChunkedTensor& object, ChunkedTensor::Chunk& chunk, std::uint64_t size_bytes) const {
    if (object.shape.empty()) object.shape = {size_bytes};
    if (object.shape != Dims{size_bytes})
      throw Error(ErrorKind::kUnsupported, fmt::format("is an object of {} bytes on one rank, and of {} on another",
                                                       object.shape[0], size_bytes))
          .in(where_)
          .tensor(object.entry)
          .hint("only what all ranks have in common can be carried over: do without `with-optimizer`");
    chunk.box = whole(object.shape);
  }

  Files& files_;
  const fs::path& directory_;
  const fs::path& where_;
  const DcpMetadata& metadata_;
  const std::vector<fs::path>& of_file_;
  std::vector<TensorFile>& found_;
  std::vector<std::string>& notes_;
  std::vector<ChunkedTensor> tensors_;
  std::vector<Wanted> wanted_;
};

void add_states(std::vector<DcpState> states, ChunkFinder& finder) {
  for (DcpState& state : states) {
    ChunkedTensor& tensor = state.tensor != nullptr ? finder.add(*state.tensor, std::move(state.name))
                                                    : finder.add(state.objects, std::move(state.name));
    if (state.tensor != nullptr) tensor.role = TensorRole::kState;
    tensor.state = state.state;
    tensor.stacked = state.stacked;
    tensor.interleaved = state.interleaved;
    tensor.copies = state.copies;
  }
}

/// Takes what is no parameter out of `tensors`.
void move_states(std::vector<ChunkedTensor>& tensors, std::vector<ChunkedTensor>& states) {
  const auto first = std::stable_partition(tensors.begin(), tensors.end(), [](const ChunkedTensor& tensor) {
    return tensor.role == TensorRole::kParameter;
  });
  std::move(first, tensors.end(), std::back_inserter(states));
  tensors.erase(first, tensors.end());
}

/// Notes what goes along with the model.
void note_states(DcpSource& source, const StateNames& names, const std::vector<std::string>& strangers) {
  std::size_t tensors = 0;
  std::uint64_t bytes = 0;
  for (const ChunkedTensor& state : source.states) {
    tensors += state.role == TensorRole::kState ? 1 : 0;
    bytes += num_bytes(state.dtype, state.shape).value_or(0);
  }
  if (source.states.empty()) return;
  const auto counted = [](std::size_t count, const char* what) {
    return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
  };
  const std::size_t objects = source.states.size() - tensors;
  source.notes.push_back(fmt::format(
      "{}{}{} beside the model ({}) {} carried over: the optimizer and other state of the training run",
      tensors > 0 ? counted(tensors, "tensor") : "", tensors > 0 && objects > 0 ? " and " : "",
      objects > 0 ? counted(objects, "object") : "", format_bytes(bytes), source.states.size() == 1 ? "is" : "are"));
  if (!strangers.empty())
    source.notes.push_back(
        fmt::format("{} states of the optimizer belong to no parameter of the model, and keep their "
                    "names: {}",
                    strangers.size(), list_names(strangers)));
  source.prefix = names.prefix;
}

std::string metadata_of_rank(std::uint64_t rank) {
  return fmt::format("__{}{}", rank, kDcpMetadataFile);
}

/// The number in "__12.metadata".
std::optional<std::uint64_t> rank_of_metadata(std::string_view name) {
  constexpr std::string_view kBegin = "__";
  const std::string_view whole_name = name;
  if (!name.starts_with(kBegin) || !name.ends_with(kDcpMetadataFile)) return std::nullopt;
  name.remove_prefix(kBegin.size());
  name.remove_suffix(std::string_view(kDcpMetadataFile).size());
  const auto rank = parse_unsigned(name);
  return rank && metadata_of_rank(*rank) == whole_name ? rank : std::nullopt;
}

/// Adds what a rank's metadata says to that of the ranks before it. Entries that are no tensors are each rank's own.
/// \param by_path, by_name  the files and tensors of `read` so far.
void add_metadata(DcpMetadata other, const fs::path& where, ReadMetadata& read,
                  std::unordered_map<std::string, std::uint32_t>& by_path,
                  std::unordered_map<std::string, std::size_t>& by_name) {
  DcpMetadata& all = read.all;
  std::vector<std::uint32_t> file_of;  // by the numbers of `other`: ranks may share a file
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
      throw Error(ErrorKind::kBadInput, fmt::format("is {} {}, but {} {} by other ranks", tensor.torch_dtype,
                                                    to_string(tensor.shape), known.torch_dtype, to_string(known.shape)))
          .in(where)
          .tensor(tensor.name)
          .hint("the files are of several saves");
    std::move(tensor.chunks.begin(), tensor.chunks.end(), std::back_inserter(known.chunks));
  }
  std::move(other.paths.begin(), other.paths.end(), std::back_inserter(all.paths));
  for (DcpBytes& bytes : other.bytes) {
    bytes.place.file = file_of[bytes.place.file];
    bytes.place.transforms += first_transforms;
    all.bytes.push_back(std::move(bytes));
  }
}

/// The ranks whose metadata `directory` has: how many of the last ones are missing, nothing says.
/// \throws Error kBadInput if that of a rank before them is missing.
std::uint64_t count_ranks(Files& files, const fs::path& directory) {
  std::set<std::uint64_t> ranks;
  for (const DirectoryEntry& entry : files.list(directory))
    if (const auto rank = rank_of_metadata(entry.name)) ranks.insert(*rank);
  std::uint64_t expected = 0;
  for (const std::uint64_t rank : ranks) {
    if (rank != expected)
      throw Error(ErrorKind::kBadInput, fmt::format("is missing, though there is {}", metadata_of_rank(rank)))
          .in(directory / metadata_of_rank(expected))
          .hint("that rank's files were not copied, or its save did not finish; each rank has tensors of its own");
    ++expected;
  }
  return expected;
}

/// Hidden files are what copies lose.
Error lost_metadata(Files& files, const fs::path& directory) {
  std::vector<std::string> items;
  for (const DirectoryEntry& entry : files.list(directory))
    if (is_dcp_items_name(entry.name)) items.push_back(entry.name);
  std::sort(items.begin(), items.end(), natural_less);
  return Error(ErrorKind::kBadInput,
               fmt::format("holds files of torch.distributed.checkpoint ({}), but no {}, which says what is in them",
                           list_names(items), kDcpMetadataFile))
      .in(directory)
      .hint(fmt::format("a copy with `*` leaves {} behind, as its name begins with a dot: copy it, too, as "
                        "`cp -r FROM/. TO` does; if there is none, the save did not finish",
                        kDcpMetadataFile));
}

ReadMetadata read_all_metadata(Files& files, const fs::path& directory, DcpContent content,
                               std::vector<std::string>& notes) {
  const DcpPaths paths = content == DcpContent::kRun ? DcpPaths::kRead : DcpPaths::kLeave;
  const auto read = [&](const fs::path& path) { return read_dcp_metadata(*files.open(path), path, paths); };
  ReadMetadata metadata;
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
  for (std::uint64_t rank = 0; rank < ranks; ++rank) {
    const fs::path of_rank = directory / metadata_of_rank(rank);
    add_metadata(read(of_rank), of_rank, metadata, by_path, by_name);
  }
  notes.push_back(fmt::format(
      "there is no {}: the metadata of {} rank{} is read; that of ranks behind these, if it is missing, shows only by "
      "what the model lacks",
      kDcpMetadataFile, ranks, ranks == 1 ? "" : "s"));
  return metadata;
}

/// Of the optimizer beside a model: nothing where there is none. Where the model alone is wanted, metadata that cannot
/// be read is noted.
ReadMetadata read_optimizer_metadata(Files& files, const fs::path& directory, DcpContent content,
                                     std::vector<std::string>& notes) {
  if (directory.empty()) return {};
  try {
    return read_all_metadata(files, directory, content, notes);
  } catch (const Error& error) {
    if (content == DcpContent::kRun || error.kind() == ErrorKind::kIo) throw;
    notes.push_back(fmt::format("the optimizer beside the model is not counted: {}", error.what()));
  }
  return {};
}

std::vector<StateEntry> entries_of(const DcpMetadata& metadata) {
  std::vector<StateEntry> entries;
  entries.reserve(metadata.tensors.size());
  for (const DcpTensor& tensor : metadata.tensors)
    entries.push_back({tensor.name, tensor.dtype ? num_bytes(*tensor.dtype, tensor.shape).value_or(0) : 0});
  return entries;
}

/// Notes that what is no tensor is left out.
void note_objects(std::initializer_list<const DcpMetadata*> all, std::vector<std::string>& notes) {
  std::size_t count = 0;
  const DcpBytes* first = nullptr;
  for (const DcpMetadata* metadata : all) {
    count += metadata->bytes.size();
    if (first == nullptr && !metadata->bytes.empty()) first = &metadata->bytes.front();
  }
  if (first == nullptr) return;
  const std::string name = printable(first->name);
  notes.push_back(count == 1 ? name + ", which is no tensor, is left out"
                             : fmt::format("{} entries that are no tensors are left out, as {}", count, name));
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

/// Every part of the model has a file, of any rank. That is all that shows whole tensors that are missing, unless a
/// config.json says which there are; torch writes no file of a part that has no tensor.
void validate_parts(const fs::path& directory, const std::vector<TensorFile>& files) {
  std::set<std::uint32_t> found;
  std::uint32_t parts = 0;
  for (const TensorFile& file : files) {
    const auto name = dcp_shard_name(file.path.filename().string());
    if (!name) continue;
    if (parts != 0 && name->parts != parts)
      throw Error(ErrorKind::kBadInput, fmt::format("is of a model of {} parts, but {} of one of {}", name->parts,
                                                    files.front().path.filename().string(), parts))
          .in(file.path)
          .hint("files of several saves are mixed in one folder");
    parts = name->parts;
    found.insert(name->part);
  }
  std::uint32_t missing = 1;
  while (found.count(missing) != 0) ++missing;
  if (missing <= parts)
    throw Error(ErrorKind::kBadInput,
                fmt::format("holds no file of part {} of the model, which has {} parts", missing, parts))
        .in(directory)
        .hint("copy the missing files here, or say by `config` which tensors the model has");
}

}  // namespace

DcpSource read_dcp_source(Files& files, const fs::path& directory, const Family* family, DcpContent content,
                          const fs::path& optimizer_directory) {
  DcpSource source;
  const ReadMetadata read = read_all_metadata(files, directory, content, source.notes);
  const DcpMetadata& metadata = read.all;
  source.where = read.where;
  const ReadMetadata optimizer = read_optimizer_metadata(files, optimizer_directory, content, source.notes);
  std::vector<StateEntry> entries = entries_of(metadata);
  std::vector<std::string> beside;
  for (const DcpBytes& object : metadata.bytes) beside.push_back(object.name);
  for (const DcpTensor& tensor : optimizer.all.tensors) beside.push_back(tensor.name);
  for (const DcpBytes& object : optimizer.all.bytes) beside.push_back(object.name);
  const StateNames names = names_in_model(entries, family, beside, source.where, source.notes);
  if (names.others.empty()) source.program = names.program;
  ChunkFinder finder(files, directory, read, source.files, source.notes);
  for (std::uint32_t t = 0; t < names.names.size(); ++t)
    if (!names.names[t].empty()) take_order(names, t, finder.add(metadata.tensors[t], names.names[t]));
  if (content == DcpContent::kModel) {
    for (StateEntry& entry : entries_of(optimizer.all)) entries.push_back(std::move(entry));
    leave_out_others(entries, names, source.beside, source.notes);
    note_objects({&metadata, &optimizer.all}, source.notes);
    source.tensors = finder.find();
    return source;
  }
  DcpStateFinder states(metadata.tensors, names, source.where);
  add_states(states.find(metadata, names.names), finder);
  source.tensors = finder.find();
  move_states(source.tensors, source.states);
  if (!optimizer_directory.empty()) {
    ChunkFinder in_optimizer(files, optimizer_directory, optimizer, source.files, source.notes);
    add_states(states.find(optimizer.all, {}), in_optimizer);
    std::vector<ChunkedTensor> found = in_optimizer.find();
    move_states(found, source.states);
  }
  source.paths = states.take_paths();
  note_states(source, names, states.strangers());
  return source;
}

bool is_dcp_metadata_name(std::string_view name) {
  return name == kDcpMetadataFile || rank_of_metadata(name);
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
  if (family == nullptr) validate_parts(directory, source.files);
  std::vector<StateEntry> entries;
  for (ChunkedTensor& tensor : source.tensors) {
    const auto bytes = num_bytes(tensor.dtype, tensor.shape);
    if (!bytes)
      throw Error(ErrorKind::kBadInput, "its chunks lie too far apart for any tensor")
          .in(directory)
          .tensor(tensor.entry);
    entries.push_back({tensor.entry, *bytes});
  }
  StateNames names = names_in_model(entries, family, {}, source.where, source.notes);
  if (names.others.empty()) source.program = names.program;
  leave_out_others(entries, names, source.beside, source.notes);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    source.tensors[i].name = std::move(names.names[i]);
    take_order(names, i, source.tensors[i]);
  }
  std::erase_if(source.tensors, [](const ChunkedTensor& tensor) { return tensor.name.empty(); });
  validate_chunks(source.tensors, directory);
  return source;
}

}  // namespace reshard
