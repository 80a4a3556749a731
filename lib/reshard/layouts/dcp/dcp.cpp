// Checkpoints of torch.distributed.checkpoint: `.metadata`, which lists the chunks of every tensor, and files of items;
// or one safetensors file per rank from its HuggingFaceStorageWriter. Written by FSDP, accelerate, torchtitan and
// others, each with its own prefix of the model's state dict.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/formats/common/tensor_names.h"
#include "reshard/formats/dcp/dcp_metadata.h"
#include "reshard/formats/dcp/dcp_shards.h"
#include "reshard/formats/read_container.h"
#include "reshard/formats/safetensors/hf_index.h"
#include "reshard/io/files.h"
#include "reshard/io/memory_files.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/core/read_model.h"
#include "reshard/layouts/core/unpack.h"
#include "reshard/layouts/dcp/dcp_directory.h"
#include "reshard/layouts/dcp/dcp_groups.h"
#include "reshard/layouts/dcp/dcp_source.h"
#include "reshard/layouts/dcp/dcp_target.h"
#include "reshard/layouts/dcp/original_dtypes.h"
#include "reshard/layouts/hf/hf.h"
#include "reshard/layouts/map/chunked_map.h"
#include "reshard/layouts/names/state_names.h"
#include "reshard/layouts/names/written_names.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr Format kDcpFormats[] = {Format::kPytorch};
constexpr LayoutTraits kDcpTraits{.name = "dcp",
                                  .reported_as = "dcp",
                                  .meaning = "torch.distributed.checkpoint: FSDP, accelerate, torchtitan",
                                  .folder = "",
                                  .formats = kDcpFormats,
                                  .axes = {MeshAxis::kTensor, MeshAxis::kData},
                                  .reads = {Contents::kStates, Contents::kGroups, Contents::kObjects},
                                  .writes = {Contents::kStates, Contents::kGroups, Contents::kObjects}};

/// Prefix of accelerate's model folders, and prefixes of folders of optimizers.
constexpr std::string_view kFsdpFolder = "pytorch_model_fsdp_";
constexpr std::string_view kOptimizerFolders[] = {"optimizer", "optim"};
/// Prefix of accelerate's folder of the optimizer; the model's folder has the same number.
constexpr std::string_view kDcpOptimizerFolder = "optimizer_";

/// Folder of rank files that HuggingFaceStorageWriter creates next to consolidated files.
constexpr const char* kShardsFolder = "sharded";

constexpr LayoutOption kFsdp{.name = "fsdp",
                             .type = LayoutOption::Type::kDegree,
                             .help = "Number of ranks to shard rows over (FSDP), one file per rank that has rows",
                             .default_value = "1"};
constexpr LayoutOption kPrefix{.name = "prefix",
                               .type = LayoutOption::Type::kText,
                               .help = "Prefix of every tensor name, such as model. for accelerate"};

constexpr LayoutOption kNames{
    .name = "names",
    .type = LayoutOption::Type::kText,
    .help = "Names of tensors: hf (the default), or a program's, such as torchtitan (its newest) or torchtitan-0.2"};

/// Returns the value of `prefix` with a dot at the end, unless it is empty.
/// \throws Error kUsage.
std::string prefix_of(const std::string& given) {
  if (given.empty()) return given;
  std::string prefix = given.ends_with('.') ? given : given + '.';
  if (prefix.starts_with('.') || prefix.find("..") != prefix.npos || prefix.find_first_of("/ ") != prefix.npos ||
      !is_plain_text(prefix))
    throw Error(ErrorKind::kUsage,
                fmt::format("`prefix`: \"{}\" is not a list of names separated by dots", printable(given)));
  return prefix;
}

/// Returns the entries of a checkpoint that are not the model's.
std::vector<std::string> beyond_model(const DcpMetadata& metadata) {
  std::vector<std::string> tensors, others;
  for (const DcpTensor& tensor : metadata.tensors) tensors.push_back(tensor.name);
  for (const DcpBytes& object : metadata.bytes) others.push_back(object.name);
  const StateNames names = find_state_names(tensors, {nullptr}, others);
  std::erase_if(others, [](const std::string& name) { return name.ends_with("_extra_state"); });  // a module's
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (names.entries[i].name.empty() || names.is_of_optimizer(tensors[i])) others.push_back(tensors[i]);
  return others;
}

