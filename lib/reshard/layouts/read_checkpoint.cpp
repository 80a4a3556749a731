#include "reshard/layouts/read_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/pattern.h"
#include "reshard/base/strings.h"
#include "reshard/formats/common/open_weights.h"
#include "reshard/formats/read_container.h"
#include "reshard/formats/safetensors/hf_index.h"
#include "reshard/io/open_store.h"
#include "reshard/io/text_file.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/core/misfits.h"
#include "reshard/layouts/core/model_bounds.h"
#include "reshard/layouts/core/read_model.h"
#include "reshard/layouts/core/strangers.h"
#include "reshard/layouts/found.h"
#include "reshard/layouts/hf/hf_files.h"
#include "reshard/layouts/interrupted_swap.h"
#include "reshard/layouts/layout_table.h"
#include "reshard/layouts/lone_rank.h"
#include "reshard/layouts/map/rank_record.h"
#include "reshard/layouts/names/wrappers.h"
#include "reshard/layouts/peft/sharded_adapter.h"
#include "reshard/layouts/ranks/rank_format.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostFolders = 64;  // limit of folders to search, since the directory may be a home directory

bool holds_checkpoint(Files& files, const fs::path& folder) {
  try {
    return find_shards(files, folder) || find_whole(files, folder);
  } catch (const Error& error) {
    return error.kind() == ErrorKind::kBadInput && !error.code();  // contains two checkpoints
  }
}

/// Returns the snapshots of a model in the cache of the Hugging Face Hub (models--ORG--NAME): the snapshot of
/// refs/main, or else all of them. Empty if `directory` is not such a model.
std::vector<std::string> hub_snapshots(Files& files, const fs::path& directory) {
  constexpr std::uint64_t kMaxRefBytes = 256;
  const fs::path snapshots = directory / "snapshots", ref = directory / "refs/main";
  if (!files.is_directory(snapshots)) return {};
  std::string main = files.is_file(ref) ? read_text_file(files, ref, kMaxRefBytes) : std::string();
  main.erase(main.find_last_not_of("\r\n") + 1);
  std::vector<std::string> all;
  for (const DirectoryEntry& entry : files.list(snapshots)) {
    if (!holds_checkpoint(files, snapshots / entry.name)) continue;
    all.push_back((snapshots / entry.name).string());
    if (entry.name == main) return {all.back()};
  }
  std::sort(all.begin(), all.end());
  return all;
}

/// Returns a hint if a shards folder contains files, but no rank files, or not in their own folder; empty otherwise.
std::string hint_for_misplaced_ranks(Files& files, const fs::path& directory) {
  for (const Layout* layout : layouts()) {
    const std::string folder = layout->traits().folder;
    if (layout->ranks() == nullptr || folder.empty() || !files.is_directory(directory / folder)) continue;
    for (const DirectoryEntry& entry : files.list(directory / folder))
      if (entry.kind == FileKind::kFile && !entry.name.starts_with('.') &&
          std::any_of(std::begin(kContainerEndings), std::end(kContainerEndings),
                      [&](std::string_view ending) { return entry.name.ends_with(ending); }))
        return layout->ranks()->numbers(entry.name)
                   ? fmt::format("{0}/ contains rank files, such as {1}, which belong in {0}/{2}/: move them there",
                                 folder, printable(entry.name), layout->ranks()->weights_folder)
                   : fmt::format("no file in {}/ has the name of a rank, which begins like {}; one of them is {}",
                                 folder, layout->ranks()->name.print(numbers_of({})), printable(entry.name));
  }
  return {};
}

/// Returns the names of at most kMostFolders folders in `directory`.
std::vector<std::string> folders_in(Files& files, const fs::path& directory) {
  std::vector<std::string> names;
  for (const DirectoryEntry& entry : files.list(directory))
    if (entry.kind == FileKind::kDirectory && !entry.name.starts_with('.') && names.size() < kMostFolders)
      names.push_back(entry.name);
  return names;
}

/// Returns the folders in `directory` that contain a checkpoint, for a message.
std::vector<std::string> folders_with_checkpoints(Files& files, const fs::path& directory) {
  std::vector<std::string> folders;
  for (const std::string& name : folders_in(files, directory))
    if (holds_checkpoint(files, directory / name)) folders.push_back(printable(name) + "/");
  return folders;
}

