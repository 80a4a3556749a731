#include "reshard/layouts/hf/hf_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <unordered_set>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/formats/read_container.h"
#include "reshard/formats/torch/split_folder.h"
#include "reshard/layouts/names/wrappers.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Numbered weight files of one model, such as "model-00001-of-00002.safetensors".
struct NumberedFiles {
  std::uint64_t count = 0;                                   // the count in each name
  std::vector<std::pair<std::uint64_t, std::string>> files;  // number → name, sorted by both

  /// Returns the numbers without a file. Numbers start at 1, or at 0 if file 0 exists.
  std::vector<std::uint64_t> missing() const {
    std::set<std::uint64_t> present;
    for (const auto& [number, name] : files) present.insert(number);
    const std::uint64_t first = present.count(0) > 0 ? 0 : 1;
    std::vector<std::uint64_t> numbers;
    for (std::uint64_t number = first; number < first + count; ++number)
      if (present.count(number) == 0) numbers.push_back(number);
    return numbers;
  }
  bool is_complete() const { return files.size() == count && missing().empty(); }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& [number, name] : files) all.push_back(name);
    return all;
  }
};

/// Returns the entries of a directory. Returns none if listing is not permitted, since files may still be readable by
/// name.
std::vector<DirectoryEntry> entries_of(Files& files, const fs::path& directory) {
  try {
    return files.list(directory);
  } catch (const Error& error) {
    if (error.code() != std::errc::permission_denied) throw;
    return {};
  }
}

/// Returns the numbered files of a model whose single file would be named `whole`, one set per count in the names.
std::vector<NumberedFiles> numbered_sets(const std::vector<DirectoryEntry>& entries, const std::string& whole) {
  std::map<std::uint64_t, NumberedFiles> by_count;
  for (const DirectoryEntry& entry : entries) {
    const auto number = entry.kind == FileKind::kFile ? hf_file_number(entry.name) : std::nullopt;
    if (!number || number->whole != whole) continue;
    by_count[number->count].count = number->count;
    by_count[number->count].files.emplace_back(number->number, entry.name);
  }
  std::vector<NumberedFiles> sets;
  for (auto& [count, set] : by_count) {
    std::sort(set.files.begin(), set.files.end());
    sets.push_back(std::move(set));
  }
  return sets;
}

/// Returns the file names of each program, safetensors first.
std::vector<WholeNames> names_of_variant(const std::string& variant) {
  std::vector<WholeNames> all;
  for (const auto& [format, whole] :
       {std::pair(Format::kSafetensors, kSafetensorsFile), std::pair(Format::kPytorch, kPytorchFile),
        std::pair(Format::kSafetensors, kDiffusersSafetensorsFile), std::pair(Format::kPytorch, kDiffusersPytorchFile)})
    all.push_back({format, hf_variant_name({whole, variant}), hf_variant_index_name({whole, variant}), variant});
  for (const Format format : {Format::kSafetensors, Format::kPytorch}) {
    const HfVariant lora{hf_file_name(format, 1, 1, kDiffusersLoraStem), variant};
    all.push_back({format, hf_variant_name(lora), hf_variant_index_name(lora), variant});
  }
  return all;
}

/// Returns the variants of a model in a directory, each with the names of its single file.
std::map<std::string, std::set<std::string>> variants_in(const std::vector<DirectoryEntry>& entries) {
  std::map<std::string, std::set<std::string>> variants;
  for (const DirectoryEntry& entry : entries)
    if (const auto found = entry.kind == FileKind::kDirectory ? std::nullopt : hf_variant(entry.name))
      variants[found->variant].insert(hf_variant_name(*found));
  return variants;
}

/// Returns the weight files to read without an index: the single file, or else a complete numbered set. Empty if
/// neither exists.
std::vector<std::string> files_without_index(Files& files, const fs::path& directory, const WholeNames& names) {
  if (files.exists(directory / names.whole)) return {names.whole};
  const std::vector<NumberedFiles> sets = numbered_sets(entries_of(files, directory), names.whole);
  return sets.size() == 1 && sets.front().is_complete() ? sets.front().names() : std::vector<std::string>{};
}

