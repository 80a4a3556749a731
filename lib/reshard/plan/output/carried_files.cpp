// Selects the files of an output other than its weights, and changes its config.json.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/paths.h"
#include "reshard/base/strings.h"
#include "reshard/formats/safetensors/hf_index.h"
#include "reshard/io/files.h"
#include "reshard/layouts/core/read_model.h"
#include "reshard/layouts/layout_table.h"
#include "reshard/layouts/peft/adapter_folders.h"
#include "reshard/layouts/ranks/rank_format.h"
#include "reshard/plan/output/companions.h"
#include "reshard/plan/output/model_files.h"
#include "reshard/plan/output/trainer_files.h"
#include "reshard/plan/source/tags.h"
#include "reshard/plan/transforms/config_dtype.h"
#include "reshard/specs/config/model_config.h"
#include "reshard/specs/config/ties.h"
#include "reshard/specs/stages/stage_json.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

void replace_copy(std::vector<CopiedFile>& copies, CopiedFile file) {
  std::erase_if(copies, [&](const CopiedFile& copied) { return copied.path == file.path; });
  copies.push_back(std::move(file));
}

/// Returns the other files of the checkpoint's directory and, for a step of a run, of the step itself.
Companions companions_of(Files& files, const Checkpoint& source, CompanionFiles wanted,
                         std::vector<fs::path> left_out) {
  Companions found = companion_files(files, source.directory, wanted, left_out);
  if (!is_step_of_run(files, source)) return found;
  std::erase_if(found.files, [](const CopiedFile& copied) { return is_trainer_file(copied.path); });
  left_out.push_back(source.directory);  // it may be a folder of the step
  Companions own = companion_files(files, source.path, wanted, left_out);
  for (CopiedFile& file : own.files)
    if (!is_trainer_file(file.path)) replace_copy(found.files, std::move(file));
  found.notes.add(own.notes);
  std::move(own.weights.begin(), own.weights.end(), std::back_inserter(found.weights));
  std::move(own.left.begin(), own.left.end(), std::back_inserter(found.left));
  return found;
}

/// Returns the other files next to the checkpoint's weights. Without config.json, these are only weights: the directory
/// may be anything, even a home directory, not just a model's.
Companions companions_beside(Files& files, const Checkpoint& source, CompanionFiles wanted, const fs::path& output) {
  if (!find_model_config(files, source.directory) || wanted == CompanionFiles::kNone) {
    Companions found;
    if (source.layout != nullptr) found.weights = weights_in(files, source.directory);
    return found;
  }
  std::set<fs::path> left_out{output, source.path};  // the checkpoint itself needs no note
  for (const SourceFile& file : source.map.files) left_out.insert(file.path.parent_path());
  return companions_of(files, source, wanted, {left_out.begin(), left_out.end()});
}

/// Returns the files among `weights` that are neither read nor copied, relative to the checkpoint's directory.
std::vector<std::string> unread_weights(Files& files, const Checkpoint& source, const std::vector<fs::path>& weights,
                                        const std::vector<CopiedFile>& copied) {
  const auto plain = [&](const fs::path& path) { return files.absolute(path).lexically_normal(); };
  std::set<fs::path> read;
  if (!weights.empty()) {
    for (const SourceFile& file : source.map.files) read.insert(plain(file.path));
    for (const CopiedFile& file : copied) read.insert(plain(file.source));  // a trainer's files
  }
  std::vector<std::string> left;
  for (const fs::path& path : weights)
    if (read.count(plain(path)) == 0) left.push_back(path.lexically_relative(source.directory).string());
  return left;
}

/// State while the files are gathered.
struct Carrier {
  Files& files;
  Draft& draft;
  const fs::path& output_directory;
  CarriedFiles carried{};
};