/// Returns a hint that names the weights files in a folder of `directory`, such as one for each step; empty if there are
/// none, or if they have names of ranks.
std::string hint_for_files(Files& files, const fs::path& directory, const fs::path& folder) {
  std::vector<std::string> names = possible_weights_files(files, directory / folder);
  std::erase_if(names, [&](const std::string& name) { return has_rank_name(files, directory / folder / name); });
  if (names.empty()) return {};
  if (const fs::path adapter = peft_file_in(files, directory / folder); !adapter.empty())
    return fmt::format("{} in it is a finished adapter: use it as it is, or with convert",
                       printable((folder / adapter.filename()).string()));
  const Pattern of_step(R"(\.ckpt$|^(ep|epoch|step|iter|checkpoint|ckpt|latest)[-_=]?(rank)?\d)");
  const bool are_steps = std::all_of(names.begin(), names.end(), [&](auto& name) { return of_step.found_in(name); });
  if (names.size() > 1 && !are_steps) return {};  // they may be parts of one model
  for (std::string& name : names) name = printable((folder / name).string());
  return names.size() == 1 ? fmt::format("{} in it is a weights file: give that file", names.front())
                           : fmt::format("it contains several weights files, give one of them: {}", list_names(names));
}

/// Returns a hint for a directory that is not a checkpoint: the folders in it that contain one, or its only weights
/// file, or a likely mistake. May be empty.
std::string hint_for_contents(Files& files, const fs::path& directory) {
  if (const std::vector<std::string> snapshots = hub_snapshots(files, directory); !snapshots.empty())
    return fmt::format("it is a model in the cache of the Hugging Face Hub: give {} {}",
                       snapshots.size() == 1 ? "its snapshot" : "one of its snapshots,", list_names(snapshots));
  std::vector<std::string> folders = folders_with_checkpoints(files, directory);
  if (folders.empty())  // NxD's adapters are in lora_adapter/NAME
    if (const std::vector<std::string> inner = folders_in(files, directory); inner.size() == 1)
      for (const std::string& name : folders_with_checkpoints(files, directory / inner.front()))
        folders.push_back(printable(inner.front()) + "/" + name);
  std::sort(folders.begin(), folders.end(), natural_less);
  if (folders.size() == 1) return fmt::format("{} in it contains a checkpoint: give that folder", folders.front());
  if (!folders.empty())
    return fmt::format("folders in it contain checkpoints, give one of them: {}", list_names(folders));
  const auto weights = only_weights_file(files, directory);
  if (weights && is_peft_weights_name(*weights))
    return "it contains a LoRA adapter, which convert reads: to shard it, give the directory of its model, and this "
           "one as `adapter`";
  if (std::string hint = hint_for_files(files, directory, {}); !hint.empty()) return hint;
  if (std::string hint = hint_for_misplaced_ranks(files, directory); !hint.empty()) return hint;
  for (const std::string& name : folders_in(files, directory))
    if (std::string hint = hint_for_files(files, directory, name); !hint.empty()) return hint;
  return {};
}

/// \throws Error kUnsupported if files in `path` show that another system wrote them.
void refuse_strange_files(Files& files, const fs::path& path) {
  if (const auto stranger = stranger_in(files, path)) throw Error(*stranger);
}

/// Returns why `path` is only a part of a checkpoint, if names of files show that.
std::optional<Error> explain_part(Files& files, const fs::path& path) {
  for (const Layout* layout : layouts())
    if (auto error = layout->explain_missing(files, path)) return error;
  return explain_lone_rank(files, path);
}

/// \throws Error if a layout can explain why `path` is not one of its checkpoints, or if another system wrote the
/// files.
void refuse_part(Files& files, const fs::path& path) {
  if (const auto error = explain_part(files, path)) throw Error(*error);
  refuse_strange_files(files, path);
}

