#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "reshard/formats/common/container.h"
#include "reshard/formats/common/format.h"
#include "reshard/io/files.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/layouts/states/optimizer_summary.h"
#include "reshard/specs/config/model_config.h"
#include "reshard/specs/model/language_model.h"
#include "reshard/specs/parallel/mesh.h"
#include "reshard/specs/parallel/transformation_specs.h"
#include "reshard/specs/peft/adapter.h"

namespace reshard {

/// What a training checkpoint holds beside the model, and what is never read of it.
struct BesideModel {
  TensorCount optimizer;  // states, and master weights that are left out
  /// States among `optimizer` with a known dtype, if no optimizer file is opened; otherwise they are in `summary`.
  std::vector<OptimizerSummary::State> states{};
  std::vector<OptimizerSummary::Group> groups{};  // the optimizer's groups, if they are plain values
  std::optional<double> step{};                   // the largest step count
  TensorCount other;
  std::uint64_t files = 0;  // files of the optimizer and the trainer that are not opened
  std::uint64_t file_bytes = 0;
  /// Summary of the optimizer. Like `groups` and `step`, only with Beside::kLook.
  std::optional<OptimizerSummary> summary{};
  std::string unreadable{};  // why the optimizer's files could not be summarised, as a sentence

  bool empty() const { return optimizer.tensors == 0 && other.tensors == 0 && files == 0; }
};

/// A checkpoint on disk: a file of tensors, or a directory of some layout. PEFT's directory of an adapter is
/// represented by its only weights file.
struct Checkpoint {
  const Layout* layout = nullptr;          // null for a single file
  Format format = Format::kSafetensors;    // format of its first file
  std::filesystem::path path;              // the file, the model's directory, or the shards folder
  std::filesystem::path directory;         // the checkpoint's directory, which may contain config.json
  std::filesystem::path config;            // the config.json that was read; empty if not found
  bool config_given = false;               // `config` comes from ConfigChoice
  std::optional<ModelConfig> config_read;  // set by read_config
  std::string model_type;                  // empty if unknown
  std::optional<Model> model;              // from a known family, or from the plan in config.json
  LanguageModel language_model;            // source of `model`; has no family if none is known
  SourceMap map;
  TrainingStates states;       // only if ReadContext::reads_states
  bool leaves_states = false;  // has states that were not read
  /// The program whose names and row order the tensors keep because the model's own are unknown; empty if the tensors
  /// have the model's.
  std::string names_of;
  Mesh mesh;
  PartitionOptions partition;           // optional choices in how ranks are partitioned
  OptionValues form;                    // layout options that the files were written with, if known
  std::vector<StageMetadata> metadata;  // [pp_rank], read from the ranks; empty if they have none
  std::filesystem::path
      model_elsewhere;  // folder of the model if only its optimizer was given; empty if this folder is unknown
  std::optional<BesideModel> beside_model;                         // of layouts that training programs write
  std::vector<std::pair<std::string, std::string>> file_metadata;  // of a single file
  std::string index_metadata;                                      // as of HfIndex
  std::filesystem::path index_metadata_file;                       // where it stands; empty if it is empty
  std::vector<Adapter> adapters;   // that it consists of; empty for a model, and for a file given by itself
  std::vector<std::string> notes;  // what the user should know, whole sentences

  bool has_ranks() const { return layout != nullptr && layout->traits().has_ranks(); }
  /// Whether its ranks are those of a mesh, which a target may take over.
  bool has_mesh() const { return has_ranks() && !layout->traits().needs_no_mesh(); }
  const TrainingStates* states_or_null() const { return states.empty() ? nullptr : &states; }
  FoundLayout found() const { return {layout, path, directory}; }
};

/// Looks at `path`, reads all headers and metadata and validates them; the logical tensors come in the model's order
/// where the model is known. The model's family is that of the context, else the built-in one of its model_type, else
/// what the plan in config.json says (ConfigPlan).
/// \throws Error kBadInput, kUnsupported or kIo.
Checkpoint read_checkpoint(Files& files, const std::filesystem::path& path, const ReadContext& context);
/// The same for a path that must be a sharded checkpoint, of a model or of adapters, or a single file with a whole model.
Checkpoint read_sharded(Files& files, const std::filesystem::path& path, const ReadContext& context);
/// The same for a path that must be a directory of whole tensors, or of shards that are read as such, or a single file
/// with a whole model.
Checkpoint read_whole(Files& files, const std::filesystem::path& directory, const ReadContext& context);

/// The layout that `path` is in for read_checkpoint, by names alone: those of trainers that read the same files are told
/// apart by what is in them. Null for a file, and where nothing is found.
/// \throws Error kBadInput as find_shards.
const Layout* layout_at(Files& files, const std::filesystem::path& path);

// What layouts read a checkpoint with.

/// Sets the config.json of `checkpoint`, whose directory is known.
/// \throws Error kBadInput if the chosen one is not there.
void find_config(Files& files, Checkpoint& checkpoint, const ConfigChoice& choice);

/// Returns the content of the config.json of `checkpoint`, or of the one in its directory. Reads the file once.
/// \throws Error as read_model_config and read_model_config_file do.
const ModelConfig& read_config(Files& files, Checkpoint& checkpoint);

/// The model of a checkpoint whose config.json says by itself how it is split. What to know of it joins `notes`.
using PlannedModel = std::function<Model(const ModelConfig& config, std::vector<std::string>& notes)>;

/// Reads the model of its config.json, if there is one and its family is known, or `planned` can make it.
/// `names` are those of the weights' tensors; none where the layout has names of its own.
void read_model(Files& files, Checkpoint& checkpoint, const ReadContext& context,
                const std::unordered_set<std::string_view>& names, const PlannedModel& planned);

/// Puts the logical tensors into the model's order, or those of ranks without a model into a natural one.
void order_tensors(Checkpoint& checkpoint);

/// A checkpoint of whole tensors, in these containers.
Checkpoint read_whole_files(Files& files, Checkpoint checkpoint, const std::vector<Container>& containers,
                            const ReadContext& context);

/// What to try where shards are not those of the model of config.json.
inline constexpr const char* kSameFamily = "if the shards were made with `family` or `spec`, give the same here";

/// What to try where there is no model to read shards by.
std::string hint_for_model(const Checkpoint& checkpoint);

}  // namespace reshard