/// Validates that a checkpoint in `directory`, if it has one, contains nothing but a model and entries that the new one
/// has, too: weights may be replaced, but not an optimizer, or other training state. Reads only metadata.
/// \param metadata  content of the new `.metadata`.
/// \throws Error kBadInput naming the entries that would be lost; kIo.
void validate_dcp_replaced(Files& files, const fs::path& directory, const std::string& metadata) {
  if (!holds_dcp_metadata(files, directory)) return;
  std::vector<std::string> lost;
  try {
    Notes notes;
    lost = beyond_model(read_dcp_directory(files, directory, DcpPaths::kLeave, notes).all);
  } catch (const Error& error) {
    if (is_disk_fault(error)) throw;
    return;  // no program can load it
  }
  if (lost.empty()) return;
  const DcpMetadata written = read_dcp_metadata(MemorySource(metadata), directory / kDcpMetadataFile, DcpPaths::kLeave);
  std::unordered_set<std::string_view> kept;
  for (const DcpTensor& tensor : written.tensors) kept.insert(tensor.name);
  for (const DcpBytes& object : written.bytes) kept.insert(object.name);
  std::erase_if(lost, [&](const std::string& name) { return kept.count(name) > 0; });
  if (lost.empty()) return;
  throw Error(
      ErrorKind::kBadInput,
      fmt::format("would be replaced, but its checkpoint also contains {} entr{} of training state that the new "
                  "one would not have: {}",
                  lost.size(), lost.size() == 1 ? "y" : "ies", list_names(lost)))
      .in(directory)
      .hint(
          "choose another output directory; training state is never deleted, so delete that checkpoint yourself if "
          "you do not need it");
}

class DcpLayout final : public Layout {
 public:
  const LayoutTraits& traits() const override { return kDcpTraits; }
  std::vector<const LayoutOption*> options() const override { return {&kFsdp, &kNames, &kPrefix}; }

  std::vector<FoundLayout> recognise(Files& files, const fs::path& path) const override {
    std::vector<FoundLayout> found;
    const auto add = [&](const fs::path& folder, bool is_whole) {
      found.push_back({this, folder, trained_directory(files, folder), !is_whole, kDcpMetadataFile});
    };
    try {
      const fs::path shards = path / kShardsFolder;
      if (holds_dcp_metadata(files, path) || holds_dcp_shards(files, path)) {
        add(path, true);
      } else if (holds_dcp_items(files, path)) {
        add(path, false);
      } else if (files.is_directory(shards) && holds_dcp_shards(files, shards)) {
        add(shards, true);
      } else {
        for (const DirectoryEntry& entry : files.list(path)) {
          const fs::path folder = path / entry.name;
          // Hidden folders belong to runs that write here, and may disappear at any time.
          if (entry.kind != FileKind::kDirectory || entry.name.starts_with('.') || is_optimizer_folder(entry.name))
            continue;
          if (const bool is_whole = holds_dcp_metadata(files, folder); is_whole || holds_dcp_items(files, folder))
            add(folder, is_whole);
        }
      }
    } catch (const Error& error) {
      if (error.code() != std::errc::permission_denied) throw;
    }
    // Several folders are steps of one run, or models that were trained together.
    const bool is_inside = !found.empty() && found.front().path != path && found.front().path != path / kShardsFolder;
    if (is_inside && (found.size() > 1 || holds_other_model(files, path, found.front().path)))
      std::erase_if(found,
                    [](const FoundLayout& one) { return !one.path.filename().string().starts_with(kFsdpFolder); });
    return found;
  }

  std::optional<Error> explain_missing(Files& files, const fs::path& path) const override {
    if (!files.is_file(path)) return std::nullopt;
    const std::string name = own_name(files, path);
    const char* what = nullptr;
    if (is_dcp_metadata_name(name))
      what = "is the metadata of a torch.distributed.checkpoint, whose tensors are in the files next to it";
    else if (is_dcp_items_name(name) && format_of_file(files, path) == Format::kPytorch)
      what = "contains tensors of a torch.distributed.checkpoint, which only its .metadata describes";
    else if (kDcpShardName.matches(name))
      what = "contains one rank's part of each tensor";
    if (what == nullptr) return std::nullopt;
    return Error(ErrorKind::kBadInput, what)
        .in(path)
        .hint("give the directory that contains all its files: " + directory_above(files, path).string());
  }