/// Notes every weights file that is neither read nor copied.
void note_weights_left(Carrier& carrier, const std::vector<fs::path>& weights) {
  Checkpoint& source = carrier.draft.source;
  const std::vector<std::string> left = unread_weights(carrier.files, source, weights, carrier.carried.copied_files);
  if (!left.empty())
    source.notes.left_out(fmt::format("left out, as {} not among the model's weights: {}",
                                      left.size() == 1 ? "it is" : "they are", list_names(left, SIZE_MAX)));
}

/// Notes the files next to the weights that are not known to belong to the model.
void note_others_left(Draft& draft, const std::vector<std::string>& left) {
  if (left.empty()) return;
  const bool one = left.size() == 1;
  draft.source.notes.left_out(
      fmt::format("left out, as {} not known to belong to the model: {}; `companions` all copies {}",
                  one ? "it is" : "they are", list_names(left, SIZE_MAX), one ? "it" : "them"));
}

/// Notes the tokenizer files in the output directory that the job does not replace: they may belong to another model.
void note_old_tokenizer(Carrier& carrier, const std::vector<fs::path>& own) {
  Files& files = carrier.files;
  Draft& draft = carrier.draft;
  const fs::path& output_directory = carrier.output_directory;
  const CarriedFiles& carried = carrier.carried;
  if (files.kind_of(output_directory) != FileKind::kDirectory ||
      std::any_of(own.begin(), own.end(), [&](const fs::path& one) { return files.is_same(one, output_directory); }))
    return;
  std::vector<std::string> old;
  for (const CopiedFile& file : tokenizer_files(files, output_directory))
    if (std::none_of(carried.copied_files.begin(), carried.copied_files.end(),
                     [&](const CopiedFile& copied) { return copied.path == file.path; }))
      old.push_back(file.path.string());
  if (!old.empty())
    draft.source.notes.output(fmt::format("{} stay{} in the output directory, and may belong to another model",
                                          list_names(old), old.size() == 1 ? "s" : ""));
}

/// Returns the directories that may have the model's tokenizer, each once, in order of preference.
std::vector<fs::path> tokenizer_directories(Files& files, const Checkpoint& source) {
  std::vector<fs::path> all;
  const fs::path own = source.layout == nullptr ? source.directory : source.path;
  const bool is_step =
      is_step_of_run(files, source) || is_tag_name(own_name(files, source.path)) || is_tag_name(own_name(files, own));
  const auto add_trained = [&] {
    for (fs::path& directory : model_directories(files, own))
      if (files.is_directory(directory)) all.push_back(std::move(directory));
  };
  if (is_step) add_trained();  // which may have added tokens
  if (source.config.is_given)
    all.push_back(source.config.path.has_parent_path() ? source.config.path.parent_path() : fs::path("."));
  if (source.layout != nullptr) all.push_back(source.directory);
  if (source.beside_model) add_trained();
  std::vector<fs::path> unique;
  for (fs::path& directory : all)
    if (std::none_of(unique.begin(), unique.end(), [&](const fs::path& one) { return files.is_same(one, directory); }))
      unique.push_back(std::move(directory));
  return unique;
}

/// Notes that a model which has been gathered has no tokenizer.
void note_no_tokenizer(Carrier& carrier) {
  const Checkpoint& source = carrier.draft.source;
  const std::vector<CopiedFile>& copied = carrier.carried.copied_files;
  const bool in_folder = std::any_of(
      copied.begin(), copied.end(), [](const CopiedFile& file) { return is_tokenizer(file.path.filename().string()); });
  if ((!source.has_ranks() && source.layout != nullptr) || source.config.path.empty() || in_folder ||
      !tokenizer_files(carrier.files, carrier.output_directory).empty())
    return;
  carrier.draft.source.notes.missing(
      "there is no tokenizer next to the weights: copy the original model's into the output, or set `config` to the "
      "original model's directory");
}

/// Whether a directory contains that of the checkpoint, and is not that of its config.json.
bool is_above(Files& files, const fs::path& directory, const Checkpoint& source) {
  const bool is_outer = lies_inside(files.resolve(source.directory), files.resolve(directory));
  return is_outer && !files.is_same(directory, source.directory) &&
         (source.config.path.empty() || !files.is_same(directory, directory_above(files, source.config.path)));
}

