// A Hugging Face model directory: config.json and one weights file, or several with an index.
#include "reshard/layouts/hf/hf.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/formats/common/container.h"
#include "reshard/formats/read_container.h"
#include "reshard/formats/torch/split_folder.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/core/misfits.h"
#include "reshard/layouts/core/read_model.h"
#include "reshard/layouts/hf/hf_files.h"
#include "reshard/layouts/map/target_file.h"
#include "reshard/layouts/map/whole_map.h"
#include "reshard/layouts/names/wrappers.h"
#include "reshard/specs/config/model_config.h"
#include "reshard/specs/model/config_plan.h"
#include "reshard/specs/model/language_model.h"
#include "reshard/specs/peft/adapter_config.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Whether the checkpoint may belong to the family: its first layer contains the modules that every layer has.
bool may_fit(const Family& family, const std::unordered_set<std::string_view>& names) {
  return std::all_of(family.modules.begin(), family.modules.end(), [&](const Family::Module& module) {
    if (module.when || module.optional || module.experts || module.items) return true;
    if (!module.variant.empty() || !module.tied_to.empty()) return true;
    const std::string name = expand_layer(module.name, 0);
    const std::string full = module.parameter.empty() ? name : name + "." + module.parameter;
    // Quantised linears have other parameter names.
    return names.count(full) > 0 || std::any_of(names.begin(), names.end(),
                                                [&, start = name + "."](auto held) { return held.starts_with(start); });
  });
}

/// Returns a name in lower case without "_", such as "qwen2moeforcausallm".
std::string plain(const std::string& name) {
  std::string letters;
  for (const char c : name)
    if (c != '_') letters += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return letters;
}

