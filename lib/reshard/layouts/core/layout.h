// layouts/: kinds of checkpoint directories. A Layout recognises a directory, reads it into a SourceMap, or plans a new
// one for a model and a mesh. Each layout has its own source file and an entry in layout_table.cpp.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/note.h"
#include "reshard/formats/common/format.h"
#include "reshard/formats/safetensors/hf_index.h"
#include "reshard/io/files.h"
#include "reshard/layouts/core/attention_report.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/layouts/names/renames.h"
#include "reshard/layouts/rules/layout_option.h"
#include "reshard/layouts/states/training_states.h"
#include "reshard/specs/family/family.h"
#include "reshard/specs/parallel/mesh.h"
#include "reshard/specs/peft/adapter.h"

namespace reshard {

struct Checkpoint;
struct RankFormat;
struct TargetPlan;
class Layout;

/// A set of enumerators. The enumeration has at most 32, numbered from 0.
template <typename Value>
class EnumSet {
 public:
  constexpr EnumSet() = default;
  constexpr EnumSet(std::initializer_list<Value> values) {
    for (const Value value : values) bits_ |= bit(value);
  }

  constexpr bool has(Value value) const { return (bits_ & bit(value)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }

 private:
  static constexpr std::uint32_t bit(Value value) { return std::uint32_t{1} << static_cast<std::uint32_t>(value); }

  std::uint32_t bits_ = 0;
};

/// An axis of the mesh of ranks that a checkpoint is split over.
enum class MeshAxis : std::uint8_t {
  kTensor,
  kPipeline,
  kExpert,
  kData,  // arbitrary parts of FSDP or ZeRO, whose place the files record
};

/// Contents of a checkpoint other than weights.
enum class Contents : std::uint8_t {
  kStates,    // optimizer states, which are tensors
  kGroups,    // the optimizer's parameter groups, with their hyperparameters
  kObjects,   // other training state: schedulers, random number generators
  kAdapters,  // shards of LoRA adapters
};

/// A method of quantisation whose weights a layout stores as they are, whatever the dtype of others.
struct StoredQuantization {
  const char* method;        // as in config.json: "mxfp4"
  const LayoutOption* flag;  // if this is given
};

/// Properties of all checkpoints of a layout.
struct LayoutTraits {
  const char* name;                              // as users write it
  const char* reported_as;                       // in machine-readable reports
  const char* meaning;                           // who writes and reads it, one clause
  const char* folder;                            // folder of its files in the output directory; empty: no folder
  std::span<const Format> formats;               // output formats, default first; empty if the layout is read-only
  EnumSet<MeshAxis> axes{};                      // axes that tensors are split along; empty if tensors are whole
  EnumSet<Contents> reads{}, writes{};           // contents other than weights
  bool whole_folder = false;                     // runs replace the folder as a whole
  bool casts_to_config_dtype = false;            // casts float tensors to the dtype in config.json
  std::span<const StoredQuantization> stores{};  // quantised weights that it can store as they are

  bool has_ranks() const { return !axes.empty(); }
  bool has_stages() const { return axes.has(MeshAxis::kPipeline); }
  bool has_experts() const { return axes.has(MeshAxis::kExpert); }
  /// Whether files record the place of each part, so that reading and writing need no mesh.
  bool needs_no_mesh() const { return axes.has(MeshAxis::kData); }
  bool holds_adapters() const { return reads.has(Contents::kAdapters); }
  bool reads_states() const { return reads.has(Contents::kStates); }
  bool writes_states() const { return writes.has(Contents::kStates); }
  /// Whether the layout writes the optimizer's groups, but no other objects of a training run.
  bool writes_groups_alone() const { return writes.has(Contents::kGroups) && !writes.has(Contents::kObjects); }
  bool is_written() const { return !formats.empty(); }
};

/// A recognised checkpoint directory.
struct FoundLayout {
  const Layout* layout = nullptr;
  std::filesystem::path path;       // directory of the weights: the shards folder, or the model's directory
  std::filesystem::path directory;  // the checkpoint's directory, which contains config.json
  bool is_empty = false;            // the directory has no readable contents; reading it reports this
  const char* lacks = "weights";    // contents that an empty directory lacks, for errors
};

/// A family that the user chose, built-in or from a file (read_family); null if none.
using FamilySpec = std::shared_ptr<const Family>;

enum class ConfigUse {
  kLenient,  // an invalid config.json adds a note
  kStrict,   // an invalid config.json is an error, and so is a sharded checkpoint of another model
  kRenamed,  // like kStrict, but the caller checks for missing tensors, after it has renamed tensors
  kNeeded,   // like kStrict, but also requires a config.json with a known family or a plan
};

/// The config.json that the user chose for a checkpoint.
struct ConfigChoice {
  std::filesystem::path path;  // the file, or the directory that contains it; empty if none
  bool where_missing = false;  // a config.json next to the weights takes precedence
};

/// How much training state to read, if the layout supports it (LayoutTraits::reads).
enum class Beside : std::uint8_t {
  kCount,            // number and size of the tensors only
  kLook,             // the same, and headers of the optimizer's files, for BesideModel
  kRead,             // everything
  kReadGroups,       // everything, with the optimizer's groups as values; each value may require a read
  kReadPlainGroups,  // like kReadGroups, but groups other than plain values stay objects
};

/// How to handle tensors that the model does not have, such as a module's buffers.
enum class ExtraTensors : std::uint8_t {
  kRefuse,
  kKeep,  // replicated on every rank
  kDrop,
};

/// Options for reading a checkpoint.
struct ReadContext {
  ConfigUse use = ConfigUse::kLenient;
  FamilySpec family;     // overrides the built-in family of the model_type; null if not given
  OptionValues options;  // describe how the source was created (LayoutOption::of_source)
  ConfigChoice config;
  Beside beside = Beside::kCount;
  ExtraTensors extra = ExtraTensors::kRefuse;
  /// Applied while reading if it reveals the model (reveals_model), before names are compared with the model's.
  /// Checkpoint::old_names then lists the renamed tensors; otherwise the caller renames them.
  Rename rename{};

