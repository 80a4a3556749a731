// What torch.distributed.checkpoint saves: `.metadata`, which says which chunks every tensor has, and files of items.
// FSDP, accelerate, torchtitan and others write it, with the model's state dict under a prefix of their own.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <unordered_set>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/formats/dcp_item.h"
#include "reshard/formats/dcp_metadata.h"
#include "reshard/layouts/checkpoint.h"
#include "reshard/layouts/chunked_map.h"
#include "reshard/layouts/layout.h"
#include "reshard/layouts/misfits.h"
#include "reshard/layouts/planned_model.h"
#include "reshard/layouts/rank_folder.h"
#include "reshard/layouts/state_names.h"
#include "reshard/layouts/whole_map.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr LayoutTraits kDcpTraits{.name = "dcp",
                                  .reported_as = "dcp",
                                  .meaning = "torch.distributed.checkpoint: FSDP, accelerate, torchtitan",
                                  .folder = "",
                                  .formats = {},
                                  .has_ranks = true,
                                  .reads_as_whole = true};

constexpr std::string_view kItemsEnding = ".distcp";
/// Where programs put the model's configuration beside a checkpoint.
constexpr const char* kConfigFolder = "huggingface";
/// What accelerate calls folders of models, and others those of optimizers.
constexpr std::string_view kModelFolder = "pytorch_model_fsdp_";
constexpr std::string_view kOptimizerFolders[] = {"optimizer", "optim"};

/// A save writes `.metadata` last. A copy, which may write it first, writes the next file soon after it; between two
/// saves into one directory lies the training in between.
constexpr std::int64_t kLongestCopyNs = std::int64_t{300} * 1'000'000'000;

bool holds_metadata(Files& files, const fs::path& directory) {
  return files.is_file(directory / kDcpMetadataFile);
}

/// The directory of config.json: that of the checkpoint or the one above, or a folder for it in one of them.
fs::path config_directory_of(Files& files, const fs::path& folder) {
  const fs::path above = directory_above(files, folder);
  for (const fs::path& directory : {folder, folder / kConfigFolder, above, above / kConfigFolder})
    if (files.exists(directory / kConfigFile)) return directory;
  return folder;
}

/// The family of config.json, if there is one: what is wrong with it read_model says.
std::shared_ptr<const Family> family_of(Files& files, const Checkpoint& checkpoint, const ReadContext& context) {
  if (checkpoint.config.empty()) return context.family;
  try {
    return find_language_model(read_model_config_file(files, checkpoint.config), context.family).family;
  } catch (const Error&) {
    return nullptr;
  }
}

/// The tensors of the model, and what else there is.
struct Selection {
  std::vector<const DcpTensor*> tensors;
  std::vector<std::string> names;  // in the model
  std::vector<std::string> notes;
};

std::string count_text(std::size_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

Selection select(const DcpMetadata& metadata, const Family* family, const fs::path& path) {
  std::vector<std::string> entries;
  entries.reserve(metadata.tensors.size());
  for (const DcpTensor& tensor : metadata.tensors) entries.push_back(tensor.name);
  Selection selection;
  try {
    StateNames found = find_state_names(entries, family);
    if (const std::string note = state_names_note(found); !note.empty()) selection.notes.push_back(note);
    selection.names = std::move(found.names);
  } catch (Error& error) {
    throw error.in(path);
  }
  std::vector<std::string> others;
  std::size_t states = 0;
  std::uint64_t state_bytes = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const DcpTensor& tensor = metadata.tensors[i];
    if (!selection.names[i].empty()) {
      selection.tensors.push_back(&tensor);
    } else if (is_optimizer_state(tensor.name)) {
      ++states;
      if (tensor.dtype) state_bytes += num_bytes(*tensor.dtype, tensor.shape).value_or(0);
    } else {
      others.push_back(tensor.name);
    }
  }
  std::erase(selection.names, std::string());
  if (states > 0)
    selection.notes.push_back(fmt::format("{} of the optimizer's state ({}) {} left out", count_text(states, "tensor"),
                                          format_bytes(state_bytes), states == 1 ? "is" : "are"));
  if (!others.empty())
    selection.notes.push_back(fmt::format("{} beside the model {} left out: {}", count_text(others.size(), "tensor"),
                                          others.size() == 1 ? "is" : "are", list_names(others)));
  if (!metadata.bytes.empty())
    selection.notes.push_back(
        metadata.bytes.size() == 1
            ? fmt::format("{}, which is no tensor, is left out", printable(metadata.bytes.front().name))
            : fmt::format("{} entries that are no tensors are left out, as {}", metadata.bytes.size(),
                          printable(metadata.bytes.front().name)));
  return selection;
}

