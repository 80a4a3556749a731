#include "reshard/plan/source/tags.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/io/text_file.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/core/strangers.h"
#include "reshard/layouts/found.h"
#include "reshard/layouts/peft/adapter_folders.h"
#include "reshard/layouts/ranks/rank_format.h"
#include "reshard/plan/source/step_models.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCheckpointsFolder = "checkpoints";  // in the directory of an NxD Training run, next to its logs
constexpr std::uint64_t kMaxLatestBytes = 4096;            // it contains one folder name
/// verl's file with the number of its newest step, and the folder of a step. Megatron-LM has a file of this name, too.
constexpr const char* kIterationFile = "latest_checkpointed_iteration.txt";
constexpr const char* kIterationFolder = "global_step_";
constexpr const char* kChoose = "choose one with `tag`, or give its own directory";

/// Words that training code builds checkpoint names from, with numbers between and after them.
constexpr std::array<std::string_view, 9> kTagWords = {"checkpoint", "ckpt", "epoch", "global", "iter",
                                                       "iteration",  "step", "steps", "update"};
/// In names that Lightning writes, after any text: NAME--step=10-consumed_samples=320.0.ckpt of NxD Training.
constexpr std::string_view kLightningStep = "step=";
/// Prefix of checkpoints that a trainer renames when they are complete (transformers 4.37 and 4.38).
constexpr std::string_view kUnfinishedPrefix = "tmp-";

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// Returns a name without its numbers. Names with equal stems are comparable. "epoch_1_step_20" → "epoch_#_step_#".
std::string stem_of(std::string_view name) {
  std::string stem;
  for (const char c : name)
    if (!is_digit(c))
      stem += c;
    else if (!stem.ends_with('#'))
      stem += '#';
  return stem;
}

/// Returns the numbers in a name, of any size, without leading zeros.
std::vector<std::string> numbers_of(std::string_view name) {
  std::vector<std::string> numbers;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (!is_digit(name[i])) continue;
    std::size_t end = i;
    while (end < name.size() && is_digit(name[end])) ++end;
    while (i + 1 < end && name[i] == '0') ++i;
    numbers.emplace_back(name.substr(i, end - i));
    i = end;
  }
  return numbers;
}

/// Whether `a` has smaller numbers than `b`, which has the same stem.
bool is_older(const std::string& a, const std::string& b) {
  const auto less = [](const std::string& x, const std::string& y) {
    return x.size() != y.size() ? x.size() < y.size() : x < y;
  };
  const auto x = numbers_of(a), y = numbers_of(b);
  return std::lexicographical_compare(x.begin(), x.end(), y.begin(), y.end(), less);
}

void look_at_markers(Files& files, const fs::path& folder, Tag& tag) {
  const bool done = files.is_file(folder / kDoneMarker);
  tag.is_cut_off = tag.is_cut_off || (!done && files.is_file(folder / kCheckpointMarker));
  tag.is_done = !tag.is_cut_off && (tag.is_done || done);
}

/// Looks for models in folders of the step.
void look_below(Files& files, const fs::path& directory, Tag& tag) {
  const std::vector<StepModel> models = models_in_step(files, directory);
  tag.has_weights = !models.empty();
  tag.has_shards = std::any_of(models.begin(), models.end(), [](const StepModel& model) { return model.is_sharded; });
}

/// Inspects a directory, which may be a checkpoint.
Tag look_at(Files& files, const fs::path& directory) {
  Tag tag;
  tag.name = directory.filename().string();
  tag.has_trainer_state = files.is_file(directory / kTrainerStateFile);
  look_at_markers(files, directory, tag);
  try {
    const auto shards = find_shards(files, directory);
    if (shards && shards->path != directory) look_at_markers(files, shards->path, tag);
    const auto adapters = find_adapter_folders(files, directory);
    for (const AdapterFolder& adapter : adapters) look_at_markers(files, adapter.shards.path, tag);
    tag.has_shards = (shards && !shards->is_empty) || !adapters.empty();
    if (shards && shards->is_empty) tag.lacks = shards->lacks;
    tag.has_weights = tag.has_shards || holds_hugging_face(files, directory);
    if (!tag.has_weights && (is_tag_name(tag.name) || tag.has_trainer_state)) look_below(files, directory, tag);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kIo || error.code()) throw;  // it cannot be read
    // The user gets the error if this tag is chosen.
    tag.has_weights = tag.has_shards = true;
  }
  return tag;
}