/// Refuses whole tensors next to the number of a rank, which NxD Inference stores in each rank's file. No-op if `use` is
/// kLenient.
void validate_no_number(Files& files, const Checkpoint& checkpoint, ConfigUse use) {
  const auto number =
      std::find_if(checkpoint.map.logical.begin(), checkpoint.map.logical.end(),
                   [](const LogicalTensor& tensor) { return ("." + tensor.name).ends_with(".rank_util.rank"); });
  if (number != checkpoint.map.logical.end() && use != ConfigUse::kLenient)
    throw Error(ErrorKind::kBadInput,
                "contains a rank's number, as the files of NxD Inference do: it is one rank, not a complete model")
        .in(checkpoint.path)
        .tensor(number->name)
        .hint(hint_for_one_rank(files, checkpoint.path));
}

/// Refuses whole tensors that are one rank of several, as a file records or names show. If `use` is kLenient, only adds
/// a note on names; reading the file has noted what it records.
void validate_no_rank(Files& files, Checkpoint& checkpoint, ConfigUse use) {
  if (checkpoint.has_ranks()) return;
  validate_no_part(checkpoint.path, checkpoint.file_metadata, use);
  const auto recorded = std::find_if(checkpoint.map.files.begin(), checkpoint.map.files.end(),
                                     [](const SourceFile& file) { return file.record.has_value(); });
  if (recorded != checkpoint.map.files.end()) {
    if (use == ConfigUse::kLenient) return;
    throw Error(ErrorKind::kBadInput, fmt::format("records that it is {} of a sharded checkpoint, not a complete model",
                                                  describe_rank(*recorded->record)))
        .in(recorded->path)
        .hint(hint_for_one_rank(files, checkpoint.path));
  }
  const bool is_file = checkpoint.layout == nullptr;
  const auto error = is_file ? explain_part(files, checkpoint.path) : explain_lone_rank(files, checkpoint.path);
  if (!error && is_file) validate_no_number(files, checkpoint, use);
  if (!error) return;
  if (use != ConfigUse::kLenient) throw Error(*error);
  checkpoint.notes.mismatch(error->with_hint()).in(error->path());
}

/// Reads a single file. If this fails, reports whether the file is part of a checkpoint.
Container read_lone_file(Files& files, const fs::path& path, Format format) {
  try {
    return read_container(files, path, format);
  } catch (Error& error) {
    if (error.kind() != ErrorKind::kIo)
      if (const auto part = explain_part(files, path)) throw Error(*part);
    if (error.kind() == ErrorKind::kBadInput) refuse_strange_files(files, path);
    const auto owns = [&](const Layout* layout) {
      return layout->traits().needs_no_mesh() && layout->owns(files, path.parent_path(), path.filename().string());
    };
    if (error.hint().empty() && std::any_of(layouts().begin(), layouts().end(), owns))
      error.hint("it is part of a checkpoint: give the directory that contains all of it");
    throw;
  }
}

Checkpoint read_file(Files& files, const fs::path& path, const ReadContext& context) {
  Checkpoint checkpoint;
  checkpoint.path = path;
  checkpoint.directory = files.absolute(path).parent_path();
  find_config(files, checkpoint, context.config);
  checkpoint.format = format_of_file(files, path);
  checkpoint.weights_stem = diffusers_stem(path.filename().string());
  std::vector<Container> containers{read_lone_file(files, path, checkpoint.format)};
  if (!read_record(containers.front())) {
    LanguageModel described;
    const KnownModel known = known_model(files, checkpoint, context, described);
    checkpoint.old_names = take_out_wrappers(containers, known, checkpoint.notes);
    if (has_rank_name(files, path) && !explain_lone_rank(files, path))
      checkpoint.notes
          .assumed(fmt::format("{} has the name of rank 0: if there were other ranks, these are parts of the tensors",
                               path.string()))
          .in(path);
  }
  recognise_quantization(files, checkpoint, containers, context);
  return read_whole_files(files, std::move(checkpoint), containers, context);
}

/// Reads a file that need not be a model.
Checkpoint read_any_file(Files& files, const fs::path& path, const ReadContext& context) {
  ReadContext lenient = context;
  lenient.use = ConfigUse::kLenient;
  Checkpoint checkpoint = read_file(files, path, lenient);
  validate_no_rank(files, checkpoint, context.use);
  return checkpoint;
}