/// Finds the chunks in the files, each of which is opened once.
class ChunkFinder {
 public:
  ChunkFinder(Files& files, const fs::path& directory, const DcpMetadata& metadata)
      : files_(files), directory_(directory), metadata_(metadata) {}

  std::vector<ChunkedTensor> find(const Selection& selection) {
    std::vector<ChunkedTensor> tensors(selection.tensors.size());
    std::vector<Wanted> wanted;
    for (std::uint32_t t = 0; t < tensors.size(); ++t) {
      const DcpTensor& tensor = *selection.tensors[t];
      if (!tensor.dtype)
        throw Error(ErrorKind::kUnsupported,
                    "is of dtype " + printable(tensor.torch_dtype) + ", which safetensors does not have")
            .in(directory_ / kDcpMetadataFile)
            .tensor(tensor.name);
      tensors[t] = {tensor.name, selection.names[t], *tensor.dtype, tensor.shape, {}};
      tensors[t].chunks.resize(tensor.chunks.size());
      for (std::uint32_t c = 0; c < tensor.chunks.size(); ++c) {
        tensors[t].chunks[c].box = tensor.chunks[c].box;
        wanted.push_back({t, c});
      }
    }
    validate_chunks(tensors, directory_ / kDcpMetadataFile);
    const auto place_of = [&](const Wanted& one) -> const DcpPlace& {
      return selection.tensors[one.tensor]->chunks[one.chunk].place;
    };
    std::sort(wanted.begin(), wanted.end(), [&](const Wanted& a, const Wanted& b) {
      const DcpPlace &x = place_of(a), &y = place_of(b);
      return std::tie(x.file, x.offset_bytes) < std::tie(y.file, y.offset_bytes);
    });
    std::unique_ptr<DcpFile> file;
    std::uint32_t open = 0;  // the number of `file` in the metadata
    for (const Wanted& one : wanted) {
      const DcpPlace& place = place_of(one);
      if (!file || open != place.file) {
        file = std::make_unique<DcpFile>(files_, directory_ / metadata_.files[place.file]);
        open = place.file;
        opened_.push_back({file->path(), file->size_bytes()});
        opened_.back().stamp = file->stamp();
      }
      const DcpTensor& tensor = *selection.tensors[one.tensor];
      TensorEntry entry = file->find(tensor, tensor.chunks[one.chunk]);
      ChunkedTensor::Chunk& chunk = tensors[one.tensor].chunks[one.chunk];
      chunk.file = static_cast<std::uint32_t>(opened_.size() - 1);
      chunk.offset_bytes = entry.offset_bytes;
      chunk.strides = std::move(entry.strides);
    }
    validate_times();
    return tensors;
  }

  std::vector<TensorFile> take_files() && { return std::move(opened_); }

 private:
  struct Wanted {
    std::uint32_t tensor;
    std::uint32_t chunk;
  };

