// Training checkpoints of DeepSpeed's ZeRO: a tag folder global_stepN with the module's state and the optimizer's
// partitions, and universal checkpoints. Read-only. zero_checkpoint.h locates the elements.

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/io/files.h"
#include "reshard/io/text_file.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/core/read_model.h"
#include "reshard/layouts/core/weights_option.h"
#include "reshard/layouts/deepspeed/zero_checkpoint.h"
#include "reshard/layouts/deepspeed/zero_folder.h"
#include "reshard/layouts/map/flat_range.h"
#include "reshard/layouts/map/whole_map.h"
#include "reshard/specs/config/model_config.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr LayoutTraits kDeepspeedTraits{
    .name = "deepspeed",
    .reported_as = "deepspeed",
    .meaning = "DeepSpeed's training checkpoints (ZeRO 1, 2 and 3) and universal checkpoints",
    .folder = "",
    .formats = {},
    .axes = {MeshAxis::kData}};
constexpr std::uint64_t kMaxLatestBytes = 4096;
constexpr std::string_view kStepFolder = "global_step";  // DeepSpeed's default prefix of tags

/// Returns the folder that the text file `name` in `directory` names; std::nullopt if it names none.
std::optional<fs::path> named_folder(Files& files, const fs::path& directory, const char* name) {
  if (!files.is_file(directory / name)) return std::nullopt;
  try {
    std::string text = read_text_file(files, directory / name, kMaxLatestBytes);
    while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) text.pop_back();
    if (text.empty() || text == "." || text == ".." || text.find('/') != text.npos || has_control(text))
      return std::nullopt;
    return directory / text;
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kIo) throw;
    return std::nullopt;  // reported when the file is read
  }
}

/// Returns the directory of config.json near a tag folder; without config.json, the folder's parent if it is a run's
/// directory, or else the folder.
fs::path directory_of(Files& files, const fs::path& folder) {
  const fs::path trained = trained_directory(files, folder);
  const fs::path above = directory_above(files, folder);
  const bool is_run = files.exists(above / kZeroLatestFile) || files.exists(above / kUniversalLatestFile);
  return trained == folder && is_run && !files.exists(folder / kConfigFile) ? above : trained;
}

/// Adds a tensor, of whose runs each is a few boxes.
void add_tensor(SourceMap& map, const ZeroTensor& tensor) {
  const std::uint32_t logical = map.add_logical({tensor.name, tensor.dtype, tensor.shape, {}}, map.files.front().path);
  map.logical[logical].model_dtype = tensor.model_dtype;
  const SharedName entry(tensor.entry);
  const auto add = [&](const FlatRun& place, Box box) {
    StoredTensor stored{entry, tensor.dtype, box.size, place.file, place.offset_bytes};
    if (!tensor.strides.empty()) stored.set_view({box.size, tensor.strides});
    map.add_chunk(logical, std::move(stored), std::move(box));
  };
  if (num_elems(tensor.shape) == 0u) return add({}, whole(tensor.shape));
  for (FlatRun run : tensor.runs)
    for (Box& box : boxes_of_range(tensor.shape, run.begin, run.count)) {
      add(run, std::move(box));
      run.offset_bytes += map.stored.back().size_bytes();
    }
}

/// Returns the map of a checkpoint. Leaves out `shared` parameters, which duplicate others under a second name, with
/// notes.
SourceMap map_of(const ZeroCheckpoint& zero, const std::vector<TiedParameter>& shared, Notes& notes) {
  SourceMap map;
  for (const ContainerFile& file : zero.files) map.add_file(file);
  map.reserve_logical(zero.tensors.size());
  for (const ZeroTensor& tensor : zero.tensors) {
    const auto second =
        std::find_if(shared.begin(), shared.end(), [&](const TiedParameter& one) { return one.name == tensor.name; });
    if (second == shared.end())
      add_tensor(map, tensor);
    else
      notes
          .left_out(fmt::format("left out {}, which is {} under a second name: Hugging Face's files contain it once",
                                printable(second->name), printable(second->source)))
          .of({second->name});
  }
  return map;
}

/// Returns the parameters that the model may tie and the trainer shares as one tensor, so that no comparison is needed.
std::vector<TiedParameter> shared_in(const ZeroCheckpoint& zero, const std::optional<Model>& model) {
  std::vector<TiedParameter> shared = tied_parameters(model);
  std::erase_if(shared, [&](const TiedParameter& one) {
    return std::none_of(zero.tensors.begin(), zero.tensors.end(), [&](const ZeroTensor& tensor) {
      return (tensor.name == one.name && tensor.shared_with == one.source) ||
             (tensor.name == one.source && tensor.shared_with == one.name);
    });
  });
  return shared;
}

/// Returns the tensors in the model's dtypes.
std::vector<TrainedTensor> entries_in(const ZeroCheckpoint& zero) {
  std::vector<TrainedTensor> entries;
  for (const ZeroTensor& tensor : zero.tensors)
    entries.push_back({tensor.name, tensor.model_dtype.value_or(tensor.dtype), tensor.shape});
  return entries;
}

void note_left_out(const ZeroCheckpoint& zero, Notes& notes) {
  const auto note = [&](const TensorCount& count, const char* what) {
    if (count.tensors == 0) return;
    notes.left_out(fmt::format("{} tensor{} of {} ({}) {} left out", count.tensors, count.tensors == 1 ? "" : "s", what,
                               format_bytes(count.bytes), count.tensors == 1 ? "is" : "are"));
  };
  note(zero.unread_masters, "the optimizer's master weights");
  note(zero.state, "optimizer state");
}