/// Whether the contents mark it as a checkpoint.
bool is_marked(const Tag& tag) {
  return tag.is_cut_off || tag.has_trainer_state || (tag.is_done && tag.has_weights);
}

/// Returns the sibling folder that the link `name` points to, so that `name` is an alias of it; std::nullopt otherwise.
std::optional<std::string> other_name(Files& files, const fs::path& directory, const std::string& name) {
  const fs::path resolved = files.resolve(directory / name);
  if (resolved.parent_path() != files.resolve(directory) || resolved.filename() == name) return std::nullopt;
  return resolved.filename().string();
}

/// Whether it can be the name of a folder in the directory.
bool is_plain_name(std::string_view name) {
  if (name.empty() || name == "." || name == "..") return false;
  return std::none_of(name.begin(), name.end(),
                      [](char c) { return c == '/' || static_cast<unsigned char>(c) < ' ' || c == '\x7f'; });
}

std::string names_text(const std::vector<Tag>& tags) {
  std::vector<std::string> names;
  for (const Tag& tag : tags) names.push_back(printable(tag.name));
  return list_names(names);
}

/// Returns the text of a file with one name in it, without the end of its line.
std::string read_name(Files& files, const fs::path& path) {
  std::string name = read_text_file(files, path, kMaxLatestBytes);
  name.erase(
      std::find_if_not(name.rbegin(), name.rend(), [](char c) { return c == '\n' || c == '\r' || c == ' '; }).base(),
      name.end());
  return name;
}

/// Returns the error for a file that names a checkpoint which does not exist.
Error names_none(const fs::path& file, const std::string& name) {
  return Error(ErrorKind::kBadInput,
               is_plain_name(name) ? fmt::format("names the checkpoint {}, which is not next to it", printable(name))
                                   : fmt::format("contains \"{}\", which is not a folder name", printable(name)))
      .in(file)
      .hint("choose a checkpoint with `tag`, or give its own directory");
}

/// Returns the tag that verl's file names; std::nullopt without the file, and if it is Megatron-LM's.
std::optional<LatestTag> read_latest_iteration(Files& files, const fs::path& directory) {
  const fs::path file = directory / kIterationFile;
  if (!files.is_file(file)) return std::nullopt;
  const std::string step = kIterationFolder + read_name(files, file);
  if (is_plain_name(step) && files.is_directory(directory / step)) return LatestTag{step, kIterationFile};
  for (const DirectoryEntry& entry : files.list(directory))
    if (entry.kind == FileKind::kDirectory && entry.name.starts_with(kIterationFolder)) throw names_none(file, step);
  return std::nullopt;
}

/// Returns the tag that a file or link in the run's directory names, if there is one.
std::optional<LatestTag> read_latest(Files& files, const fs::path& directory) {
  if (auto latest = read_latest_iteration(files, directory)) return latest;
  const fs::path path = directory / kLatestFile;
  if (files.is_directory(path)) {  // a real folder is like any other
    const auto name = other_name(files, directory, kLatestFile);
    return name ? std::optional(LatestTag{*name, kLatestFile}) : std::nullopt;
  }
  if (!files.is_file(path)) return std::nullopt;
  const std::string name = read_name(files, path);
  if (is_plain_name(name) && files.is_directory(directory / name)) return LatestTag{name, kLatestFile};
  throw names_none(path, name);
}

/// Returns `found`, or the only model below its folder if that is no checkpoint, but a step of a run.
FoundCheckpoint found_in(Files& files, FoundCheckpoint found, Notes notes) {
  const fs::path& folder = found.path;
  const fs::path model = found.is_checkpoint() ? folder : model_in_step(files, folder, found.kind);
  if (model != folder) {
    notes
        .chosen(fmt::format("{}: reading {}, the only model in it", folder.string(),
                            printable(model.lexically_relative(folder).string())))
        .in(model);
    found = found_at(files, model, found.kind);
  }
  found.notes = std::move(notes);
  return found;
}