  /// torch writes into files that are there already, and `.metadata` last: what is newer is of a save that did not
  /// finish, and torch itself would read a mixture of two steps.
  void validate_times() const {
    const auto saved = files_.modified_ns(directory_ / kDcpMetadataFile);
    const TensorFile* next = nullptr;  // the first that was written after it
    std::int64_t next_ns = 0;
    for (const TensorFile& file : opened_) {
      const auto written = files_.modified_ns(file.path);
      if (!saved || !written || *written <= *saved || (next != nullptr && *written >= next_ns)) continue;
      next = &file;
      next_ns = *written;
    }
    if (next == nullptr || next_ns - *saved <= kLongestCopyNs) return;
    throw Error(ErrorKind::kBadInput,
                fmt::format("was written {} minutes after .metadata, which a save writes last: a later save into this "
                            "directory did not finish, and its files may be of two steps",
                            (next_ns - *saved) / (std::int64_t{60} * 1'000'000'000)))
        .in(next->path)
        .hint("take another checkpoint; if it is a copy that was made without the times of its files, `touch " +
              (directory_ / kDcpMetadataFile).string() + "` says so");
  }

  Files& files_;
  const fs::path& directory_;
  const DcpMetadata& metadata_;
  std::vector<TensorFile> opened_;
};

/// The tensors as one container, for a model that a plan in config.json describes.
Container container_of(const std::vector<ChunkedTensor>& tensors) {
  Container container;
  for (const ChunkedTensor& tensor : tensors) container.tensors.push_back({tensor.name, tensor.dtype, tensor.shape});
  return container;
}

class DcpLayout final : public Layout {
 public:
  const LayoutTraits& traits() const override { return kDcpTraits; }

  std::vector<FoundLayout> recognise(Files& files, const fs::path& path) const override {
    if (holds_metadata(files, path)) return {{this, path, config_directory_of(files, path)}};
    std::vector<FoundLayout> found;
    try {
      for (const DirectoryEntry& entry : files.list(path)) {
        if (entry.kind != FileKind::kDirectory || is_optimizer_folder(entry.name)) continue;
        const fs::path folder = path / entry.name;
        if (holds_metadata(files, folder)) found.push_back({this, folder, config_directory_of(files, folder)});
      }
    } catch (const Error& error) {
      if (error.code() != std::errc::permission_denied) throw;
    }
    // Several are steps of one run, or several models that were trained together.
    if (found.size() > 1)
      std::erase_if(found,
                    [](const FoundLayout& one) { return !one.path.filename().string().starts_with(kModelFolder); });
    return found;
  }

  Checkpoint read(Files& files, const FoundLayout& found, const ReadContext& context) const override {
    Checkpoint checkpoint;
    checkpoint.layout = this;
    checkpoint.format = Format::kPytorch;
    checkpoint.path = found.path;
    checkpoint.directory = found.directory;
    find_config(files, checkpoint, context.config);
    const fs::path metadata_path = found.path / kDcpMetadataFile;
    const DcpMetadata metadata = read_dcp_metadata(*files.open(metadata_path), metadata_path);
    const auto family = family_of(files, checkpoint, context);
    Selection selection = select(metadata, family.get(), metadata_path);
    checkpoint.notes = std::move(selection.notes);
    ChunkFinder finder(files, found.path, metadata);
    std::vector<ChunkedTensor> tensors = finder.find(selection);
    std::unordered_set<std::string_view> names(selection.names.begin(), selection.names.end());
    read_model(files, checkpoint, context, names, [&](const ModelConfig& config, std::vector<std::string>& notes) {
      return planned_model(config, {container_of(tensors)}, notes);
    });
    const auto& model = checkpoint.model;
    checkpoint.map = chunked_map(std::move(finder).take_files(), std::move(tensors),
                                 model ? tied_parameters(model) : std::vector<TiedParameter>{}, metadata_path);
    if (model && context.use != ConfigUse::kLenient) validate_against_model(checkpoint.map, *model, found.path);
    order_tensors(checkpoint);
    return checkpoint;
  }

  TargetPlan plan(const TargetRequest& request, const TargetContext&) const override {
    validate_request(request);  // which is refused: the layout is only read
    return {};
  }

  bool owns(Files&, const fs::path&, const std::string& name) const override { return name.ends_with(kItemsEnding); }
  bool is_checkpoint(const std::set<std::string>& files, const std::set<std::string>&) const override {
    return files.count(kDcpMetadataFile) > 0;
  }

 private:
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