/// Adds a file unless there is one with its path.
void add_copy(CarriedFiles& carried, CopiedFile file) {
  const auto is_same = [&](const auto& one) { return one.path == file.path; };
  if (std::none_of(carried.copied_files.begin(), carried.copied_files.end(), is_same) &&
      std::none_of(carried.text_files.begin(), carried.text_files.end(), is_same))
    carried.copied_files.push_back(std::move(file));
}

/// Whether the output gets a file with the same path and bytes.
bool is_carried(Carrier& carrier, const CopiedFile& file) {
  const std::vector<CopiedFile>& copied = carrier.carried.copied_files;
  return std::any_of(copied.begin(), copied.end(), [&](const CopiedFile& own) {
    return own.path == file.path && same_content(carrier.files, own.source, carrier.files, file.source);
  });
}

/// If no tokenizer is copied yet, copies that of the step of a training run, or else the one next to the config.json that the user
/// gave, or the checkpoint's.
void carry_tokenizer(Carrier& carrier, bool is_whole) {
  auto& [files, draft, output_directory, carried] = carrier;
  const std::vector<fs::path> directories = tokenizer_directories(files, draft.source);
  const fs::path output = files.resolve(output_directory);
  fs::path taken;  // the directory of the output's tokenizer
  std::vector<std::string> left_out;
  if (std::any_of(carried.copied_files.begin(), carried.copied_files.end(),
                  [](const CopiedFile& file) { return is_tokenizer(file.path.string()); }))
    taken = draft.source.directory;
  for (const fs::path& directory : directories) {
    std::vector<CopiedFile> found = tokenizer_files(files, directory);
    if (found.empty() || files.is_same(directory, taken)) continue;
    if (taken.empty()) {
      taken = directory;
      if (files.resolve(directory) == output) continue;  // it is already there
      for (CopiedFile& file : found) replace_copy(carried.copied_files, std::move(file));
    } else {
      if (!std::all_of(found.begin(), found.end(), [&](const CopiedFile& file) { return is_carried(carrier, file); }))
        left_out.push_back(directory.string());
      for (CopiedFile& file : found)
        if (is_processor(file.path.string())) add_copy(carried, std::move(file));
    }
  }
  if (!left_out.empty())
    draft.source.notes
        .chosen(
            fmt::format("used the tokenizer of {}, and left out the one in {}", taken.string(), join(left_out, ", ")))
        .in(taken);
  else if (!taken.empty() && is_above(files, taken, draft.source))
    draft.source.notes.chosen(fmt::format("used the tokenizer of {}, above the checkpoint", taken.string())).in(taken);
  note_old_tokenizer(carrier, directories);
  if (taken.empty() && is_whole) note_no_tokenizer(carrier);
}

/// Copies the code that the config.json that the user gave names. Notes code that config.json names and the output
/// lacks.
void carry_code(Carrier& carrier, CompanionFiles wanted) {
  Files& files = carrier.files;
  const Checkpoint& source = carrier.draft.source;
  if (source.config.path.filename() != kConfigFile) return;
  const fs::path directory = source.config.path.parent_path();
  if (files.is_same(directory, carrier.output_directory)) return;
  const ModelCode code = model_code(files, directory);
  if (source.config.is_given && wanted != CompanionFiles::kNone && !files.is_same(directory, source.directory))
    for (const fs::path& file : code.files)
      replace_copy(carrier.carried.copied_files, {directory / file, file, files.size_bytes(directory / file)});
  const auto note = [&](const std::vector<fs::path>& paths, const char* what) {
    std::vector<std::string> names;
    for (const fs::path& path : paths)
      if (!files.exists(carrier.output_directory / path)) names.push_back(path.string());
    if (!names.empty())
      carrier.draft.source.notes.missing(fmt::format(
          "{}: {}; without it, the model cannot be loaded as its configuration says", what, list_names(names)));
  };
  note(code.missing, "code of the model is missing next to config.json");
  if (wanted == CompanionFiles::kNone) note(code.files, "`companions` none leaves out code of the model");
}

