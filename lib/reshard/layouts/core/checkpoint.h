#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/note.h"
#include "reshard/formats/common/container.h"
#include "reshard/formats/common/container_keys.h"
#include "reshard/formats/common/format.h"
#include "reshard/io/files.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/layouts/states/optimizer_summary.h"
#include "reshard/specs/config/config_change.h"
#include "reshard/specs/config/model_config.h"
#include "reshard/specs/model/language_model.h"
#include "reshard/specs/parallel/mesh.h"
#include "reshard/specs/parallel/transformation_specs.h"
#include "reshard/specs/peft/adapter.h"

namespace reshard {

/// Contents of a training checkpoint other than the model, including files that are never read.
struct BesideModel {
  TensorCount optimizer;  // states, and master weights that are left out
  /// States among `optimizer` with a known dtype, if no optimizer file is opened; otherwise they are in `summary`.
  std::vector<OptimizerSummary::State> states{};
  std::vector<OptimizerSummary::Group> groups{};  // the optimizer's groups, if they are plain values
  std::optional<double> step{};                   // the largest step count
  TensorCount other;
  std::uint64_t objects = 0;  // entries that are not tensors
  std::uint64_t object_bytes = 0;
  std::uint64_t files = 0;       // files of the optimizer and the trainer that are not opened
  std::uint64_t file_bytes = 0;  // 0 if unknown
  /// Summary of the optimizer. Like `groups` and `step`, only with Beside::kLook.
  std::optional<OptimizerSummary> summary{};
  std::string unreadable{};  // why the optimizer's files could not be summarised, as a sentence

  bool has_optimizer() const { return optimizer.tensors > 0 || files > 0; }
  bool empty() const { return !has_optimizer() && other.tensors == 0 && objects == 0; }
  std::uint64_t bytes() const { return optimizer.bytes + other.bytes + object_bytes + file_bytes; }
};

/// The config.json of a checkpoint.
struct CheckpointConfig {
  std::filesystem::path path;          // empty if it was not found
  bool is_given = false;               // `path` comes from ConfigChoice
  std::optional<ModelConfig> content;  // set by read_config
  std::vector<ConfigChange> changes;   // that the tensors show; whether embeddings are tied is not among them
};

/// Tensors of adapters and further models that the map of a checkpoint lacks.
struct UnreadTensors {
  /// Reads the tensors as each file contains them. Null if the layout explains all tensors, or if the options choose a
  /// model.
  std::function<SourceMap()> read;
  Notes notes;  // those of Checkpoint::notes on such tensors
};

/// A checkpoint on disk: a file of tensors, or a directory of some layout. PEFT's directory of an adapter is
/// represented by its only weights file.
struct Checkpoint {
  const Layout* layout = nullptr;        // null for a single file
  Format format = Format::kSafetensors;  // format of its first file
  std::filesystem::path path;            // the file, the model's directory, or the shards folder
  std::filesystem::path directory;       // the checkpoint's directory, which may contain config.json
  CheckpointConfig config;
  std::string model_type;        // empty if unknown
  std::optional<Model> model;    // from a known family, or from the plan in config.json
  LanguageModel language_model;  // source of `model`; has no family if none is known
  SourceMap map;
  TrainingStates states;       // only if ReadContext::reads_states
  bool leaves_states = false;  // has an optimizer that was not read; `beside_model` then counts it
  /// The program whose names and row order the tensors keep because the model's own are unknown; empty if the tensors
  /// have the model's.
  std::string names_of;
  OldNames old_names;  // of tensors that ReadContext::rename renamed; empty if it was not applied
  Mesh mesh;
  PartitionOptions partition;           // optional choices in how ranks are partitioned
  OptionValues form;                    // layout options that the files were written with, if known
  std::vector<StageMetadata> metadata;  // [pp_rank], read from the ranks; empty if they have none
  std::filesystem::path
      model_elsewhere;  // folder of the model if only its optimizer was given; empty if this folder is unknown
  std::optional<BesideModel> beside_model;                         // set by layouts that training programs write
  std::vector<std::pair<std::string, std::string>> file_metadata;  // metadata of a single file
  /// Name of the weights file without its ending if its program looks for that name, as Diffusers does; else empty.
  std::string weights_stem{};
  IndexMetadata index_metadata;
  std::vector<Adapter> adapters;  // adapters that it consists of; empty for a model or a single file
  Notes notes;
  /// Why the partition of its ranks is unknown. Only with ConfigUse::kLenient: `map` then has the tensors of each rank as
  /// they are stored, which suffices to show them.
  std::optional<Error> unexplained;
  UnreadTensors unread;

  bool has_ranks() const { return layout != nullptr && layout->traits().has_ranks(); }
  /// Whether its ranks form a mesh, which a target may adopt.
  bool has_mesh() const { return has_ranks() && !layout->traits().needs_no_mesh(); }
  /// Whether it has an optimizer, read or not.
  bool has_optimizer() const {
    return leaves_states || !states.empty() || (beside_model && beside_model->has_optimizer());
  }
  /// Whether it has an optimizer, or anything else that a run needs to continue.
  bool has_training_state() const { return has_optimizer() || (beside_model && !beside_model->empty()); }
  const TrainingStates* states_or_null() const { return states.empty() ? nullptr : &states; }
  FoundLayout found() const { return {layout, path, directory}; }
};

// Functions with which layouts read a checkpoint.

/// Sets the config.json of `checkpoint`, whose directory is known.
/// \throws Error kBadInput if the chosen file does not exist.
void find_config(Files& files, Checkpoint& checkpoint, const ConfigChoice& choice);

/// Returns the content of the config.json of `checkpoint`, or of the one in its directory. Reads the file once.
/// \throws Error as read_model_config and read_model_config_file do.
const ModelConfig& read_config(Files& files, Checkpoint& checkpoint);

/// Changes the content that read_config has read, which must have been called, and the config.json that targets write.
void change_config(Checkpoint& checkpoint, ConfigChange change);

/// Creates the model of a checkpoint whose config.json itself declares the partition. Adds to `notes`.
using PlannedModel = std::function<Model(const ModelConfig& config, Notes& notes)>;

/// Reads the model from config.json, if its family is known or it has a plan for `planned`; without config.json, from
/// the family of `context`. `names` are those of the weights' tensors; empty if the layout uses other names.
void read_model(Files& files, Checkpoint& checkpoint, const ReadContext& context,
                const std::unordered_set<std::string_view>& names, const PlannedModel& planned);

/// Sorts the logical tensors in the model's order; sorts tensors of ranks without a model in natural order.
void order_tensors(Checkpoint& checkpoint);

/// Recognises the quantisation of whole tensors whose config.json declares none, before the model is read. Programs that
/// quantise without writing a config.json may also leave out the base model's prefix, which their tensors get here.
void recognise_quantization(Files& files, Checkpoint& checkpoint, std::vector<Container>& containers,
                            const ReadContext& context);

/// \throws Error kBadInput if the metadata of a file with whole tensors shows that it has one rank's part of each, unless
///         `use` is kLenient.
void validate_no_part(const std::filesystem::path& path, const FileMetadata& metadata, ConfigUse use);

/// Reads a checkpoint of whole tensors from `containers`.
Checkpoint read_whole_files(Files& files, Checkpoint checkpoint, const std::vector<Container>& containers,
                            const ReadContext& context);

/// Hint if shards do not match the model in config.json.
inline constexpr const char* kSameFamily = "if the shards were made with `family` or `spec`, give the same here";

/// Returns the hint if shards need a model to be read, but have none.
std::string hint_for_model(const Checkpoint& checkpoint);

}  // namespace reshard