void sort_by_likelihood(std::vector<std::string>& families, const ModelConfig& config) {
  const LanguageModel found = find_language_model(config);
  const std::string words = plain(found.config.model_type) + " " + plain(found.architecture);
  std::map<std::string, std::size_t> like = families_like();
  const auto rank = [&](const std::string& name) {
    return std::tuple(words.find(plain(name)) == words.npos, -static_cast<std::ptrdiff_t>(like[name]), name);
  };
  std::sort(families.begin(), families.end(), [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
}

/// Returns the built-in families whose tensors have exactly the names and shapes in these files, without aliases.
/// Families whose names occur in the model_type or class of config.json come first, then those that most other families
/// resemble.
std::vector<std::string> families_that_fit(const ModelConfig& config, const std::vector<Container>& files) {
  std::unordered_set<std::string_view> names;
  for (const Container& file : files)
    for (const TensorEntry& tensor : file.tensors) names.insert(tensor.name);
  std::vector<std::string> fitting;
  for (const std::string& name : known_model_types()) {
    const auto builtin = builtin_family(name);
    if (builtin->modules.empty() || is_second_name(name)) continue;
    try {
      const LanguageModel found = find_language_model(config, builtin);
      const auto family = with_prefixes_of(found.family, names);
      if (!may_fit(*family, names)) continue;
      const Model model = instantiate(found, names);
      if (find_misfits(whole_map(files).logical, model).empty()) fitting.push_back(name);
    } catch (const Error&) {
      continue;  // config.json lacks what this family needs
    }
  }
  sort_by_likelihood(fitting, config);
  return fitting;
}

constexpr Format kHfFormats[] = {Format::kSafetensors, Format::kPytorch};
constexpr LayoutTraits kTraits{"hf", "huggingface", "Hugging Face directory of whole tensors", "", kHfFormats};

/// Returns the entries of the output. Packs the experts of each layer if requested, or if Transformers does so for this
/// model and all of its experts exist.
/// \throws Error kUsage if the request packs experts of an unknown model; as packed_entries_of.
std::vector<OutputTensor> entries_for(const TargetRequest& request, const TargetContext& context) {
  const std::string form = request.options.choice(kExperts);
  if (form == "packed" && context.model == nullptr)
    throw Error(ErrorKind::kUsage, "`experts` packed: the model is unknown")
        .hint("set `config` to its config.json, or `family` to its family");
  if (form == "packed") return packed_entries_of(context.logical, *context.model);
  if (form == "auto" && context.model != nullptr && saves_packed(context.logical, *context.model)) {
    try {
      return packed_entries_of(context.logical, *context.model);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kUnsupported) throw;
    }
  }
  return entries_of(context.logical);
}

/// Returns null for a text that is not JSON.
Json json_or_null(const std::string& text) {
  try {
    return parse_json(text, {});
  } catch (const Error&) {
    return {};
  }
}

/// The metadata of several files as that of one. Lists are united; other keys with two values are left out.
class JoinedMetadata {
 public:
  void add(const FileMetadata& more) {
    for (const auto& [key, value] : more) {
      const auto [found, is_new] = values_.emplace(key, value);
      if (is_new)
        keys_.push_back(key);
      else if (found->second && *found->second != value)
        found->second = united(*found->second, value);
    }
  }

  FileMetadata take() {
    FileMetadata all;
    for (const std::string& key : keys_)
      if (auto& value = values_.at(key)) all.emplace_back(key, std::move(*value));
    return all;
  }

 private:
  /// Returns std::nullopt unless both are JSON arrays.
  static std::optional<std::string> united(const std::string& a, const std::string& b) {
    Json all = json_or_null(a);
    const Json more = json_or_null(b);
    if (!all.is_array() || !more.is_array()) return std::nullopt;
    std::set<Json> known(all.begin(), all.end());
    for (const Json& item : more)
      if (known.insert(item).second) all.push_back(item);
    return json_text(all);
  }

  std::vector<std::string> keys_;  // in the order of the files
  std::unordered_map<std::string, std::optional<std::string>> values_;
};

/// Returns the metadata of the files that contain the tensors of `entries`. \param metadata  TargetContext::metadata.
FileMetadata joined_metadata(const std::vector<const OutputTensor*>& entries,
                             std::span<const std::shared_ptr<const FileMetadata>> metadata) {
  JoinedMetadata all;
  std::set<const FileMetadata*> joined;
  for (const OutputTensor* entry : entries)
    for (const std::uint32_t l : entry->logical)
      if (metadata[l] && joined.insert(metadata[l].get()).second) all.add(*metadata[l]);
  return all.take();
}

/// Returns the built-in families that match the files in `directory`. Ignores errors in the files, which are reported
/// later.
std::vector<std::string> fitting_families(Files& files, const fs::path& directory, const ModelConfig& config) {
  try {
    return families_that_fit(config, read_hf_checkpoint(files, directory));
  } catch (const Error&) {
    return {};
  }
}

/// Validates that the model of config.json is known.
void validate_known(Files& files, Checkpoint& checkpoint, const ReadContext& context) {
  if (describes_model(context.family)) return;
  const ModelConfig& config = read_config(files, checkpoint);
  if (has_config_plan(config) || find_language_model(config, context.family).family) return;
  throw unknown_model_type(config, fitting_families(files, checkpoint.path, config));
}

/// Reads a checkpoint. If the model must be known and the tensors do not match the model_type in config.json, proposes
/// the families that match.
Checkpoint read_of_family(Files& files, Checkpoint checkpoint, const std::vector<Container>& containers,
                          const ReadContext& context) {
  const fs::path config = checkpoint.config.path;
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
  std::vector<const LayoutOption*> options() const override { return {&kMaxShardSize, &kExperts}; }

  std::vector<FoundLayout> recognise(Files& files, const fs::path& path) const override {
    const auto names = hf_names_in(files, path);
    if (!names) return {};
    return {{this, path, path, !holds_weights(files, path, *names)}};
  }

  Checkpoint read(Files& files, const FoundLayout& found, const ReadContext& context) const override {
    Checkpoint checkpoint;
    checkpoint.layout = this;
    checkpoint.path = checkpoint.directory = found.path;
    find_config(files, checkpoint, context.config);
    if (context.use == ConfigUse::kNeeded)
      validate_known(files, checkpoint, context);  // reported before missing weights
    const auto names = hf_names_in(files, found.path);
    const bool is_described = !checkpoint.config.path.empty() || describes_model(context.family);
    const bool is_adapter = files.exists(found.path / kAdapterConfigFile);
    const auto lone = names || is_adapter || !is_described ? std::nullopt : only_weights_file(files, found.path);
    if (const auto name = names ? std::optional(names->whole) : lone) checkpoint.weights_stem = diffusers_stem(*name);
    checkpoint.format = lone ? format_of_file(files, found.path / *lone) : names ? names->format : Format::kSafetensors;
    LanguageModel described;
    const KnownModel known = known_model(files, checkpoint, context, described);
    HfIndexReport report;
    std::vector<Container> containers;
    if (lone) {
      containers.push_back(read_container(files, found.path / *lone, checkpoint.format));
      report.old_names = take_out_wrappers(containers, known, report.notes);
      report.notes.chosen(fmt::format("reading {}, the only weights file", printable(*lone))).in(found.path / *lone);
    } else {
      containers = read_hf_checkpoint(files, found.path, &report, known);
    }
    if (!report.metadata.empty()) checkpoint.index_metadata = {std::move(report.metadata), found.path / names->index};
    checkpoint.old_names = std::move(report.old_names);
    checkpoint.notes.add(report.notes);
    // When files are copied, the note on skipped files also names these.
    if (context.use == ConfigUse::kLenient && !report.unlisted.empty())
      checkpoint.notes.left_out(
          fmt::format("left out, as {} does not name them: {}", names->index, list_names(report.unlisted)));
    recognise_quantization(files, checkpoint, containers, context);
    return read_of_family(files, std::move(checkpoint), containers, context);
  }

  TargetPlan plan(const TargetRequest& request, const TargetContext& context) const override {
    const Format format = format_of(request);
    TargetPlan plan;
    const std::vector<OutputTensor> entries = entries_for(request, context);
    const std::string& stem = context.weights_stem;
    plan.map = hf_target_map(context.logical, entries, request.options.number(kMaxShardSize).value(), format, stem,
                             context.metadata);
    if (entries.size() < context.logical.size())
      plan.notes.hint(
          "all experts of a layer are written in one tensor, as in the memory of Transformers 5: Transformers 4 does "
          "not load them, and some versions initialise them randomly without an error");
    if (plan.map.files.size() > 1) {
      HfIndex index = index_of(plan.map);
      index.metadata = context.index_metadata.text;
      plan.text_files.push_back({hf_index_name(format, stem), hf_index_text(index), context.index_metadata.file});
    }
    return plan;
  }

  std::optional<Error> explain_missing(Files& files, const fs::path& path) const override {
    if (!files.is_file(path / kSplitIndexFile)) return std::nullopt;
    return Error(ErrorKind::kBadInput, "contains one file per tensor, but not the model's config.json")
        .in(path)
        .hint("give the directory above, which contains both: " + directory_above(files, path).string());
  }

  /// Refuses weight files that would not be replaced, since loaders would mix them with the new files.
  void validate_beside(Files& files, const TargetPlan& plan, const fs::path& output_directory) const override {
    validate_no_leftovers(files, plan, output_directory, is_hf_weights_name, "other weights");
  }
};

}  // namespace