/// A trainer that resumes from the output would read files that another save left there.
void validate_no_trainer_files(Carrier& carrier) {
  const auto& [files, draft, output_directory, carried] = carrier;
  std::vector<std::string> left;
  for (const char* name : kTrainerFiles)
    if (files.exists(output_directory / name) &&
        std::none_of(carried.copied_files.begin(), carried.copied_files.end(),
                     [&](const CopiedFile& copied) { return copied.path == name; }))
      left.emplace_back(name);
  if (left.empty()) return;
  throw Error(ErrorKind::kBadInput,
              fmt::format("contains {} of another save, which a trainer would read together with the new states",
                          list_names(left)))
      .in(output_directory)
      .hint("move its contents away, or choose another output directory");
}

/// Whether `config` is already the config.json of the output directory.
bool is_in_place(Files& files, const fs::path& config, const fs::path& output_directory) {
  return config.filename() == kConfigFile &&
         files.resolve(files.absolute(config).parent_path()) == files.resolve(output_directory);
}

/// Sets the number of layers. \returns whether `config` changed.
bool carry_layers(Draft& draft, OrderedJson& config) {
  if (!draft.layers || !config.is_object()) return false;
  const std::vector<std::string> keys = set_layers(config, *draft.layers);
  if (!keys.empty())
    draft.source.notes.changed(fmt::format("the config.json that is written is that of {} of {} layers: {}",
                                           draft.layers->kept.size(), draft.layers->all, list_names(keys)));
  return !keys.empty();
}

/// \throws Error kUsage if a config.json that is already in the output directory would have to be changed.
void validate_config_stays(const Checkpoint& source) {
  std::vector<std::string> says;
  for (const ConfigChange& change : source.config.changes) says.push_back(change.says);
  if (source.model && source.model->tied_by_files)
    says.push_back(fmt::format("\"{}\": {}", kTiedKey, *source.model->tied_by_files));
  if (says.empty()) return;
  throw Error(ErrorKind::kUsage, "is already in the output directory, but would have to say " + join(says, ", "))
      .in(source.config.path)
      .hint("choose another output directory, or change it yourself");
}

/// Adds config.json, unless it is copied unchanged as a companion or is already in place.
void carry_config(Carrier& carrier) {
  auto& [files, draft, output_directory, carried] = carrier;
  const Checkpoint& source = draft.source;
  if (source.config.path.empty()) return;
  if (is_in_place(files, source.config.path, output_directory)) return validate_config_stays(source);
  OrderedJson config = read_compiled_config(files, source.config.path);
  bool is_new = !config.is_null();
  const bool sets_ties = source.model && source.model->tied_by_files;
  const bool is_plain = draft.was(Applied::Transform::kDequantize);
  if (!is_new && (draft.config_dtype || draft.layers || sets_ties || is_plain || !source.config.changes.empty()))
    config = read_ordered_config(files, source.config.path);
  for (const ConfigChange& change : source.config.changes) {
    apply_change(change, config);
    is_new = is_new || config.is_object();
  }
  if (draft.config_dtype) is_new = set_config_dtype(config, *draft.config_dtype) || is_new;
  if (is_plain) is_new = erase_quantization(config) || is_new;
  is_new = carry_layers(draft, config) || is_new;
  const auto note = [&to = draft](const std::string& says) {
    to.source.notes.changed("the config.json that is written says " + says);
  };
  if (sets_ties && config.is_object()) {
    set_ties(config, *source.model->tied_by_files);
    is_new = true;
    note(fmt::format("\"{}\": {}", kTiedKey, *source.model->tied_by_files));
  }
  std::set<std::string> said;  // a key may be in the language model's configuration, too
  for (const ConfigChange& change : source.config.changes)
    if (is_applied(change, config) && said.insert(change.says).second) note(change.says);
  const auto is_config = [](const CopiedFile& file) { return file.path == kConfigFile; };
  const bool is_copied = std::any_of(carried.copied_files.begin(), carried.copied_files.end(), is_config);
  if (!is_new && !source.config.is_given && is_copied) return;
  std::erase_if(carried.copied_files, is_config);
  if (is_new)
    carried.text_files.push_back({kConfigFile, json_text(config, 2) + "\n", source.config.path});
  else
    carried.copied_files.push_back({source.config.path, kConfigFile, files.size_bytes(source.config.path)});
}