/// Returns the folder `name` of the run's directory.
FoundCheckpoint take_tag(Files& files, const fs::path& directory, const std::string& name, SourceKind kind) {
  if (!is_plain_name(name))
    throw Error(ErrorKind::kUsage, fmt::format("`tag`: \"{}\" is not a folder name", printable(name)))
        .hint("give only the name, such as step_3, and as the path the directory that contains it");
  if (!files.is_directory(directory))
    throw Error(files.exists(directory) ? ErrorKind::kUsage : ErrorKind::kBadInput,
                files.exists(directory) ? "is not a directory, so `tag` has nothing to choose from"
                                        : "no such file or directory")
        .in(directory);
  if (files.is_directory(directory / name)) {
    FoundCheckpoint found = found_at(files, directory / name, kind);
    return found.is_finished() ? found : found_in(files, std::move(found), {});
  }
  if (found_at(files, directory).is_checkpoint())
    throw Error(ErrorKind::kUsage,
                "`tag` has no effect: this is a checkpoint itself, without a folder " + printable(name))
        .in(directory)
        .hint("leave out `tag`, or give the directory that contains the folder with that name");
  const std::vector<Tag> tags = list_tags(files, directory);
  Error error(ErrorKind::kBadInput, fmt::format("contains no folder {}", printable(name)));
  error.in(directory);
  if (!tags.empty()) error.hint("the checkpoints in it are " + names_text(tags));
  throw error;
}

/// Lists, each after "; ", unfinished tags that the user may have expected instead of `chosen`.
std::string unfinished_text(const std::vector<Tag>& tags, const std::string& chosen,
                            const std::optional<LatestTag>& latest) {
  std::string text;
  for (const Tag& tag : tags) {
    const bool newer = stem_of(tag.name) == stem_of(chosen) && is_older(chosen, tag.name);
    const auto reason = unfinished_reason(tag, tags);
    const bool is_latest = latest && tag.name == latest->name;
    if (!reason && newer && latest && chosen == latest->name)
      text += fmt::format("; {} is newer", printable(tag.name));
    else if (reason && (newer || is_latest))
      text += fmt::format("; {} is {}, but incomplete: {}", printable(tag.name),
                          is_latest ? fmt::format("named by the file \"{}\"", latest->file) : "newer", *reason);
  }
  return text;
}

/// A directory of unrelated models may contain markers, too, but its folders are not named like tags.
Error unrelated(const std::vector<Tag>& finished) {
  return Error(ErrorKind::kUsage,
               "contains checkpoints, but none named like a training run's (step_3, checkpoint-10): " +
                   names_text(finished))
      .hint(kChoose);
}

/// Whether no other folder of `directory` contains weights of any kind.
bool is_only_model(Files& files, const fs::path& directory, const std::string& name) {
  for (const DirectoryEntry& entry : files.list(directory)) {
    if (entry.name == name || entry.name.starts_with('.') || entry.kind != FileKind::kDirectory) continue;
    if (entry.is_link && other_name(files, directory, entry.name) == name) continue;
    try {
      if (look_at(files, directory / entry.name).has_weights) return false;
    } catch (const Error& error) {
      if (!is_denied(error)) throw;  // otherwise skip it: it could not be chosen either
    }
  }
  return true;
}

/// Returns the tag with the largest number.
const Tag& newest(const std::vector<Tag>& finished) {
  const Tag& found = *std::max_element(finished.begin(), finished.end(),
                                       [](const Tag& a, const Tag& b) { return is_older(a.name, b.name); });
  const bool told = std::all_of(finished.begin(), finished.end(), [&](const Tag& tag) {
    return &tag == &found || (stem_of(tag.name) == stem_of(found.name) && is_older(tag.name, found.name));
  });
  if (!told)
    throw Error(ErrorKind::kUsage, "contains several checkpoints, and their names do not show which is the newest: " +
                                       names_text(finished))
        .hint(kChoose);
  return found;
}

}  // namespace

bool is_tag_name(std::string_view name) {
  if (const auto key = name.find(kLightningStep); key != name.npos)
    return key + kLightningStep.size() < name.size() && is_digit(name[key + kLightningStep.size()]);
  if (name.empty() || !is_digit(name.back())) return false;
  bool any_word = false;
  for (std::size_t i = 0; i < name.size();) {
    std::size_t end = i;
    while (end < name.size() && name[end] >= 'a' && name[end] <= 'z') ++end;
    const bool word = end > i;
    if (word && std::find(kTagWords.begin(), kTagWords.end(), name.substr(i, end - i)) == kTagWords.end()) return false;
    if (!word && !is_digit(name[i]) && std::string_view("-_=.").find(name[i]) == std::string_view::npos) return false;
    any_word = any_word || word;
    i = word ? end : i + 1;
  }
  return any_word || std::all_of(name.begin(), name.end(), is_digit);  // numbers with separators are a date
}