  Checkpoint read(Files& files, const FoundLayout& found, const ReadContext& context) const override {
    Checkpoint checkpoint;
    checkpoint.layout = this;
    checkpoint.path = found.path;
    checkpoint.directory = found.directory;
    find_config(files, checkpoint, context.config);
    checkpoint.index_metadata = read_kept_index_metadata(files, checkpoint.directory);
    LanguageModel described;
    KnownModel known = known_model(files, checkpoint, context, described);
    if (context.reads_states()) known.rename = nullptr;  // states have their parameters' names: both are renamed later
    const auto content = context.reads_states() ? DcpContent::kRun : DcpContent::kModel;
    const fs::path optimizer = optimizer_beside(files, found.path);
    const bool has_items = found.is_empty || holds_dcp_metadata(files, found.path);
    DcpSource source = has_items ? read_dcp_source(files, found.path, known, context.use, content, optimizer)
                                 : read_dcp_shards(files, found.path, known, context.use);
    checkpoint.model_elsewhere = model_of_optimizer(files, found.path);
    checkpoint.leaves_states = !context.reads_states() && (source.beside.optimizer.tensors > 0 || !optimizer.empty());
    checkpoint.format = source.format;
    checkpoint.notes = std::move(source.notes);
    checkpoint.beside_model = source.beside;
    checkpoint.names_of = std::move(source.program);
    checkpoint.old_names = std::move(source.old_names);
    std::vector<TrainedTensor> tensors;
    for (const ChunkedTensor& tensor : source.tensors) tensors.push_back({tensor.name, tensor.dtype, tensor.shape});
    read_trained_model(files, checkpoint, context, tensors, source.packed);
    if (!checkpoint.model && source.format == Format::kSafetensors)
      checkpoint.notes.assumed(
          "the files do not record the size of whole tensors: without a config.json, missing files of the last ranks "
          "cannot be detected");
    checkpoint.map = chunked_map(std::move(source.files), std::move(source.tensors), source.where);
    finish_trained_map(files, checkpoint, context, source.packed);
    if (context.beside == Beside::kLook && checkpoint.leaves_states && has_items)
      look_at_optimizer(files, found.path, known, optimizer, *checkpoint.beside_model);
    checkpoint.states = training_states(std::move(source.states), std::move(source.paths), source.where);
    unpack_entries(checkpoint.states.map, source.packed_states, checkpoint, context.use, &checkpoint.states.of);
    checkpoint.states.prefix = std::move(source.prefix);
    if (context.beside == Beside::kReadGroups) read_dcp_groups(files, checkpoint.map.files, checkpoint.states);
    if (context.beside == Beside::kReadPlainGroups) try_dcp_groups(files, checkpoint.map.files, checkpoint.states);
    return checkpoint;
  }

  TargetPlan plan(const TargetRequest& request, const TargetContext& context) const override {
    TargetPlan plan;
    plan.mesh.tp = request.tp.value_or(1);
    const auto fsdp = static_cast<std::uint32_t>(request.options.number(kFsdp).value());
    if (std::uint64_t{fsdp} * plan.mesh.tp > kMaxParallelDegree)
      throw Error(ErrorKind::kUsage,
                  fmt::format("`fsdp` {} and `tp` {} make more than {} ranks", fsdp, plan.mesh.tp, kMaxParallelDegree));
    plan.mesh.fsdp = fsdp;
    DcpCut cut{fsdp, plan.mesh.tp, prefix_of(request.options.text(kPrefix)), request.options.text(kNames)};
    if (cut.names == hf_layout().traits().name) cut.names.clear();  // the model's own
    plan.map = dcp_target_map(context.logical, context.states, context.model, cut, &plan.notes);
    plan.text_files = std::move(plan.map.text_files);
    if (context.states != nullptr) leave_masters(*context.states, context.logical, plan);
    if (context.states != nullptr && !context.states->prefix.empty() && !request.options.has(kPrefix.name))
      plan.notes.changed(
          fmt::format("removed the prefix {0} of the training run from the model's names; to keep it, set `prefix` {0}",
                      printable(context.states->prefix)));
    if (!cut.names.empty())
      if (const auto unused = WrittenNames(*context.model, cut.names).unused(); !unused.empty())
        plan.notes
            .missing("the program may have more tensors, for which the model has no values: " + list_names(unused))
            .of(unused);
    return plan;
  }

  /// Files of another checkpoint would be misleading in the directory, though torch reads only files in `.metadata`.
  void validate_beside(Files& files, const TargetPlan& plan, const fs::path& output_directory) const override {
    const auto is_ours = [](const std::string& name) { return is_dcp_metadata_name(name) || is_dcp_items_name(name); };
    validate_no_leftovers(files, plan, output_directory, is_ours, "other checkpoint files");
    for (const TextFile& file : plan.text_files)
      if (file.path == kDcpMetadataFile) validate_dcp_replaced(files, output_directory, file.text);
  }