std::vector<fs::path> paths_in(const fs::path& directory, const std::vector<std::string>& names) {
  std::vector<fs::path> paths;
  for (const std::string& name : names) paths.push_back(directory / name);
  return paths;
}

Error no_weights(Files& files, const fs::path& directory) {
  std::vector<std::string> numbered;
  for (const DirectoryEntry& entry : files.list(directory))
    if (entry.name.ends_with(".safetensors") ||
        (entry.name.starts_with("pytorch_model") && entry.name.ends_with(".bin")))
      numbered.push_back(entry.name);
  Error error(ErrorKind::kBadInput, "contains neither model.safetensors nor pytorch_model.bin, nor an index of either");
  error.in(directory);
  if (const auto variants = variants_in(entries_of(files, directory)); variants.size() > 1) {
    std::vector<std::string> names;
    names.reserve(variants.size());
    for (const auto& [variant, names_of_whole] : variants) names.push_back(variant);
    return error.hint(fmt::format("it contains several variants of a model ({}): move away the files of all but one",
                                  list_names(names)));
  }
  if (numbered.size() > 1 || (numbered.size() == 1 && numbered.front().find("-of-") != std::string::npos))
    error.hint("there are other weight files (" + list_names(numbered) + "); is the index missing?");
  return error;
}

/// Reads numbered weight files that have no index.
/// \throws Error kBadInput if they are not one complete set.
std::vector<Container> read_numbered(Files& files, const fs::path& directory, const WholeNames& names_of,
                                     Notes& notes) {
  const std::vector<NumberedFiles> sets = numbered_sets(entries_of(files, directory), names_of.whole);
  const std::string index = names_of.index;
  if (sets.empty()) throw no_weights(files, directory);  // deleted since they were recognised
  if (sets.size() > 1) {
    std::vector<std::uint64_t> counts;
    counts.reserve(sets.size());
    for (const NumberedFiles& set : sets) counts.push_back(set.count);
    throw Error(ErrorKind::kBadInput, fmt::format("contains weight files of several numbered sets, of {} files, and no "
                                                  "{}",
                                                  list_numbers(counts), index))
        .in(directory)
        .hint("move away the files of all sets but one");
  }
  const NumberedFiles& set = sets.front();
  if (!set.is_complete()) {
    const std::vector<std::uint64_t> missing = set.missing();
    const std::string problem = missing.empty()
                                    ? fmt::format("there are {}", set.files.size())
                                    : fmt::format("number{} {} missing", missing.size() == 1 ? "" : "s",
                                                  list_numbers(missing) + (missing.size() == 1 ? " is" : " are"));
    throw Error(ErrorKind::kBadInput,
                fmt::format("has no {}, and the names of its weight files ({}) state a set of {}, but {}", index,
                            list_names(set.names()), set.count, problem))
        .in(directory)
        .hint(missing.empty() ? "move away the files of other models" : "fetch or copy the missing files");
  }
  std::vector<Container> containers;
  for (auto& file : read_containers(files, paths_in(directory, set.names()), names_of.format))
    containers.push_back(file.get());
  notes
      .missing(fmt::format("{} is missing; read the complete set of {} numbered file{}: {}", index, set.count,
                           set.count == 1 ? "" : "s", list_names(set.names())))
      .in(directory / index);
  return containers;
}

/// Returns the weight files in `directory` that the index does not name.
std::vector<std::string> unlisted_files(Files& files, const fs::path& directory, Format format,
                                        const std::map<std::string, std::vector<std::string>>& listed) {
  const std::string ending = fs::path(hf_file_name(format, 1, 1)).extension();
  std::vector<std::string> names;
  for (const DirectoryEntry& entry : entries_of(files, directory))
    if (is_hf_weights_name(entry.name) && entry.name.ends_with(ending) && listed.count(entry.name) == 0)
      names.push_back(entry.name);
  std::sort(names.begin(), names.end(), natural_less);
  return names;
}