/// Adds the other files in the directory of a PEFT adapter, such as README.md, and the tokenizer from there or from above
/// its step.
void carry_beside_adapter(Files& files, Draft& draft, const Adapter& adapter, const fs::path& output_directory,
                          CompanionFiles wanted, CarriedFiles& carried) {
  const fs::path directory = adapter.config.path.parent_path();
  if (wanted == CompanionFiles::kNone || files.resolve(output_directory) == files.resolve(directory)) return;
  std::vector<fs::path> left_out{output_directory};
  for (const Adapter& one : draft.source.adapters) left_out.push_back(one.config.path.parent_path());
  Companions companions = companion_files(files, directory, wanted, left_out);
  std::erase(companions.left, kAdapterConfigFile);
  note_others_left(draft, companions.left);
  const auto add_all = [&](std::vector<CopiedFile>& found) {
    for (CopiedFile& file : found) {
      file.path = adapter.prefix / file.path;
      add_copy(carried, std::move(file));
    }
  };
  add_all(companions.files);
  if (!tokenizer_files(files, directory).empty() || !is_tag_name(own_name(files, directory))) return;
  const fs::path run = directory_above(files, directory);
  std::vector<CopiedFile> above = tokenizer_files(files, run);
  if (!above.empty())
    draft.source.notes.chosen(fmt::format("used the tokenizer of {}, above the checkpoint", run.string())).in(run);
  add_all(above);
}

/// The adapter_config.json of each adapter, and the metadata of shards that stay as they are.
/// \throws Error kUsage if the adapter_config.json of the source would be replaced by that of separate linears.
CarriedFiles carry_adapter_files(Files& files, Draft& draft, const Layout& layout, const TargetPlan& target,
                                 const fs::path& output_directory, CompanionFiles wanted) {
  CarriedFiles carried;
  const auto copy = [&](const fs::path& file, const fs::path& to) {
    carried.copied_files.push_back({file, to, files.size_bytes(file)});
  };
  for (const Adapter& adapter : draft.source.adapters) {
    const fs::path& config = adapter.config.path;
    const bool whole = &layout == &whole_layout();
    const fs::path folder = whole ? fs::path(adapter.prefix) : adapter_folder(adapter.name);
    if (!whole && !draft.model) {
      std::vector<std::string> names;
      for (const DirectoryEntry& entry : files.list(adapter.path))  // it is about the other adapters, too
        if (metadata_pp_rank(entry.name)) names.push_back(entry.name);
      std::sort(names.begin(), names.end());
      for (const std::string& name : names) copy(adapter.path / name, folder / kAdapterShardsFolder / name);
      for (const char* name : {kAdapterConfigFile, kUnfusedConfigFile})
        if (files.exists(config.parent_path() / name)) copy(config.parent_path() / name, folder / name);
      continue;
    }
    const bool is_beside = std::any_of(target.whole_folders.begin(), target.whole_folders.end(),
                                       [&](const fs::path& shards) { return lies_inside(shards, folder); });
    if (!whole && !is_beside) continue;  // the files contain it
    fs::path own = (folder / kAdapterConfigFile).lexically_normal();
    const bool is_fused = std::any_of(target.text_files.begin(), target.text_files.end(),
                                      [&](const TextFile& file) { return file.path == own; });
    if (is_fused) own = folder / kUnfusedConfigFile;
    const bool in_place =
        whole && files.resolve(config.parent_path() / kAdapterConfigFile) == files.resolve(output_directory / own);
    if (in_place && (!adapter.separate_text.empty() || config.filename() != kAdapterConfigFile))
      throw Error(ErrorKind::kUsage,
                  "describes how to read the shards next to it, and would be replaced by that of the separate linears")
          .in(output_directory / own)
          .hint("choose another output directory");
    if (!adapter.separate_text.empty())
      carried.text_files.push_back({own, adapter.separate_text, config});
    else if (!in_place)
      copy(config, own);
    if (whole && adapter.stages.empty()) carry_beside_adapter(files, draft, adapter, output_directory, wanted, carried);
  }
  return carried;
}

}  // namespace