  bool reads_states() const { return beside >= Beside::kRead; }
};

/// The requested form of a target.
struct TargetRequest {
  const Layout* layout = nullptr;
  std::optional<Format> format;     // default: the layout's first
  std::optional<std::uint32_t> tp;  // default: the source's ranks
  std::optional<std::uint32_t> pp;  // default: the source's, or the number that the cuts imply
  std::uint32_t vpp = 1;
  std::optional<std::uint32_t> ep;         // default: the source's
  std::vector<std::string> pipeline_cuts;  // empty: layers are distributed evenly
  std::filesystem::path compiled;          // directory of the compiled model that loads the files; may be empty
  OptionValues options;                    // options of `layout`
  /// How to fuse the lora_A of fused linears when an adapter is sharded for a model; the default is the mean.
  std::optional<LoraFuse> lora_fuse{};
  /// Role of the model among those in the same files (Layout::joined_roles); may be empty.
  std::string role{};
};

/// Input for planning a target.
struct TargetContext {
  const Model* model = nullptr;  // borrowed; never null for a layout of ranks
  std::span<const LogicalTensor> logical;
  IndexMetadata index_metadata{};            // of the source
  const TrainingStates* states = nullptr;    // borrowed; null if the source has none or the layout does not write them
  std::optional<std::uint32_t> source_dp{};  // number of data-parallel ranks that share the source's states
  /// How the source's ranks are partitioned; the defaults if it has whole tensors. Training layouts keep this unless
  /// their trainers cannot load it or an option overrides it.
  PartitionOptions source_partition{};
  /// Metadata of the source's file that contains each of `logical`, likewise numbered; empty if no file has any.
  std::span<const std::shared_ptr<const FileMetadata>> metadata{};
  std::string weights_stem{};           // Checkpoint::weights_stem
  std::span<const Adapter> adapters{};  // adapters whose tensors are `logical`; `model` is then their base model
};

/// A checkpoint to be written.
struct TargetPlan {
  TargetMap map;
  std::vector<TextFile> text_files;
  Format format = Format::kSafetensors;  // format of all files
  Mesh mesh;
  std::optional<PipelinePartition> partition;
  std::vector<std::string> cut_names;  // "model.layers.3"
  std::optional<AttentionReport> attention;
  bool is_partial = false;  // plans only some of the ranks; other runs write the rest to the same directory
  bool has_first_rank = true;
  std::vector<std::string> without_place;  // tensors of the model that checkpoints of this layout do not have
  OptionValues form;                       // values of the layout's options
  std::set<std::string> idle;              // options, or words of a list, with which the files would be the same
  Notes notes;
  std::string loaded_by;  // which programs load the files, a note after the others; may be empty
  std::vector<std::filesystem::path> whole_folders;  // folders replaced as a whole, in addition to the traits' folder
  std::vector<LogicalTensor> derived;                // tensors that the source does not have, with their recipes
  std::string role{};                                // TargetRequest::role
  std::vector<TargetPlan> joined{};                  // of further models in the files; `map` contains their maps
};

/// A compiled model, which loads weights in one form only.
struct CompiledModel {
  std::filesystem::path file;  // describes the model
  std::optional<std::uint32_t> tp;
  OptionValues options;        // of the layout
  std::optional<DType> dtype;  // of floating tensors
  std::string unwritten;  // what the model loads and the layout does not write, as "setting: weights"; may be empty
  std::string role{};     // for a model that another one loads: Layout::joined_roles
  FamilySpec family{};    // of its weights, if it is not that of the model_type in config.json
  std::vector<CompiledModel> joined{};  // further models that it loads
};

/// A kind of checkpoint directory.
class Layout {
 public:
  virtual ~Layout() = default;
  virtual const LayoutTraits& traits() const = 0;
  virtual std::vector<const LayoutOption*> options() const { return {}; }