/// An index and the directory that contains its files.
struct IndexedFiles {
  Files& files;
  const fs::path& directory;
  const WholeNames& names_of;
  HfIndex index;
  std::map<std::string, std::vector<std::string>> names_by_file{};  // file → tensors
  std::unordered_set<std::string_view> listed{};                    // all tensors of the index

  std::string hint() const;
};

/// Returns a hint how to repair an index that does not match the weight files in its directory. Reads the headers of
/// all these files, and skips files that cannot be read.
std::string IndexedFiles::hint() const {
  std::vector<std::string> present = unlisted_files(files, directory, names_of.format, names_by_file);
  const bool has_unlisted = !present.empty();
  bool has_all = true;
  for (const auto& [file, names] : names_by_file) {
    const bool exists = files.exists(directory / file);
    has_all = has_all && exists;
    if (exists) present.push_back(file);
  }
  const std::vector<std::string> alone = files_without_index(files, directory, names_of);
  std::unordered_set<std::string> contained, contained_alone;
  bool has_several = false;  // several files contain a tensor of one name, and only the index says which is right
  auto containers = read_containers(files, paths_in(directory, present), names_of.format);
  auto next = containers.begin();
  std::erase_if(present, [&](const std::string& file) {
    try {
      const bool is_alone = std::find(alone.begin(), alone.end(), file) != alone.end();
      for (const TensorEntry& tensor : (next++)->get().tensors) {
        has_several = !contained.insert(tensor.name).second || has_several;
        if (is_alone) contained_alone.insert(tensor.name);
      }
      return false;
    } catch (const Error&) {
      return true;
    }
  });
  std::vector<std::string> absent;
  for (const auto& [name, file] : index.weight_map)
    if (contained.count(name) == 0) absent.push_back(name);
  const std::size_t found = index.weight_map.size() - absent.size();
  if (present.empty() || (!has_all && !has_unlisted)) return "the download did not finish; fetch the model again";
  std::sort(present.begin(), present.end(), natural_less);
  const std::string contain = list_names(present) + (present.size() == 1 ? " contains" : " contain");
  const bool is_needed = has_several || contained_alone.size() < contained.size();
  constexpr const char* kMove = "move the index away: the files are read without it, and convert writes a new one";
  const char* const repair = is_needed ? "correct its \"weight_map\"" : kMove;
  if (found == 0)
    return fmt::format("{} none of the {} tensors in the index, which belongs to another model; {}", contain,
                       index.weight_map.size(), repair);
  if (absent.empty())
    return fmt::format("{} all {} tensors that the index lists, which is outdated; {}", contain, found, repair);
  if (!has_all)
    return fmt::format("{} {} of the {} tensors that the index lists, and not {}: fetch the model again", contain,
                       found, index.weight_map.size(), list_names(absent));
  return fmt::format(
      "no weight file contains {}; fetch the model again or, if the model does not need {}, delete {} from "
      "\"weight_map\"{}",
      list_names(absent), absent.size() == 1 ? "it" : "them", absent.size() == 1 ? "its entry" : "their entries",
      is_needed ? std::string() : fmt::format(", or {}", kMove));
}

/// Validates that a file contains the tensors that the index lists for it, and no others except those that the index
/// lists in another file, such as an overlay with newer values. Removes these from `file`, and adds them to
/// `superseded`.
void validate_against_index(Container& file, const std::vector<std::string>& listed, const fs::path& index_path,
                            const IndexedFiles& indexed, std::vector<std::string>& superseded) {
  std::unordered_map<std::string, bool> held;  // name → also listed
  for (const TensorEntry& tensor : file.tensors) held.emplace(tensor.name, false);
  const std::string file_name = file.path.filename().string();
  for (const std::string& name : listed) {
    const auto found = held.find(name);
    if (found == held.end())
      throw Error(ErrorKind::kBadInput,
                  "the index assigns it to " + printable(file_name) + ", which does not contain it")
          .in(index_path)
          .tensor(name)
          .hint(indexed.hint());
    found->second = true;
  }
  std::erase_if(file.tensors, [&](const TensorEntry& tensor) {
    if (held[tensor.name]) return false;
    if (indexed.listed.count(tensor.name) == 0)
      throw Error(ErrorKind::kBadInput,
                  "the file contains it, but " + index_path.filename().string() + " does not list it there")
          .in(file.path)
          .tensor(tensor.name)
          .hint(indexed.hint());
    superseded.push_back(fmt::format("{} of {}", printable(tensor.name), printable(file_name)));
    return true;
  });
}