/// Notes the options on how ranks were made that have no effect on this checkpoint.
void note_idle_options(Checkpoint& checkpoint, const OptionValues& values) {
  for (const std::string& name : values.names()) {
    const auto find = [&](const Layout& layout) -> const LayoutOption* {
      for (const LayoutOption* option : layout.options())
        if (option->of_source && name == option->name) return option;
      return nullptr;
    };
    const LayoutOption* own = checkpoint.layout == nullptr ? nullptr : find(*checkpoint.layout);
    std::string why;
    if (!checkpoint.adapters.empty() && !checkpoint.model)
      why = " on adapters";
    else if (own == nullptr)
      why = fmt::format(" on {}: it is for sources in layout {}", checkpoint.path.string(),
                        layout_names([&](const Layout& layout) { return find(layout) != nullptr; }));
    else if (own->why_source_idle != nullptr && !(why = own->why_source_idle(checkpoint)).empty())
      why.insert(0, ": ");
    if (!why.empty()) checkpoint.notes.no_effect(fmt::format("`from-{}` has no effect{}", name, why));
  }
}

/// Reads the adapter that PEFT saved in `directory`.
Checkpoint read_peft_adapter(Files& files, const PeftDirectory& adapter, const ReadContext& context) {
  const fs::path weights = peft_file_in(files, adapter.path);
  if (weights.empty())
    throw Error(ErrorKind::kBadInput, fmt::format("contains an adapter_config.json, but neither {} nor {}",
                                                  kPeftWeights[0].name, kPeftWeights[1].name))
        .in(adapter.path);
  Checkpoint checkpoint = read_any_file(files, weights, context);
  describe_peft_adapter(checkpoint, adapter.name, adapter.path);
  return checkpoint;
}

/// Reads the adapters that PEFT saved in a directory: its own, and those in its folders.
Checkpoint read_peft_directory(Files& files, const FoundCheckpoint& found, const PeftFolders& folders,
                               const ReadContext& context) {
  const bool alone = folders.adapters.empty();
  Checkpoint checkpoint = alone ? read_peft_adapter(files, {kDefaultAdapter, found.path}, context)
                                : read_peft_adapters(files, {found.path});
  if (!alone && !context.config.path.empty() && !context.config.where_missing)
    find_config(files, checkpoint, context.config);  // the base model's, to shard them
  if (alone && !folders.steps.empty()) checkpoint.notes.left_out(note_on_steps(folders.steps));
  note_idle_options(checkpoint, context.options);
  return checkpoint;
}

/// Notes a sharded checkpoint in a directory whose Hugging Face weights were read.
void note_shards_beside(Checkpoint& checkpoint, const FoundLayout& shards) {
  fs::path other = shards.path;
  if (other == checkpoint.path) other /= shards.layout->traits().folder;
  checkpoint.notes
      .left_out(fmt::format("there is also a sharded checkpoint in {}; reading the Hugging Face weights{}",
                            shards.path.string(),
                            other.has_filename() ? fmt::format("; give {} to read the shards", other.string()) : ""))
      .in(shards.path);
}

/// Notes problems that are errors in other commands: tensors of the model that are missing or have other shapes.
void note_misfits(Checkpoint& checkpoint) {
  if (!checkpoint.model || !checkpoint.adapters.empty()) return;
  const std::string config = checkpoint.config.is_given ? checkpoint.config.path.string() : kConfigFile;
  try {
    const auto besides = validate_trained_against_model(checkpoint.map, *checkpoint.model, checkpoint.path);
    if (!besides.empty() && !checkpoint.beside_model)
      checkpoint.notes.mismatch(fmt::format("{} does not explain these tensors: {}", config, list_names(besides)))
          .of(besides);
  } catch (const Error& error) {
    std::string text = error.what();
    if (error.kind() != ErrorKind::kUnsupported && checkpoint.config.is_given)
      text = fmt::format("{} seems to belong to another model: {}", config, text);
    else if (error.kind() != ErrorKind::kUnsupported)
      text += ": " + (error.hint().empty()
                          ? fmt::format("the checkpoint is incomplete, or {} belongs to another model", config)
                          : error.hint());
    Misfits misfits = find_misfits(checkpoint.map.logical, *checkpoint.model);
    const bool is_missing = !misfits.missing.empty();
    for (const Misfits::Shape& other : misfits.shapes) misfits.missing.push_back(other.tensor->name);
    checkpoint.notes.add({is_missing ? NoteKind::kMissing : NoteKind::kMismatch, std::move(text)})
        .of(std::move(misfits.missing))
        .in(checkpoint.config.is_given ? checkpoint.config.path : fs::path(error.path()));
  }
}

