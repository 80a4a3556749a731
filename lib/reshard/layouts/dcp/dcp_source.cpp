#include "reshard/layouts/dcp/dcp_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <map>
#include <set>

#include "reshard/base/checked.h"
#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/formats/dcp/dcp_shards.h"
#include "reshard/formats/read_container.h"
#include "reshard/layouts/core/read_model.h"
#include "reshard/layouts/dcp/dcp_chunks.h"
#include "reshard/layouts/dcp/dcp_directory.h"
#include "reshard/layouts/dcp/dcp_states.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

DcpPaths paths_of(DcpContent content) {
  return content == DcpContent::kRun ? DcpPaths::kRead : DcpPaths::kLeave;
}

void add_states(std::vector<DcpState> states, DcpChunkFinder& finder) {
  for (DcpState& state : states) {
    ChunkedTensor& tensor = state.tensor != nullptr ? finder.add(*state.tensor, std::move(state.name))
                                                    : finder.add(state.objects, std::move(state.name));
    if (state.tensor != nullptr) tensor.role = TensorRole::kState;
    tensor.state = state.state;
  }
}

/// Moves states and objects from `tensors` to `states`.
void move_states(std::vector<ChunkedTensor>& tensors, std::vector<ChunkedTensor>& states) {
  const auto first = std::stable_partition(tensors.begin(), tensors.end(), [](const ChunkedTensor& tensor) {
    return tensor.role == TensorRole::kParameter;
  });
  std::move(first, tensors.end(), std::back_inserter(states));
  tensors.erase(first, tensors.end());
}

/// \throws Error kUnsupported for states that would keep another program's names while parameters get the model's
/// names.
void refuse_strangers(const DcpSource& source, const StateNames& names, const std::vector<std::string>& strangers) {
  if (!names.are_replaced || strangers.empty()) return;
  throw Error(ErrorKind::kUnsupported, fmt::format("is one of {} optimizer states that belong to no parameter, but the "
                                                   "names of {} are replaced by the model's own",
                                                   strangers.size(), names.program))
      .in(source.where)
      .tensor(strangers.front())
      .hint("leave out `with-optimizer`");
}

/// Notes the training state that is read in addition to the model.
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
  source.notes.hint(fmt::format(
      "{}{}{} in addition to the model ({}) {} also read: the optimizer and other training state",
      tensors > 0 ? counted(tensors, "tensor") : "", tensors > 0 && objects > 0 ? " and " : "",
      objects > 0 ? counted(objects, "object") : "", format_bytes(bytes), source.states.size() == 1 ? "is" : "are"));
  if (!strangers.empty())
    source.notes
        .mismatch(fmt::format("{} optimizer states belong to no parameter of the model and keep their names: {}",
                              strangers.size(), list_names(strangers)))
        .of(strangers);
  const auto has = [&](auto&& is) { return std::any_of(source.states.begin(), source.states.end(), is); };
  const bool has_optimizer = has(
      [](const ChunkedTensor& state) { return state.role == TensorRole::kState && !state.state.parameter.empty(); });
  if (has_optimizer && !has([](const ChunkedTensor& state) { return is_of_group(state.name); }))
    source.notes.missing(
        "the checkpoint has no parameter groups of its optimizer: its hyperparameters are not in the output");
  source.prefix = names.prefix;
}

/// Returns the metadata of the model's optimizer; empty if `directory` is empty. With kModel, metadata that cannot be
/// read adds a note instead of failing.
DcpDirectory read_optimizer_metadata(Files& files, const fs::path& directory, DcpContent content, Notes& notes) {
  if (directory.empty()) return {};
  try {
    return read_dcp_directory(files, directory, paths_of(content), notes);
  } catch (const Error& error) {
    if (content == DcpContent::kRun || error.kind() == ErrorKind::kIo) throw;
    notes.mismatch(fmt::format("the optimizer next to the model is not counted: {}", error.what()));
  }
  return {};
}