std::vector<Tag> list_tags(Files& files, const fs::path& directory) {
  std::vector<Tag> tags;
  for (const DirectoryEntry& entry : files.list(directory)) {
    if (entry.name.starts_with('.') || entry.kind != FileKind::kDirectory) continue;
    try {
      if (entry.is_link && other_name(files, directory, entry.name)) continue;
      Tag tag = look_at(files, directory / entry.name);
      if (is_marked(tag) || is_tag_name(entry.name)) tags.push_back(std::move(tag));
    } catch (const Error& error) {
      if (!is_denied(error)) throw;  // otherwise skip it: it cannot be chosen
    }
  }
  std::sort(tags.begin(), tags.end(), [](const Tag& a, const Tag& b) { return natural_less(a.name, b.name); });
  return tags;
}

bool is_tag_folder(Files& files, const fs::path& directory) {
  const Tag tag = look_at(files, directory);
  return is_tag_name(tag.name) ? tag.is_cut_off || tag.has_weights : is_marked(tag) && tag.has_weights;
}

std::optional<std::string> unfinished_reason(const Tag& tag, const std::vector<Tag>& tags) {
  if (tag.is_cut_off) return fmt::format("it has no file \"{}\"", kDoneMarker);
  if (!tag.has_weights) return fmt::format("it contains no {}", tag.lacks);
  if (tag.name.starts_with(kUnfinishedPrefix)) return "its trainer has not renamed it to its final name";
  if (tag.is_done || tag.has_trainer_state) return std::nullopt;
  for (const Tag& other : tags) {
    if (stem_of(other.name) != stem_of(tag.name)) continue;
    if (other.is_done || other.has_trainer_state)
      return fmt::format("it has no file \"{}\", but {} has", other.is_done ? kDoneMarker : kTrainerStateFile,
                         printable(other.name));
  }
  return std::nullopt;
}

TagChoice choose_tag(const std::vector<Tag>& tags, const std::optional<LatestTag>& latest) {
  std::vector<Tag> finished;
  std::vector<std::string> reasons;
  for (const Tag& tag : tags)
    if (const auto reason = unfinished_reason(tag, tags))
      reasons.push_back(fmt::format("{} ({})", printable(tag.name), *reason));
    else
      finished.push_back(tag);
  const bool any_weights = std::any_of(tags.begin(), tags.end(), [](const Tag& tag) { return tag.has_weights; });
  if (finished.empty())
    throw Error(ErrorKind::kBadInput, "contains no complete checkpoint: " + list_names(reasons))
        .hint(any_weights ? "choose one anyway with `tag`" : "give the directory of a checkpoint");
  const auto named = std::find_if(finished.begin(), finished.end(),
                                  [&](const Tag& tag) { return latest && tag.name == latest->name; });
  const Tag& chosen = named != finished.end() ? *named : newest(finished);
  if (named == finished.end() && tags.size() > 1 && !is_tag_name(chosen.name)) throw unrelated(finished);
  std::string why = finished.size() == 1 ? "the only complete checkpoint"
                                         : fmt::format("the newest of {} complete checkpoints", finished.size());
  if (named != finished.end()) why = fmt::format("which the file \"{}\" names", latest->file);
  return {chosen.name,
          fmt::format("using {}, {}{}{}", printable(chosen.name), why, unfinished_text(tags, chosen.name, latest),
                      tags.size() == 1 ? "" : "; choose another with `tag`")};
}