/// Notes empty parameters, which are errors in other commands, of adapters and of tensors that no model explains.
void note_emptied(Checkpoint& checkpoint) {
  if (checkpoint.model && checkpoint.adapters.empty()) return;  // note_misfits does
  const auto emptied = emptied_parameters(checkpoint.map.logical, nullptr);
  if (emptied.empty()) return;
  const Error error = emptied_error(emptied);
  checkpoint.notes.mismatch(fmt::format("{}: {}", error.what(), error.hint())).of(emptied).in(error.path());
}

/// Notes which other system the names belong to, if no model explains them.
void note_strangers(Checkpoint& checkpoint) {
  if (checkpoint.model || checkpoint.has_mesh()) return;
  std::vector<std::string_view> names;
  names.reserve(checkpoint.map.logical.size());
  for (const LogicalTensor& tensor : checkpoint.map.logical) names.push_back(tensor.name);
  if (const auto stranger = stranger_among(names, nullptr))
    checkpoint.notes.mismatch(fmt::format("{}, so names and shapes are kept; {}", stranger->what(), stranger->hint()));
}

/// \throws Error kUnsupported instead of the layout's own error if the files show that another system wrote them, unless
/// that error is about an unfinished file.
Checkpoint read_found(Files& files, const FoundLayout& found, const ReadContext& context) {
  try {
    return found.layout->read(files, found, context);
  } catch (const Error& error) {
    const bool may_be_strange = error.kind() == ErrorKind::kBadInput || error.kind() == ErrorKind::kIo;
    if (may_be_strange && !download_control_of(files, error.path())) refuse_strange_files(files, found.path);
    throw;
  }
}

Checkpoint read(Files& files, const FoundLayout& found, const ReadContext& context) {
  Checkpoint checkpoint = read_found(files, found, context);
  // Rank files may be read at any offset and as any bytes, so they must not be links to other files. Weights of a
  // Hugging Face directory must be containers of tensors, so links are harmless.
  if (checkpoint.has_ranks()) validate_no_outside_links(files, checkpoint);
  validate_no_rank(files, checkpoint, context.use);
  note_strangers(checkpoint);
  if (context.use == ConfigUse::kLenient) note_misfits(checkpoint);
  note_idle_options(checkpoint, context.options);
  return checkpoint;
}

/// Reads the shards of adapters. One that is read alone gets no folder of its own.
Checkpoint read_adapters(Files& files, const FoundCheckpoint& found, const ReadContext& context) {
  const std::vector<AdapterFolder>& folders = found.adapter_shards;
  const bool alone = folders.front().alone || (found.kind != SourceKind::kShards && folders.size() == 1);
  for (const AdapterFolder& folder : folders)
    if (!alone && (folder.name.empty() || folder.name == "." || folder.name == ".."))
      throw Error(ErrorKind::kBadInput, "is not called adapter_NAME with a name that a folder can have")
          .in(folder.shards.directory);
  std::vector<Checkpoint> adapters;
  read_each_adapter(files, found, context, [&](Checkpoint adapter) { adapters.push_back(std::move(adapter)); });
  return alone ? std::move(adapters.front()) : join_adapters(found.path, std::move(adapters));
}

/// Returns the folders that layouts of ranks write to.
std::string shards_folders() {
  std::vector<std::string> folders;
  for (const Layout* layout : layouts()) {
    const LayoutTraits& traits = layout->traits();
    const std::string folder = std::string(traits.folder) + "/";
    if (traits.has_ranks() && *traits.folder != '\0' &&
        std::find(folders.begin(), folders.end(), folder) == folders.end())
      folders.push_back(folder);
  }
  return join(folders, " or ");
}

/// Whether a file has the name of a rank file or of an adapter.
bool is_part_name(const fs::path& name) {
  if (is_peft_weights_name(name.string())) return true;
  return std::any_of(layouts().begin(), layouts().end(), [&](const Layout* layout) {
    return layout->ranks() != nullptr && layout->ranks()->numbers(name.string());
  });
}