CarriedFiles carry_files(Files& files, Draft& draft, const Layout& layout, const TargetPlan& target,
                         const fs::path& output_directory, CompanionFiles wanted) {
  if (!draft.source.adapters.empty())
    return carry_adapter_files(files, draft, layout, target, output_directory, wanted);
  Carrier carrier{files, draft, output_directory};
  const Checkpoint& source = draft.source;
  CarriedFiles& carried = carrier.carried;
  Companions companions;
  if (files.resolve(output_directory) != files.resolve(source.directory)) {
    companions = companions_beside(files, source, wanted, output_directory);
    carried.copied_files = std::move(companions.files);
    draft.source.notes.add(companions.notes);
    note_others_left(draft, companions.left);
  }
  carry_config(carrier);
  if (wanted != CompanionFiles::kNone) carry_tokenizer(carrier, &layout == &whole_layout());
  carry_code(carrier, wanted);
  if (!source.states.empty() && layout.traits().writes_states())
    for (CopiedFile& file : trainer_files(files, source)) replace_copy(carried.copied_files, std::move(file));
  if (!source.states.empty() && layout.traits().writes_groups_alone()) validate_no_trainer_files(carrier);
  note_weights_left(carrier, companions.weights);
  // Files that the run writes are not copied from the source.
  const auto is_written = [](const std::vector<TextFile>& texts, const fs::path& path) {
    return std::any_of(texts.begin(), texts.end(), [&](const TextFile& text) { return text.path == path; });
  };
  std::erase_if(carried.copied_files, [&](const CopiedFile& copied) {
    return copied.path == kKeptIndexMetadataFile || is_written(target.text_files, copied.path) ||
           is_written(carried.text_files, copied.path);
  });
  return std::move(carrier.carried);
}

std::vector<std::string> left_behind(Files& files, const Checkpoint& original, const Checkpoint& copy) {
  std::set<std::string> wanted;
  const Companions beside = companions_beside(files, original, CompanionFiles::kModel, copy.directory);
  for (const auto& found : {beside.files, trainer_files(files, original)})
    for (const CopiedFile& file : found) wanted.insert(file.path.string());
  for (std::string& name : unread_weights(files, original, beside.weights, {})) wanted.insert(std::move(name));
  for (const fs::path& directory : tokenizer_directories(files, original))
    for (const CopiedFile& file : tokenizer_files(files, directory)) wanted.insert(file.path.string());
  std::vector<fs::path> places = tokenizer_directories(files, copy);
  places.push_back(copy.directory);
  std::vector<std::string> lacking;
  for (const std::string& name : wanted)
    if (std::none_of(places.begin(), places.end(), [&](const fs::path& place) { return files.exists(place / name); }))
      lacking.push_back(name);
  if ((original.has_optimizer() && !copy.has_optimizer()) ||
      (original.has_training_state() && !copy.has_training_state())) {
    const std::uint64_t bytes = original.beside_model ? original.beside_model->bytes() : 0;
    lacking.push_back("training state" + (bytes > 0 ? fmt::format(" ({})", format_bytes(bytes)) : ""));
  }
  return lacking;
}

}  // namespace reshard