std::vector<TrainedTensor> entries_of(const DcpMetadata& metadata) {
  std::vector<TrainedTensor> entries;
  entries.reserve(metadata.tensors.size());
  for (const DcpTensor& tensor : metadata.tensors) entries.push_back({tensor.name, tensor.dtype, tensor.shape});
  return entries;
}

/// Counts the entries other than tensors, and notes that they are left out.
void leave_out_objects(std::initializer_list<const DcpMetadata*> all, BesideModel& beside, Notes& notes) {
  const DcpBytes* first = nullptr;
  for (const DcpMetadata* metadata : all)
    for (const DcpBytes& object : metadata->bytes) {
      if (first == nullptr) first = &object;
      ++beside.objects;
      beside.object_bytes += object.place.length_bytes;
    }
  if (first == nullptr) return;
  const std::string name = printable(first->name);
  notes.left_out(beside.objects == 1
                     ? name + ", which is not a tensor, is left out"
                     : fmt::format("left out {} entries that are not tensors, such as {}", beside.objects, name));
}

/// Adds the tensors of a file as chunks of the tensors with the same names.
void add_shard(const Container& file, const std::vector<Dims>& offsets, DcpSource& source,
               std::map<std::string, std::size_t>& by_name) {
  const auto index = static_cast<std::uint32_t>(source.files.size());
  source.files.push_back({{file.path, file.size_bytes}});
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
    if (num_elems(entry.shape) == 0u) continue;  // the rank owns no elements
    if (tensor.chunks.empty()) tensor.shape = Dims(entry.shape.size());
    for (std::size_t d = 0; d < entry.shape.size(); ++d) {
      const auto end = checked_add(offsets[t][d], entry.shape[d]);
      if (!end) throw Error(ErrorKind::kBadInput, "its end overflows 64 bits").in(file.path).tensor(entry.name);
      tensor.shape[d] = std::max(tensor.shape[d], *end);
    }
    tensor.chunks.push_back({{offsets[t], entry.shape}, index, entry.offset_bytes, {}});
  }
}

/// Validates that each part of the model has a file, of any rank. Without a config.json, this is the only way to detect
/// missing tensors. torch writes no file for a part without tensors.
void validate_parts(const fs::path& directory, const std::vector<SourceFile>& files) {
  std::set<std::uint64_t> found;
  std::uint64_t parts = 0;
  for (const SourceFile& file : files) {
    const auto numbers = kDcpShardName.parse(file.path.filename().string());
    if (!numbers) continue;
    if (parts != 0 && numbers->at("parts") != parts)
      throw Error(ErrorKind::kBadInput,
                  fmt::format("belongs to a model of {} parts, but {} to one of {}", numbers->at("parts"),
                              files.front().path.filename().string(), parts))
          .in(file.path)
          .hint("files of several saves are mixed in one folder");
    parts = numbers->at("parts");
    found.insert(numbers->at("part"));
  }
  std::uint64_t missing = 1;
  while (found.count(missing) != 0) ++missing;
  if (missing <= parts)
    throw Error(ErrorKind::kBadInput,
                fmt::format("contains no file of part {} of the model, which has {} parts", missing, parts))
        .in(directory)
        .hint("copy the missing files here, or set `config`, which defines the tensors of the model");
}

}  // namespace