/// Reads the model in a single file, such as a saved state dict.
/// \throws Error kBadInput if config.json describes more than the file contains.
Checkpoint read_lone_model(Files& files, const fs::path& path, const ReadContext& context) {
  const auto number = hf_file_number(path.filename().string());
  if (number && number->count > 1)
    throw Error(ErrorKind::kBadInput, "is one of several weight files of a model")
        .in(path)
        .hint("give the directory that contains all of them");
  if (context.use != ConfigUse::kLenient)  // before an error about what the file lacks
    if (const auto error = explain_part(files, path)) throw Error(*error);
  Checkpoint checkpoint = read_file(files, path, context);
  validate_no_rank(files, checkpoint, context.use);
  if (context.use == ConfigUse::kNeeded && !checkpoint.model)
    throw unknown_model_type(checkpoint.language_model.config, {});
  if (checkpoint.model && context.use == ConfigUse::kStrict)
    validate_against_model(checkpoint.map, *checkpoint.model, path, context.extra);
  note_idle_options(checkpoint, context.options);
  return checkpoint;
}

bool has_data(Files& files, const fs::path& path) {
  return files.is_file(path) || files.is_directory(path);
}

/// The error for a path without data.
Error no_data(Files& files, const fs::path& path) {
  if (!files.exists(path)) return nothing_at(files, path);
  return Error(ErrorKind::kBadInput, "is a pipe or a device, but tensors are read from any position of a file")
      .in(path)
      .hint("save the data to a file, and give its path");
}

Error no_directory(Files& files, const fs::path& path) {
  if (!has_data(files, path)) return no_data(files, path);
  if (const auto error = explain_part(files, path)) return *error;
  return Error(ErrorKind::kBadInput, "is not a directory")
      .in(path)
      .hint("give the directory of the checkpoint, not one of its files");
}

/// Reads SourceKind::kShards.
Checkpoint read_sharded(Files& files, const FoundCheckpoint& found, const ReadContext& context) {
  const fs::path& path = found.path;
  if (files.is_file(path) && !is_part_name(path.filename())) return read_lone_model(files, path, context);
  if (!files.is_directory(path)) throw no_directory(files, path);
  if (!found.adapter_shards.empty()) return read_adapters(files, found, context);
  if (const fs::path adapter = found.adapter_beside_state(files); !adapter.empty())
    throw Error(ErrorKind::kBadInput,
                fmt::format("contains a finished adapter, {}, next to the state of its training in {}",
                            adapter.filename().string(), found.shards->path.lexically_relative(path).string()))
        .in(path)
        .hint("nothing needs to be consolidated: use the adapter as it is, or with convert");
  if (found.shards) return read(files, *found.shards, context);
  if (found.whole) {
    refuse_strange_files(files, path);
    Checkpoint whole = read(files, *found.whole, {.use = ConfigUse::kLenient});
    validate_no_rank(files, whole, context.use);
    throw Error(ErrorKind::kBadInput, "contains whole tensors, but no ranks to consolidate")
        .in(path)
        .hint("it is already a Hugging Face checkpoint; to change its files or dtype, use convert");
  }
  refuse_part(files, path);
  const std::string nearby = hint_for_contents(files, path);
  throw Error(ErrorKind::kBadInput, fmt::format("contains no rank files, neither directly nor in {}", shards_folders()))
      .in(path)
      .hint(nearby.empty() ? "give the directory of the shards folder, or that folder itself" : nearby);
}

/// Reads SourceKind::kWhole.
Checkpoint read_whole(Files& files, const FoundCheckpoint& found, const ReadContext& context) {
  const fs::path& directory = found.path;
  if (files.is_file(directory)) return read_lone_model(files, directory, context);
  if (!has_data(files, directory)) throw no_data(files, directory);
  if (!files.is_directory(directory))
    throw Error(ErrorKind::kBadInput, "is not a directory")
        .in(directory)
        .hint("give the directory that contains config.json and the weights, or a file with a state dict");
  if (!found.whole && found.shards && found.shards->layout->traits().needs_no_mesh())
    return read(files, *found.shards, context);
  if (!found.whole && found.shards) {
    refuse_strange_files(files, directory);
    throw Error(ErrorKind::kBadInput, "is a sharded checkpoint, without whole tensors")
        .in(directory)
        .hint("use convert, or consolidate it first");
  }
  if (!found.whole) refuse_part(files, directory);
  try {
    return read(files, {&whole_layout(), directory, directory}, context);
  } catch (Error& error) {
    if (!found.whole && error.path() == directory.string())
      if (const std::string nearby = hint_for_contents(files, directory); !nearby.empty()) error.hint(nearby);
    throw;
  }
}

