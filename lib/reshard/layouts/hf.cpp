// A Hugging Face directory: config.json beside whole tensors in one file or several with an index.
#include "reshard/layouts/hf.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <unordered_map>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/formats/read_container.h"
#include "reshard/layouts/checkpoint.h"
#include "reshard/layouts/fitting.h"
#include "reshard/layouts/layout.h"
#include "reshard/layouts/nearby_checkpoints.h"
#include "reshard/layouts/state_names.h"
#include "reshard/layouts/target_file.h"
#include "reshard/specs/config_plan.h"
#include "reshard/specs/language_model.h"
#include "reshard/specs/model_config.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// The names that one program gives the files of a model.
struct WholeNames {
  Format format;
  std::string whole;  // name of a model in one file
  std::string index() const { return whole + kIndexEnding; }
};

/// The names of the files in `directory`, by Transformers or diffusers, safetensors first; std::nullopt if there are
/// none.
std::optional<WholeNames> names_in(Files& files, const fs::path& directory) {
  const WholeNames all[] = {{Format::kSafetensors, kSafetensorsFile},
                            {Format::kPytorch, kPytorchFile},
                            {Format::kSafetensors, kDiffusersSafetensorsFile},
                            {Format::kPytorch, kDiffusersPytorchFile}};
  for (const WholeNames& names : all)
    for (const std::string& name : {names.whole, names.index()})
      if (files.kind_of(directory / name) != FileKind::kNone) return names;
  return std::nullopt;
}

Error no_weights(Files& files, const fs::path& directory) {
  std::vector<std::string> numbered;
  for (const DirectoryEntry& entry : files.list(directory))
    if (entry.name.ends_with(".safetensors") ||
        (entry.name.starts_with("pytorch_model") && entry.name.ends_with(".bin")))
      numbered.push_back(entry.name);
  Error error(ErrorKind::kBadInput, "holds neither model.safetensors nor pytorch_model.bin, nor an index of either");
  error.in(directory);
  if (numbered.size() > 1 || (numbered.size() == 1 && numbered.front().find("-of-") != std::string::npos))
    error.hint("there are other weight files (" + list_names(numbered) + "); is the index missing?");
  return error;
}

/// The tensors that the index puts into each file, against those that the file holds.
void validate_against_index(const Container& file, const std::vector<std::string>& listed, const fs::path& index_path) {
  std::unordered_map<std::string, bool> held;  // name → also listed
  for (const TensorEntry& tensor : file.tensors) held.emplace(tensor.name, false);
  const std::string file_name = file.path.filename().string();
  for (const std::string& name : listed) {
    const auto found = held.find(name);
    if (found == held.end())
      throw Error(ErrorKind::kBadInput, "the index puts it into " + printable(file_name) + ", which does not hold it")
          .in(index_path)
          .tensor(name);
    found->second = true;
  }
  for (const TensorEntry& tensor : file.tensors)
    if (!held[tensor.name])
      throw Error(ErrorKind::kBadInput,
                  "the file holds it, but " + index_path.filename().string() + " does not list it there")
          .in(file.path)
          .tensor(tensor.name)
          .hint("the index belongs to other files, or is older than they are");
}

/// Weight files beside the index that it does not name.
std::vector<std::string> unlisted_files(Files& files, const fs::path& directory, Format format,
                                        const std::map<std::string, std::vector<std::string>>& listed) {
  const std::string ending = fs::path(hf_file_name(format, 1, 1)).extension();
  std::vector<std::string> names;
  std::vector<DirectoryEntry> entries;
  try {
    entries = files.list(directory);
  } catch (const Error& error) {
    if (error.code() != std::errc::permission_denied) throw;  // what the index names can be read all the same
  }
  for (const DirectoryEntry& entry : entries)
    if (is_hf_weights_name(entry.name) && entry.name.ends_with(ending) && listed.count(entry.name) == 0)
      names.push_back(entry.name);
  std::sort(names.begin(), names.end(), natural_less);
  return names;
}

std::vector<Container> read_indexed(Files& files, const fs::path& directory, const fs::path& index_path, Format format,
                                    HfIndexReport& report) {
  const HfIndex index = read_hf_index(files, index_path);
  report.metadata = index.metadata;
  std::map<std::string, std::vector<std::string>> names_by_file;
  for (const auto& [name, file] : index.weight_map) names_by_file[file].push_back(name);
  std::vector<Container> containers;
  std::uint64_t total_bytes = 0;
  for (const auto& [file, names] : names_by_file) {
    if (!files.exists(directory / file))
      throw Error(ErrorKind::kBadInput, "names the file " + printable(file) + " (" + std::to_string(names.size()) +
                                            " tensors), which is missing")
          .in(index_path)
          .hint("the download did not finish; fetch the model again");
    containers.push_back(read_container(files, directory / file, format));
    validate_against_index(containers.back(), names, index_path);
    for (const TensorEntry& tensor : containers.back().tensors) total_bytes += tensor.size_bytes;
  }
  const std::string index_name = index_path.filename().string();
  if (!containers.empty() && index.total_size_bytes != 0 && index.total_size_bytes != total_bytes)
    report.notes.push_back(fmt::format("{} says total_size {}, but the tensors have {} bytes", index_name,
                                       index.total_size_bytes, total_bytes));
  report.unlisted = unlisted_files(files, directory, format, names_by_file);
  return containers;
}