std::vector<Container> read_indexed(Files& files, const fs::path& directory, const WholeNames& names_of,
                                    HfIndexReport& report) {
  const fs::path index_path = directory / names_of.index;
  IndexedFiles indexed{files, directory, names_of, read_hf_index(files, index_path)};
  report.metadata = indexed.index.metadata;
  for (const auto& [name, file] : indexed.index.weight_map) {
    indexed.names_by_file[file].push_back(name);
    indexed.listed.insert(name);
  }
  std::vector<fs::path> paths;
  for (const auto& [file, names] : indexed.names_by_file) paths.push_back(directory / file);
  auto reads = read_containers(files, paths, names_of.format);
  auto next = reads.begin();
  std::vector<Container> containers;
  std::vector<std::string> superseded;
  std::uint64_t total_bytes = 0;
  for (const auto& [file, names] : indexed.names_by_file) {
    if (!files.exists(directory / file))
      throw Error(ErrorKind::kBadInput, "names the file " + printable(file) + " (" + std::to_string(names.size()) +
                                            " tensors), which is missing")
          .in(index_path)
          .hint(indexed.hint());
    containers.push_back((next++)->get());
    validate_against_index(containers.back(), names, index_path, indexed, superseded);
    for (const TensorEntry& tensor : containers.back().tensors) total_bytes += tensor.size_bytes;
  }
  const std::string index_name = index_path.filename().string();
  const std::uint64_t recorded_bytes = indexed.index.total_size_bytes;
  if (!containers.empty() && recorded_bytes != 0 && recorded_bytes != total_bytes)
    report.notes
        .mismatch(
            fmt::format("{} has total_size {}, but the tensors have {} bytes", index_name, recorded_bytes, total_bytes))
        .in(directory / index_name);
  if (!superseded.empty())
    report.notes.chosen(fmt::format(
        "read {} tensor{} from the file that {} names, and not from another file that also contains {}: left out {}",
        superseded.size(), superseded.size() == 1 ? "" : "s", index_name, superseded.size() == 1 ? "it" : "them",
        list_names(superseded, SIZE_MAX)));
  report.unlisted = unlisted_files(files, directory, names_of.format, indexed.names_by_file);
  return containers;
}

}  // namespace

std::optional<WholeNames> hf_names_in(Files& files, const fs::path& directory) {
  const std::vector<WholeNames> all = names_of_variant("");
  for (const WholeNames& names : all)
    for (const std::string& name : {names.whole, names.index})
      if (files.kind_of(directory / name) != FileKind::kNone) return names;
  if (!files.is_directory(directory)) return std::nullopt;
  const std::vector<DirectoryEntry> entries = entries_of(files, directory);
  for (const WholeNames& names : all)
    if (!numbered_sets(entries, names.whole).empty()) return names;
  const auto variants = variants_in(entries);
  if (variants.size() != 1) return std::nullopt;
  const auto& [variant, names_of_whole] = *variants.begin();
  for (const WholeNames& names : names_of_variant(variant))
    if (names_of_whole.count(names.whole) > 0) return names;
  return std::nullopt;
}