DcpSource read_dcp_source(Files& files, const fs::path& directory, const KnownModel& model, ConfigUse use,
                          DcpContent content, const fs::path& optimizer_directory) {
  DcpSource source;
  const DcpDirectory read = read_dcp_directory(files, directory, paths_of(content), source.notes);
  const DcpMetadata& metadata = read.all;
  source.where = read.where;
  const DcpDirectory optimizer = read_optimizer_metadata(files, optimizer_directory, content, source.notes);
  std::vector<TrainedTensor> entries = entries_of(metadata);
  std::vector<std::string> beside;
  for (const DcpBytes& object : metadata.bytes) beside.push_back(object.name);
  for (const DcpTensor& tensor : optimizer.all.tensors) beside.push_back(tensor.name);
  for (const DcpBytes& object : optimizer.all.bytes) beside.push_back(object.name);
  StateNames names = names_in_model(entries, model, beside, use, source.where, source.notes);
  source.old_names = std::move(names.old_names);
  if (!names.are_replaced) source.program = names.program;
  source.packed = packed_entries(entries, names, source.where);
  DcpChunkFinder finder(files, directory, read, source.files, source.notes);
  for (std::uint32_t t = 0; t < names.entries.size(); ++t)
    if (const std::string& name = names.entries[t].name; !name.empty()) finder.add(metadata.tensors[t], name);
  if (content == DcpContent::kModel) {
    for (TrainedTensor& entry : entries_of(optimizer.all)) entries.push_back(std::move(entry));
    leave_out_others(entries, names, source.beside, source.notes);
    leave_out_objects({&metadata, &optimizer.all}, source.beside, source.notes);
    source.tensors = finder.find();
    note_incomplete_files(finder.sizes_bytes(), metadata, source.notes);
    std::vector<std::optional<std::uint64_t>> sizes_bytes;
    for (const std::string& file : optimizer.all.files)
      sizes_bytes.push_back(dcp_file_size(files, optimizer_directory / file));
    note_incomplete_files(sizes_bytes, optimizer.all, source.notes);
    return source;
  }
  DcpStateFinder states(metadata.tensors, names, source.where);
  add_states(states.find(metadata, names.entries), finder);
  source.tensors = finder.find();
  move_states(source.tensors, source.states);
  if (!optimizer_directory.empty()) {
    DcpChunkFinder in_optimizer(files, optimizer_directory, optimizer, source.files, source.notes);
    add_states(states.find(optimizer.all, {}), in_optimizer);
    std::vector<ChunkedTensor> found = in_optimizer.find();
    move_states(found, source.states);
  }
  refuse_strangers(source, names, states.strangers());
  source.paths = states.take_paths();
  source.packed_states = states.take_packed();
  note_states(source, names, states.strangers());
  return source;
}

bool holds_dcp_shards(Files& files, const fs::path& directory) {
  const std::vector<DirectoryEntry> entries = files.list(directory);
  return std::any_of(entries.begin(), entries.end(), [](const DirectoryEntry& entry) {
    return entry.kind == FileKind::kFile && kDcpShardName.matches(entry.name);
  });
}

DcpSource read_dcp_shards(Files& files, const fs::path& directory, const KnownModel& model, ConfigUse use) {
  DcpSource source;
  source.format = Format::kSafetensors;
  source.where = directory;
  std::map<std::string, std::size_t> by_name;
  std::vector<fs::path> paths;
  for (const DirectoryEntry& entry : files.list(directory))
    if (kDcpShardName.matches(entry.name)) paths.push_back(directory / entry.name);
  for (auto& read : read_containers(files, paths, Format::kSafetensors)) {
    const Container file = read.get();
    add_shard(file, read_saved_offsets(file), source, by_name);
  }
  if (model.family == nullptr) validate_parts(directory, source.files);
  std::vector<TrainedTensor> entries;
  for (ChunkedTensor& tensor : source.tensors) {
    if (!num_bytes(tensor.dtype, tensor.shape))
      throw Error(ErrorKind::kBadInput, "its chunks are too far apart for any tensor")
          .in(directory)
          .tensor(tensor.entry);
    entries.push_back({tensor.entry, tensor.dtype, tensor.shape});
  }
  StateNames names = names_in_model(entries, model, {}, use, source.where, source.notes);
  source.old_names = std::move(names.old_names);
  if (!names.are_replaced) source.program = names.program;
  leave_out_others(entries, names, source.beside, source.notes);
  source.packed = packed_entries(entries, names, source.where);
  for (std::size_t i = 0; i < entries.size(); ++i) source.tensors[i].name = std::move(names.entries[i].name);
  std::erase_if(source.tensors, [](const ChunkedTensor& tensor) { return tensor.name.empty(); });
  validate_chunks(source.tensors, directory);
  return source;
}

}  // namespace reshard