constexpr Format kHfFormats[] = {Format::kSafetensors, Format::kPytorch};
constexpr LayoutTraits kTraits{"hf", "huggingface", "Hugging Face's directory of whole tensors", "", kHfFormats};

/// Whether there is any file of weights, and not an index alone, as other systems copy it beside files of their own.
bool holds_weights(Files& files, const fs::path& directory, const WholeNames& names_of) {
  const std::string& whole = names_of.whole;
  const fs::path index = directory / names_of.index();
  if (!files.exists(index) || files.exists(directory / whole)) return true;
  try {
    // Reading the index of a large model takes longer than all else that recognises a directory.
    const std::string ending = fs::path(whole).extension();
    for (const DirectoryEntry& entry : files.list(directory))
      if (is_hf_weights_name(entry.name) && entry.name.find("-of-") != entry.name.npos && entry.name.ends_with(ending))
        return true;
    const HfIndex names = read_hf_index(files, index);
    return std::any_of(names.weight_map.begin(), names.weight_map.end(),
                       [&](const auto& entry) { return files.exists(directory / entry.second); });
  } catch (const Error&) {
    return true;  // read says what is wrong with it
  }
}

/// Built-in families under which every tensor of the files is explained. What is wrong with the files comes second.
std::vector<std::string> fitting_families(Files& files, const fs::path& directory, const ModelConfig& config) {
  try {
    return families_that_fit(config, read_hf_checkpoint(files, directory));
  } catch (const Error&) {
    return {};
  }
}

/// That somebody knows the model of config.json.
void validate_known(Files& files, const Checkpoint& checkpoint, const ReadContext& context) {
  if (describes_model(context.family)) return;
  const ModelConfig config = checkpoint.config.empty() ? read_model_config(files, checkpoint.directory)
                                                       : read_model_config_file(files, checkpoint.config);
  if (has_config_plan(config) || find_language_model(config, context.family).family) return;
  throw unknown_model_type(config, fitting_families(files, checkpoint.path, config));
}

/// Reads a checkpoint whose model has to be known. Where its tensors are not those of the model_type in config.json,
/// the families that they fit are proposed.
Checkpoint read_of_family(Files& files, Checkpoint checkpoint, const std::vector<Container>& containers,
                          const ReadContext& context) {
  const fs::path config = checkpoint.config;
  if (context.use != ConfigUse::kNeeded || context.family || config.empty())
    return read_whole_files(files, std::move(checkpoint), containers, context);
  const auto fitting = [&files, config, directory = checkpoint.path] {
    return fitting_families(files, directory, read_model_config_file(files, config));
  };
  try {
    checkpoint = read_whole_files(files, std::move(checkpoint), containers, context);
  } catch (Error& error) {
    if (error.kind() == ErrorKind::kBadInput && error.path() == config.string() && error.hint().empty())
      error.hint(propose_families(fitting()));
    throw;
  }
  if (checkpoint.model && !checkpoint.model->by_config_plan) checkpoint.model->find_other_families = fitting;
  return checkpoint;
}

class HfLayout final : public Layout {
 public:
  const LayoutTraits& traits() const override { return kTraits; }
  std::vector<const LayoutOption*> options() const override { return {&kMaxShardSize}; }

  std::vector<FoundLayout> recognise(Files& files, const fs::path& path) const override {
    const auto names = names_in(files, path);
    if (!names) return {};
    return {{this, path, path, !holds_weights(files, path, *names)}};
  }

  Checkpoint read(Files& files, const FoundLayout& found, const ReadContext& context) const override {
    Checkpoint checkpoint;
    checkpoint.layout = this;
    checkpoint.path = checkpoint.directory = found.path;
    find_config(files, checkpoint, context.config);
    if (context.use == ConfigUse::kNeeded)
      validate_known(files, checkpoint, context);  // the first thing that is missed
    const auto names = names_in(files, found.path);
    const auto lone = names || !describes_model(context.family) ? std::nullopt : only_weights_file(files, found.path);
    checkpoint.format = lone ? format_of_file(files, found.path / *lone) : names ? names->format : Format::kSafetensors;
    HfIndexReport report;
    std::vector<Container> containers;
    if (lone) {
      containers.push_back(read_container(files, found.path / *lone, checkpoint.format));
      take_out_wrappers(containers, report.notes);
    } else {
      containers = read_hf_checkpoint(files, found.path, &report);
    }
    checkpoint.index_metadata = std::move(report.metadata);
    std::move(report.notes.begin(), report.notes.end(), std::back_inserter(checkpoint.notes));
    // Where other files are copied, the note on those that are not names these, too.
    if (context.use == ConfigUse::kLenient && !report.unlisted.empty())
      checkpoint.notes.push_back(
          fmt::format("left out, as {} does not name them: {}", names->index(), list_names(report.unlisted)));
    if (!checkpoint.index_metadata.empty()) checkpoint.index_metadata_file = found.path / names->index();
    return read_of_family(files, std::move(checkpoint), containers, context);
  }