  /// Returns the checkpoints of this layout that `path` may refer to, by names alone: `path` itself, or directories in
  /// it.
  virtual std::vector<FoundLayout> recognise(Files& files, const std::filesystem::path& path) const = 0;
  /// Returns why `path` is not a checkpoint of this layout, if its name or entries show that it is part of a checkpoint
  /// or lacks a part; std::nullopt for any other path.
  virtual std::optional<Error> explain_missing(Files& /*files*/, const std::filesystem::path& /*path*/) const {
    return std::nullopt;
  }
  /// Reads all headers and metadata and validates them.
  /// \throws Error kBadInput, kUnsupported or kIo.
  virtual Checkpoint read(Files& files, const FoundLayout& found, const ReadContext& context) const = 0;
  /// Plans a checkpoint for a request that validate_request (layout_table.h) accepts: never of a layout that is only read.
  /// \throws Error kUsage, with alternatives, if the model cannot be sharded as requested.
  virtual TargetPlan plan(const TargetRequest& request, const TargetContext& context) const;

  /// Returns the roles of further models whose tensors the files may contain, such as "draft", and for each the role
  /// that the model itself then has.
  virtual std::map<std::string, std::string> joined_roles() const { return {}; }
  /// Returns the compiled model in `directory`; std::nullopt if none loads this layout.
  /// \throws Error kBadInput, kUnsupported.
  virtual std::optional<CompiledModel> compiled_model(Files& /*files*/,
                                                      const std::filesystem::path& /*directory*/) const {
    return std::nullopt;
  }
  /// Validates that other files in the output directory do not conflict with `plan`.
  /// \throws Error kBadInput.
  virtual void validate_beside(Files& files, const TargetPlan& plan,
                               const std::filesystem::path& output_directory) const;
  /// Validates that the compiled model in `directory`, if there is one, loads `model` as `plan` stores it.
  /// \throws Error kBadInput.
  virtual void validate_compiled(Files& /*files*/, const TargetPlan& /*plan*/, const Model& /*model*/,
                                 const std::filesystem::path& /*directory*/) const {}
  /// Returns the default output directory for consolidating `found`; std::nullopt if OUT_DIR is required.
  virtual std::optional<std::filesystem::path> default_output(Files& files, const FoundLayout& found) const;

  /// Returns how rank files are named, stored and interpreted; nullptr if the layout does not use RankFormat.
  virtual const RankFormat* ranks() const { return nullptr; }
  /// Whether an entry of a checkpoint's directory belongs to this layout, and not to the model.
  virtual bool owns(Files& /*files*/, const std::filesystem::path& /*directory*/, const std::string& /*name*/) const {
    return false;
  }
  /// Whether a folder with entries of these names is a checkpoint by itself.
  virtual bool is_checkpoint(const std::set<std::string>& /*files*/, const std::set<std::string>& /*folders*/) const {
    return false;
  }
};

/// Returns all layouts, in order of preference for directories that match several. Defined where all rooms are known, in
/// layout_table.cpp.
std::span<const Layout* const> layouts();

/// Returns the names of the layouts for which `wanted` is true, separated by commas.
template <typename Wanted>
std::string layout_names(Wanted&& wanted) {
  std::string names;
  for (const Layout* layout : layouts())
    if (wanted(*layout)) names += (names.empty() ? "" : ", ") + std::string(layout->traits().name);
  return names;
}

/// Validates that `plan` replaces every file in `directory` for which `is_ours` is true.
/// \param what  Description of these files for the error, in plural.
/// \throws Error kBadInput.
void validate_no_leftovers(Files& files, const TargetPlan& plan, const std::filesystem::path& directory,
                           const std::function<bool(const std::string& name)>& is_ours, const std::string& what);

/// \throws Error kUnsupported if the layout does not write all weights that the model loads.
void validate_written(const CompiledModel& compiled);

/// Returns the requested format, or the layout's default.
Format format_of(const TargetRequest& request);
/// LayoutOption::why_idle for options that pad.
std::string why_padding_idle(const TargetPlan& plan, const Model& model);
/// Returns one note per option of the request that has a non-default value but no effect on `plan`.
Notes idle_option_notes(const TargetRequest& request, const Model& model, const TargetPlan& plan);

}  // namespace reshard