/// Reads SourceKind::kAny.
Checkpoint read_any(Files& files, const FoundCheckpoint& found, const ReadContext& context) {
  const fs::path& path = found.path;
  const std::optional<FoundLayout>& shards = found.shards;
  if (!has_data(files, path)) throw no_data(files, path);
  if (!files.is_directory(path)) {
    Checkpoint checkpoint = read_any_file(files, path, context);
    note_idle_options(checkpoint, context.options);
    return checkpoint;
  }
  if (!found.adapter_shards.empty()) return read_adapters(files, found, context);
  if (!found.whole && !found.adapter_beside_state(files).empty()) {
    Checkpoint adapter = read_peft_directory(files, found, peft_folders_in(files, path), context);
    adapter.notes
        .left_out(fmt::format("the training state next to the adapter is left out; to read it, give {}",
                              shards->path.string()))
        .in(shards->path);
    return adapter;
  }
  if (shards && (!found.whole || found.whole->is_empty)) {
    Checkpoint checkpoint = read(files, *shards, context);
    if (!found.adapter_file.empty())
      checkpoint.notes
          .left_out(fmt::format("there is also an adapter, which is left out; to read it, give {}",
                                found.adapter_file.string()))
          .in(found.adapter_file);
    return checkpoint;
  }
  if (!shards && !found.whole) {
    const PeftFolders folders = peft_folders_in(files, path);
    if (!found.adapter_file.empty() || (!folders.adapters.empty() && folders_with_checkpoints(files, path).empty()))
      return read_peft_directory(files, found, folders, context);
  }
  Checkpoint checkpoint = read_whole(files, found, context);
  if (shards && !shards->is_empty) note_shards_beside(checkpoint, *shards);
  return checkpoint;
}

}  // namespace

Checkpoint read_checkpoint(Files& files, const FoundCheckpoint& found, const ReadContext& context) {
  const auto read_kind = [&] {
    if (found.ambiguity) throw *found.ambiguity;
    switch (found.kind) {
      case SourceKind::kShards: return read_sharded(files, found, context);
      case SourceKind::kWhole: return read_whole(files, found, context);
      case SourceKind::kAny: break;
    }
    Checkpoint checkpoint = read_any(files, found, context);
    if (context.use == ConfigUse::kLenient) note_emptied(checkpoint);
    return checkpoint;
  };
  Checkpoint checkpoint = read_unless_swapping(files, found.path, read_kind);
  checkpoint.notes.add_before(found.notes);
  return checkpoint;
}

Checkpoint read_checkpoint(Files& files, const fs::path& path, const ReadContext& context) {
  return read_checkpoint(files, found_at(files, path), context);
}

void read_each_adapter(Files& files, const FoundCheckpoint& found, const ReadContext& context,
                       const std::function<void(Checkpoint)>& take) {
  validate_not_swapping(files, found.path);
  AdapterMetadataReader metadata(files);
  for (const AdapterFolder& folder : found.adapter_shards) {
    Checkpoint adapter = read_sharded_adapter(files, folder, context, metadata);
    validate_no_outside_links(files, adapter);
    if (context.use == ConfigUse::kLenient) note_emptied(adapter);
    note_idle_options(adapter, context.options);
    take(std::move(adapter));
  }
}

Checkpoint read_peft_adapters(Files& files, const std::vector<fs::path>& directories) {
  std::vector<Checkpoint> adapters;
  Notes notes;
  for (const PeftDirectory& adapter : find_peft_adapters(files, directories, notes)) {
    adapters.push_back(read_peft_adapter(files, adapter, {.use = ConfigUse::kLenient}));
    if (adapters.back().map.logical.empty())
      throw Error(ErrorKind::kBadInput, "contains no tensors")
          .in(adapters.back().path)
          .hint("save the adapter again, or fetch the file again");
  }
  Checkpoint joint = join_adapters(directories.front(), std::move(adapters));
  joint.notes.add_before(notes);
  return joint;
}

}  // namespace reshard