TargetMap hf_target_map(std::span<const LogicalTensor> logical, const std::vector<OutputTensor>& entries,
                        std::uint64_t max_file_bytes, Format format, const std::string& stem,
                        std::span<const std::shared_ptr<const FileMetadata>> metadata) {
  std::vector<std::vector<const OutputTensor*>> files;
  std::vector<const OutputTensor*> open;
  std::uint64_t open_bytes = 0;
  for (const OutputTensor& entry : entries) {
    const std::uint64_t bytes = num_bytes(logical[entry.logical.front()].dtype, entry.shape).value_or(0);
    if (bytes > max_file_bytes) {
      files.push_back({&entry});
      continue;
    }
    if (open_bytes + bytes > max_file_bytes) {
      files.push_back(std::exchange(open, {}));
      open_bytes = 0;
    }
    open.push_back(&entry);
    open_bytes += bytes;
  }
  if (!open.empty() || files.empty()) files.push_back(std::move(open));

  TargetMap map;
  map.reserve_logical(logical.size());
  for (const LogicalTensor& tensor : logical) map.add_logical(tensor, {});
  for (std::size_t f = 0; f < files.size(); ++f) {
    TargetContainer container{format, hf_file_name(format, f + 1, files.size(), stem)};
    if (!metadata.empty() && format == Format::kSafetensors) container.metadata = joined_metadata(files[f], metadata);
    for (const OutputTensor* entry : files[f]) {
      const LogicalTensor& first = logical[entry->logical.front()];
      PlacedTensor tensor{{entry->name, first.dtype, entry->shape}, {}};
      if (entry->shape.size() > first.shape.size()) tensor.stored.set_view(tensor.stored.view().merged(0).value());
      std::uint64_t row = 0;
      for (const std::uint32_t l : entry->logical) {
        const Dims& shape = logical[l].shape;
        Dims begin(shape.size());
        if (!shape.empty()) begin[0] = std::exchange(row, row + shape[0]);
        tensor.parts.push_back({l, whole(shape), std::move(begin)});
      }
      container.tensors.push_back(std::move(tensor));
    }
    add_target_container(map, std::move(container));
  }
  return map;
}

TargetMap hf_target_map(std::span<const LogicalTensor> logical, std::uint64_t max_file_bytes, Format format) {
  return hf_target_map(logical, entries_of(logical), max_file_bytes, format);
}

HfIndex index_of(const TargetMap& target) {
  HfIndex index;
  for (const StoredTensor& tensor : target.stored) {
    index.total_size_bytes += tensor.size_bytes();
    index.weight_map.emplace_back(tensor.name, target.files[tensor.file].path.string());
  }
  return index;
}

const Layout& hf_layout() {
  static const HfLayout kLayout;
  return kLayout;
}

}  // namespace reshard
