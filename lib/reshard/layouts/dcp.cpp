// What torch.distributed.checkpoint saves: `.metadata`, which says which chunks every tensor has, and files of items;
// or, by its HuggingFaceStorageWriter, a safetensors file per rank. FSDP, accelerate, torchtitan and others write it,
// with the model's state dict under a prefix of their own.
#include <algorithm>
#include <memory>
#include <unordered_set>

#include "reshard/base/error.h"
#include "reshard/formats/dcp_metadata.h"
#include "reshard/formats/dcp_shards.h"
#include "reshard/layouts/checkpoint.h"
#include "reshard/layouts/chunked_map.h"
#include "reshard/layouts/dcp_source.h"
#include "reshard/layouts/layout.h"
#include "reshard/layouts/misfits.h"
#include "reshard/layouts/planned_model.h"
#include "reshard/layouts/trained_model.h"
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
/// What accelerate calls folders of models, and others those of optimizers.
constexpr std::string_view kModelFolder = "pytorch_model_fsdp_";
constexpr std::string_view kOptimizerFolders[] = {"optimizer", "optim"};

/// Where HuggingFaceStorageWriter puts the files of ranks beside consolidated ones.
constexpr const char* kShardsFolder = "sharded";

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
    const auto found_in = [&](const fs::path& folder) {
      return FoundLayout{this, folder, trained_directory(files, folder)};
    };
    std::vector<FoundLayout> found;
    try {
      if (holds_dcp_metadata(files, path) || holds_dcp_shards(files, path)) return {found_in(path)};
      const fs::path shards = path / kShardsFolder;
      if (files.is_directory(shards) && holds_dcp_shards(files, shards)) return {found_in(shards)};
      for (const DirectoryEntry& entry : files.list(path)) {
        if (entry.kind != FileKind::kDirectory || is_optimizer_folder(entry.name)) continue;
        if (holds_dcp_metadata(files, path / entry.name)) found.push_back(found_in(path / entry.name));
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
    checkpoint.path = found.path;
    checkpoint.directory = found.directory;
    find_config(files, checkpoint, context.config);
    const auto family = trained_family(files, checkpoint, context);
    DcpSource source = holds_dcp_metadata(files, found.path) ? read_dcp_source(files, found.path, family.get())
                                                             : read_dcp_shards(files, found.path, family.get());
    checkpoint.format = source.format;
    checkpoint.notes = std::move(source.notes);
    source.tensors = unstacked(std::move(source.tensors), source.where);
    std::unordered_set<std::string_view> names;
    for (const ChunkedTensor& tensor : source.tensors) names.insert(tensor.name);
    read_model(files, checkpoint, context, names, [&](const ModelConfig& config, std::vector<std::string>& notes) {
      return planned_model(config, {container_of(source.tensors)}, notes);
    });
    const auto& model = checkpoint.model;
    if (model || context.use != ConfigUse::kLenient)
      deinterleave(source.tensors, model ? model->head_dim : 0, source.where);
    if (!model && source.format == Format::kSafetensors)
      checkpoint.notes.push_back(
          "nothing says how large whole tensors are: without a config.json, missing files of the last ranks are not "
          "noticed");
    checkpoint.map = chunked_map(std::move(source.files), std::move(source.tensors),
                                 model ? tied_parameters(model) : std::vector<TiedParameter>{}, source.where);
    if (model && context.use != ConfigUse::kLenient) validate_against_model(checkpoint.map, *model, found.path);
    order_tensors(checkpoint);
    return checkpoint;
  }

  TargetPlan plan(const TargetRequest& request, const TargetContext&) const override {
    validate_request(request);  // which is refused: the layout is only read
    return {};
  }

  bool owns(Files&, const fs::path&, const std::string& name) const override {
    return name.ends_with(kItemsEnding) || is_dcp_shard_name(name);
  }
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