bool holds_weights(Files& files, const fs::path& directory, const WholeNames& names_of) {
  const std::string& whole = names_of.whole;
  const fs::path index = directory / names_of.index;
  const bool has_index = files.kind_of(index) != FileKind::kNone;
  if (!has_index && files.kind_of(directory / whole) == FileKind::kNone)
    return !files_without_index(files, directory, names_of).empty();
  if (!files.exists(index) || files.exists(directory / whole)) return true;
  try {
    // Check file names first: reading the index of a large model is the slowest step of recognising a directory.
    const std::string ending = fs::path(whole).extension();
    for (const DirectoryEntry& entry : files.list(directory))
      if (is_hf_weights_name(entry.name) && entry.name.find("-of-") != entry.name.npos && entry.name.ends_with(ending))
        return true;
    const HfIndex names = read_hf_index(files, index);
    return std::any_of(names.weight_map.begin(), names.weight_map.end(),
                       [&](const auto& entry) { return files.exists(directory / entry.second); });
  } catch (const Error& error) {
    if (is_disk_fault(error)) throw;
    return true;  // reading the index reports its error
  }
}

std::optional<Format> hf_format(Files& files, const fs::path& directory) {
  const auto names = hf_names_in(files, directory);
  return names ? std::optional(names->format) : std::nullopt;
}

std::vector<Container> read_hf_checkpoint(Files& files, const fs::path& directory, HfIndexReport* report,
                                          const KnownModel& model) {
  const auto names = hf_names_in(files, directory);
  if (!names) throw no_weights(files, directory);
  const fs::path index_path = directory / names->index;
  const fs::path single_path = directory / names->whole;
  for (const fs::path& path : {index_path, single_path})
    if (files.kind_of(path) == FileKind::kBrokenLink)
      throw Error(ErrorKind::kBadInput, "is a broken symbolic link")
          .in(path)
          .hint("the download did not finish; fetch it again");
  const bool single = files.exists(single_path);
  HfIndexReport unread;
  HfIndexReport& filled = report ? *report : unread;
  std::vector<Container> containers;
  if (files.exists(index_path)) {
    containers = read_indexed(files, directory, *names, filled);
    const bool listed =
        std::any_of(containers.begin(), containers.end(), [&](const Container& c) { return c.path == single_path; });
    if (single && !listed)
      throw Error(ErrorKind::kBadInput,
                  "contains " + single_path.filename().string() + " and an index that names other files")
          .in(directory)
          .hint(
              "these are two checkpoints in one directory, and loaders disagree about which to use: move one of them "
              "away");
  } else if (single) {
    containers.push_back(files.exists(single_path / kSplitIndexFile)
                             ? read_split_folder(files, single_path)
                             : read_container(files, single_path, names->format));
  } else {
    containers = read_numbered(files, directory, *names, filled.notes);
  }
  const bool both = names->format == Format::kSafetensors &&
                    (files.exists(directory / kPytorchFile) || files.exists(directory / kPytorchIndexFile));
  if (both) containers.front().warnings.push_back("ignored the PyTorch weights next to it, as transformers does");
  if (!names->variant.empty())
    filled.notes.chosen(fmt::format("read the variant {} of the model, the only one", names->variant));
  filled.old_names = take_out_wrappers(containers, model, filled.notes);
  return containers;
}

namespace {

constexpr std::string_view kNotWeights[] = {"training_args.bin", "optimizer.pt", "optimizer.bin", "scheduler.pt",
                                            "rng_state.pth"};

/// Whether a file with this name may contain a whole model.
bool is_weights_name(std::string_view name) {
  return name.find("-of-") == name.npos &&
         std::find(std::begin(kNotWeights), std::end(kNotWeights), name) == std::end(kNotWeights) &&
         std::any_of(std::begin(kContainerEndings), std::end(kContainerEndings),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

}  // namespace

std::vector<std::string> possible_weights_files(Files& files, const fs::path& directory) {
  std::vector<std::string> names;
  for (const DirectoryEntry& entry : files.list(directory))
    if (entry.kind == FileKind::kFile && !entry.name.starts_with('.') && is_weights_name(entry.name))
      names.push_back(entry.name);
  std::sort(names.begin(), names.end(), natural_less);
  return names;
}

std::optional<std::string> only_weights_file(Files& files, const fs::path& directory) {
  const std::vector<std::string> names = possible_weights_files(files, directory);
  return names.size() == 1 ? std::optional(names.front()) : std::nullopt;
}

}  // namespace reshard