namespace {

constexpr int kRunLevels = 2;             // NAME/DATE above the checkpoints folder of an NxD Training run
constexpr std::size_t kMostFolders = 64;  // limit of folders to search, since the directory may be a home directory

bool has_checkpoints_folder(Files& files, const fs::path& directory) {
  const fs::path folder = directory / kCheckpointsFolder;
  return files.is_directory(folder) && !list_tags(files, folder).empty();
}

/// Appends the directories of training runs in `directory / relative` to `runs`, relative to `directory`.
void find_runs(Files& files, const fs::path& directory, const fs::path& relative, int levels,
               std::vector<std::string>& runs) {
  std::size_t seen = 0;
  for (const DirectoryEntry& entry : files.list(directory / relative)) {
    if (entry.kind != FileKind::kDirectory || entry.name.starts_with('.') || ++seen > kMostFolders) continue;
    const fs::path run = relative / entry.name;
    try {
      if (has_checkpoints_folder(files, directory / run))
        runs.push_back(printable(run.string()));
      else if (levels > 1)
        find_runs(files, directory, run, levels - 1, runs);
    } catch (const Error& error) {
      if (!is_denied(error)) throw;
    }
  }
}

/// Returns the checkpoint in the run's checkpoints folder, if the directory has one; otherwise `found`.
/// \throws Error kBadInput if the directory contains only the directories of training runs.
FoundCheckpoint find_in_checkpoints(Files& files, FoundCheckpoint found) {
  const fs::path& directory = found.path;
  if (has_checkpoints_folder(files, directory))
    return find_checkpoint(files, directory / kCheckpointsFolder, {}, found.kind);
  std::vector<std::string> runs;
  if (is_only_model(files, directory, {})) find_runs(files, directory, {}, kRunLevels, runs);
  if (runs.empty() && is_tag_name(own_name(files, files.resolve(directory))))
    return found_in(files, std::move(found), {});
  if (runs.empty()) return found;
  const bool is_one = runs.size() == 1;
  throw Error(ErrorKind::kBadInput,
              fmt::format("contains no checkpoint, but {}",
                          is_one ? "the directory of a training run" : "the directories of training runs"))
      .in(directory)
      .hint(fmt::format("give {}: {}", is_one ? "that directory" : "one of them", list_names(runs)));
}

/// Rejects the directory of a run that contains a finished model or adapter, and the shards of its training only in steps.
void validate_unfinished(Files& files, const FoundCheckpoint& found) {
  if (!found.is_finished()) return;
  if (found.shards && !is_tag_name(found.shards->path.lexically_relative(found.path).string())) return;
  std::vector<Tag> tags = list_tags(files, found.path);
  std::erase_if(tags, [](const Tag& tag) { return !tag.has_shards; });
  if (tags.empty()) return;
  throw Error(ErrorKind::kBadInput,
              fmt::format("contains a finished {}, and checkpoints of its training: {}",
                          found.whole ? "model" : fmt::format("adapter, {}", found.adapter_file.filename().string()),
                          names_text(tags)))
      .in(found.path)
      .hint(
          "the finished one needs no consolidation: use it as it is, or with convert; to consolidate a checkpoint, "
          "choose it with `tag`");
}

}  // namespace

FoundCheckpoint find_checkpoint(Files& files, const fs::path& path, const std::optional<std::string>& tag,
                                SourceKind kind) {
  if (tag) {
    const fs::path folder = path / kCheckpointsFolder;
    const bool is_inside = is_plain_name(*tag) && !files.is_directory(path / *tag) && files.is_directory(folder / *tag);
    return take_tag(files, is_inside ? folder : path, *tag, kind);
  }
  if (files.is_directory(path))
    (void)read_latest_iteration(files, path);  // a run that lacks its newest step may be a checkpoint by itself
  FoundCheckpoint found = found_at(files, path, kind);
  if (kind == SourceKind::kShards) validate_unfinished(files, found);
  if (!files.is_directory(path) || found.is_checkpoint()) return found;
  std::vector<Tag> tags = list_tags(files, path);
  std::erase_if(tags, [&](const Tag& t) { return kind == SourceKind::kShards && t.has_weights && !t.has_shards; });
  if (tags.empty()) return find_in_checkpoints(files, std::move(found));
  try {
    const auto latest = read_latest(files, path);
    const auto is_latest = [&](const Tag& one) { return latest && one.name == latest->name; };
    if (latest && std::none_of(tags.begin(), tags.end(), is_latest))
      tags.push_back(look_at(files, path / latest->name));
    if (std::none_of(tags.begin(), tags.end(), [](const Tag& one) { return one.has_weights; }))
      for (const fs::path& folder : {path, path / tags.back().name})
        if (auto stranger = stranger_in(files, folder)) throw *std::move(stranger);
    const TagChoice choice = choose_tag(tags, latest);
    if (!(latest && choice.name == latest->name) && !is_tag_name(choice.name) &&
        !is_only_model(files, path, choice.name))
      throw unrelated(tags);
    return found_in(files, found_at(files, path / choice.name, kind),
                    Note{NoteKind::kChosen, path.string() + ": " + choice.note});
  } catch (Error& error) {
    if (error.path().empty()) error.in(path);
    throw;
  }
}

}  // namespace reshard