/// Notes which tag folder is read, if a text file selected it among others.
void note_choice(Files& files, const FoundLayout& found, Notes& notes) {
  if (files.is_same(found.path, found.directory)) return;
  for (const char* latest : {kZeroLatestFile, kUniversalLatestFile}) {
    const auto folder = named_folder(files, found.directory, latest);
    if (!folder || !files.is_same(*folder, found.path)) continue;
    notes
        .chosen(fmt::format("{}: using {}, which the file \"{}\" names; choose another with `tag`",
                            found.directory.string(), printable(own_name(files, found.path)), latest))
        .in(found.path);
    return;
  }
}

/// Renames the tensors to the model's names, and removes tensors that are not the model's.
void rename(ZeroCheckpoint& zero, const std::vector<NamedEntry>& named) {
  std::unordered_map<std::string, std::string> new_names;
  for (std::size_t i = 0; i < named.size(); ++i) {
    ZeroTensor& tensor = zero.tensors[i];
    new_names.emplace(tensor.name, named[i].name);
    tensor.entry = std::exchange(tensor.name, named[i].name);
  }
  for (ZeroTensor& tensor : zero.tensors)
    if (!tensor.shared_with.empty()) tensor.shared_with = new_names.at(tensor.shared_with);
  std::erase_if(zero.tensors, [](const ZeroTensor& tensor) { return tensor.name.empty(); });
}

class DeepSpeedLayout final : public Layout {
 public:
  const LayoutTraits& traits() const override { return kDeepspeedTraits; }
  std::vector<const LayoutOption*> options() const override { return {&kWeights}; }

  std::vector<FoundLayout> recognise(Files& files, const fs::path& path) const override {
    if (is_zero_folder(files, path)) return {{this, path, directory_of(files, path)}};
    for (const char* latest : {kZeroLatestFile, kUniversalLatestFile}) {
      const auto folder = named_folder(files, path, latest);
      if (folder && is_zero_folder(files, *folder)) return {{this, *folder, directory_of(files, *folder)}};
      const bool is_zeros = folder && (files.exists(path / kZeroScript) || latest == kUniversalLatestFile ||
                                       folder->filename().string().starts_with(kStepFolder));
      if (is_zeros) return {{this, *folder, path, true}};
    }
    return {};
  }

  std::optional<Error> explain_missing(Files& files, const fs::path& path) const override {
    return explain_zero_file(files, path);
  }
  Checkpoint read(Files& files, const FoundLayout& found, const ReadContext& context) const override;

  bool owns(Files&, const fs::path&, const std::string& name) const override {
    return name == kZeroScript || name == kUniversalLatestFile || zero_file_name(name).has_value();
  }
};

Checkpoint DeepSpeedLayout::read(Files& files, const FoundLayout& found, const ReadContext& context) const {
  if (!files.is_directory(found.path))
    throw Error(ErrorKind::kBadInput,
                fmt::format("names {}, which does not exist", printable(found.path.filename().string())))
        .in(found.directory /
            (files.exists(found.directory / kZeroLatestFile) ? kZeroLatestFile : kUniversalLatestFile))
        .hint("copy that folder here, or choose another with `tag`");
  Checkpoint checkpoint;
  checkpoint.layout = this;
  checkpoint.format = Format::kPytorch;
  checkpoint.path = found.path;
  checkpoint.directory = found.directory;
  find_config(files, checkpoint, context.config);
  const bool master = wants_master_weights(context.options);
  ZeroCheckpoint zero = read_zero_checkpoint(files, found.path, master ? ZeroWeights::kMaster : ZeroWeights::kModel);
  std::vector<TrainedTensor> entries;
  for (const ZeroTensor& tensor : zero.tensors) entries.push_back({tensor.name, tensor.dtype, tensor.shape});
  LanguageModel described;
  const KnownModel known = known_model(files, checkpoint, context, described);
  const StateNames names = trained_names(entries, known, context.use, checkpoint);
  const PackedEntries packed = packed_entries(entries, names, found.path);
  rename(zero, names.entries);
  read_trained_model(files, checkpoint, context, entries_in(zero), packed);
  note_choice(files, found, checkpoint.notes);
  checkpoint.map = map_of(zero, shared_in(zero, checkpoint.model), checkpoint.notes);
  finish_trained_map(files, checkpoint, context, packed);
  note_left_out(zero, checkpoint.notes);
  if (zero.replica_files > 0)
    checkpoint.notes.left_out(fmt::format(
        "{} optimizer file{} of further groups of {} ranks (MiCS) {} left out, and not compared with those "
        "of the first group",
        zero.replica_files, zero.replica_files == 1 ? "" : "s", zero.ranks, zero.replica_files == 1 ? "is" : "are"));
  BesideModel& beside = *checkpoint.beside_model;
  for (const TensorCount& count : {zero.unread_masters, zero.state}) {
    beside.optimizer.tensors += count.tensors;
    beside.optimizer.bytes += count.bytes;
  }
  checkpoint.file_metadata = {{"zero_stage", zero.is_universal ? "universal" : std::to_string(zero.stage)},
                              {"zero_ranks", std::to_string(zero.ranks)}};
  return checkpoint;
}

}  // namespace

const Layout& deepspeed_layout() {
  static const DeepSpeedLayout kLayout;
  return kLayout;
}

}  // namespace reshard