  bool owns(Files&, const fs::path&, const std::string& name) const override {
    return is_dcp_metadata_name(name) || is_dcp_items_name(name) || kDcpShardName.matches(name) ||
           name == kOriginalDtypesFile || name == kOriginalFilesFile;
  }
  bool is_checkpoint(const std::set<std::string>& files, const std::set<std::string>&) const override {
    return std::any_of(files.begin(), files.end(),
                       [](const std::string& name) { return is_dcp_metadata_name(name) || is_dcp_items_name(name); });
  }

 private:
  /// Reads the optimizer's groups and step count for a summary. Errors other than kIo are recorded in the summary.
  static void look_at_optimizer(Files& files, const fs::path& directory, const KnownModel& model,
                                const fs::path& optimizer, BesideModel& beside) {
    try {
      DcpSource run = read_dcp_source(files, directory, model, ConfigUse::kLenient, DcpContent::kRun, optimizer);
      TrainingStates states = training_states(std::move(run.states), std::move(run.paths), run.where);
      beside.step = last_step(files, run.files, states);
      try_dcp_groups(files, run.files, states);
      beside.groups = groups_of(states);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kIo) throw;
      beside.unreadable = error.with_hint();
    }
  }

  /// Leaves out master weights, since torch's optimizers update the model's own weights.
  static void leave_masters(const TrainingStates& states, std::span<const LogicalTensor> logical, TargetPlan& plan) {
    std::unordered_map<std::string_view, DType> dtypes;
    for (const LogicalTensor& tensor : logical) dtypes.emplace(tensor.name, tensor.dtype);
    std::size_t finer = 0;  // master weights whose dtype differs from the weights'
    for (std::size_t i = 0; i < states.of.size(); ++i) {
      if (states.of[i].left_out || !is_master(states, i)) continue;
      const auto found = dtypes.find(states.of[i].parameter);
      finer += found != dtypes.end() && found->second != states.map.logical[i].dtype;
      plan.without_place.push_back(states.map.logical[i].name);
    }
    if (finer > 0)
      plan.notes.left_out(
          fmt::format("left out {} master weights, which torch's optimizers do not have; `weights` master writes them "
                      "as the model's weights",
                      finer));
  }

  /// Returns accelerate's folder of the optimizer for the model in `folder`; empty if it does not exist, or if it is
  /// the same folder under another name.
  static fs::path optimizer_beside(Files& files, const fs::path& folder) {
    std::string name = own_name(files, folder);
    if (!name.starts_with(kFsdpFolder)) return {};
    const fs::path above = folder.filename() == name ? folder.parent_path() : directory_above(files, folder);
    name.replace(0, kFsdpFolder.size(), kDcpOptimizerFolder);
    const fs::path optimizer = above / name;
    return holds_dcp_metadata(files, optimizer) && !files.is_same(optimizer, folder) ? optimizer : fs::path();
  }

  /// Returns accelerate's folder of the model whose optimizer is in `folder`; empty if it does not exist.
  static fs::path model_of_optimizer(Files& files, const fs::path& folder) {
    std::string name = own_name(files, folder);
    if (!name.starts_with(kDcpOptimizerFolder)) return {};
    name.replace(0, kDcpOptimizerFolder.size(), kFsdpFolder);
    const fs::path model = directory_above(files, folder) / name;
    return holds_dcp_metadata(files, model) && !files.is_same(model, folder) ? model : fs::path();
  }

  /// Whether another folder in `path` than `model` contains weights.
  static bool holds_other_model(Files& files, const fs::path& path, const fs::path& model) {
    const std::vector<DirectoryEntry> entries = files.list(path);
    return std::any_of(entries.begin(), entries.end(), [&](const DirectoryEntry& entry) {
      const fs::path folder = path / entry.name;
      if (entry.kind != FileKind::kDirectory || entry.name.starts_with('.') || is_optimizer_folder(entry.name) ||
          folder == model)
        return false;
      try {
        return std::any_of(layouts().begin(), layouts().end(),
                           [&](const Layout* layout) { return !layout->recognise(files, folder).empty(); });
      } catch (const Error& error) {
        return !is_denied(error);
      }
    });
  }
  static bool is_optimizer_folder(std::string_view name) {
    return std::any_of(std::begin(kOptimizerFolders), std::end(kOptimizerFolders),
                       [&](std::string_view start) { return name.starts_with(start); });
  }
};

}  // namespace

const Layout& dcp_layout() {
  static const DcpLayout kLayout;
  return kLayout;
}

}  // namespace reshard