  TargetPlan plan(const TargetRequest& request, const TargetContext& context) const override {
    validate_request(request);
    const Format format = format_of(request);
    TargetPlan plan;
    plan.map = hf_target_map(context.logical, request.options.number(kMaxShardSize).value(), format);
    if (plan.map.files.size() > 1) {
      HfIndex index = index_of(plan.map);
      index.metadata = context.index_metadata;
      plan.text_files.push_back({hf_index_name(format), hf_index_text(index), context.index_metadata_file});
    }
    return plan;
  }

  /// A weight file that would not be replaced, though loaders would mix it with the new.
  void validate_beside(Files& files, const TargetPlan& plan, const fs::path& output_directory) const override {
    validate_no_leftovers(files, plan, output_directory, is_hf_weights_name, "weights of another checkpoint");
  }
};

}  // namespace

std::optional<Format> hf_format(Files& files, const fs::path& directory) {
  const auto names = names_in(files, directory);
  return names ? std::optional(names->format) : std::nullopt;
}

std::vector<Container> read_hf_checkpoint(Files& files, const fs::path& directory, HfIndexReport* report) {
  const auto names = names_in(files, directory);
  if (!names) throw no_weights(files, directory);
  const Format format = names->format;
  const fs::path index_path = directory / names->index();
  const fs::path single_path = directory / names->whole;
  for (const fs::path& path : {index_path, single_path})
    if (files.kind_of(path) == FileKind::kBrokenLink)
      throw Error(ErrorKind::kBadInput, "is a link to nowhere")
          .in(path)
          .hint("the download did not finish; fetch it again");
  const bool single = files.exists(single_path);
  std::vector<Container> containers;
  if (files.exists(index_path)) {
    HfIndexReport unread;
    containers = read_indexed(files, directory, index_path, format, report ? *report : unread);
    const bool listed =
        std::any_of(containers.begin(), containers.end(), [&](const Container& c) { return c.path == single_path; });
    if (single && !listed)
      throw Error(ErrorKind::kBadInput,
                  "holds " + single_path.filename().string() + " and an index that names other files")
          .in(directory)
          .hint("these are two checkpoints in one place; loaders disagree which counts, so move one away");
  } else {
    containers.push_back(read_container(files, single_path, format));
  }
  const bool both = format == Format::kSafetensors &&
                    (files.exists(directory / kPytorchFile) || files.exists(directory / kPytorchIndexFile));
  if (both)
    containers.front().warnings.push_back("there are PyTorch weights beside it, which are ignored, as in transformers");
  std::vector<std::string> unread;
  take_out_wrappers(containers, report ? report->notes : unread);
  return containers;
}

TensorMap hf_target_map(std::span<const LogicalTensor> logical, std::uint64_t max_file_bytes, Format format) {
  std::vector<std::vector<StoredTensor>> files;
  std::vector<StoredTensor> open;
  std::uint64_t open_bytes = 0;
  for (const LogicalTensor& tensor : logical) {
    const std::uint64_t bytes = num_bytes(tensor.dtype, tensor.shape).value_or(0);
    StoredTensor stored{tensor.name, tensor.dtype, tensor.shape};
    if (bytes > max_file_bytes) {
      files.push_back({std::move(stored)});
      continue;
    }
    if (open_bytes + bytes > max_file_bytes) {
      files.push_back(std::exchange(open, {}));
      open_bytes = 0;
    }
    open.push_back(std::move(stored));
    open_bytes += bytes;
  }
  if (!open.empty() || files.empty()) files.push_back(std::move(open));

  TensorMap map;
  map.reserve_logical(logical.size());
  for (const LogicalTensor& tensor : logical) map.add_logical(tensor, {});
  for (std::size_t f = 0; f < files.size(); ++f) {
    const auto indices = add_target_container(
        map, {format, hf_file_name(format, f + 1, files.size()), 0, 0, 0, std::move(files[f]), {}});
    for (const std::uint32_t stored : indices) map.add_whole(stored, map.stored[stored].name);
  }
  return map;
}

HfIndex index_of(const TensorMap& target) {
  HfIndex index;
  for (const StoredTensor& tensor : target.stored) {
    index.total_size_bytes += tensor.size_bytes;
    index.weight_map.emplace_back(tensor.name, target.files[tensor.file].path.string());
  }
  return index;
}

const Layout& hf_layout() {
  static const HfLayout kLayout;
  return kLayout;
}

}  // namespace reshard
