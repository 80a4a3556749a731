// layouts/: kinds of checkpoint directories. A Layout says how to recognise one, reads it into a SourceMap, and plans
// one for a model and a mesh. Each lives in its own source file; layout_table.cpp has a line for each.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/enum_set.h"
#include "reshard/base/error.h"
#include "reshard/formats/common/format.h"
#include "reshard/io/files.h"
#include "reshard/layouts/core/attention_report.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/layouts/states/training_states.h"
#include "reshard/specs/family/family.h"
#include "reshard/specs/parallel/mesh.h"
#include "reshard/specs/peft/adapter.h"

namespace reshard {

struct Checkpoint;
struct RankFormat;
struct TargetPlan;
class Layout;

/// An option of one or several layouts, declared once: parsing, validation, help and lists in errors come from here.
struct LayoutOption {
  enum class Type : std::uint8_t {
    kFlag,    // no value
    kCount,   // a whole number from 1
    kRank,    // a whole number from 0
    kSize,    // bytes, such as 5GB
    kChoice,  // one of `choices`
    kText,    // anything
  };

  const char* name;  // "kv-size-multiplier"
  Type type;
  const char* help;                           // one sentence, without a full stop
  std::span<const char* const> choices = {};  // of kChoice; the first is the default
  const char* default_value = "";             // as text; empty: none, or what the layout works out
  bool of_source = false;                     // says, too, how a checkpoint that is read was made
  const char* source_help = "";               // one sentence for that
  bool only_of_source = false;                // says nothing of a checkpoint that is written
  bool of_states = false;                     // is about the optimizer's states, which go along where it is given
  /// Why a plan that was made with the option would be the same without it, as a clause; empty if it would not. Null if
  /// the option always counts.
  std::string (*why_idle)(const TargetPlan& plan, const Model& model) = nullptr;
  /// The same of a checkpoint that was read with it.
  std::string (*why_source_idle)(const Checkpoint& checkpoint) = nullptr;
};

/// Values of layouts' options by name, as text: "true" for a flag. What is not there was not given.
class OptionValues {
 public:
  void set(const std::string& name, std::string value = "true") { values_[name] = std::move(value); }
  void set_number(const std::string& name, std::uint64_t value) { set(name, std::to_string(value)); }
  void set_flag(const std::string& name, bool on) {
    if (on)
      set(name);
    else
      values_.erase(name);
  }
  void erase(const std::string& name) { values_.erase(name); }
  bool has(const std::string& name) const { return values_.count(name) > 0; }
  bool empty() const { return values_.empty(); }
  std::vector<std::string> names() const;
  /// All that was given, by name, as it was given.
  const std::map<std::string, std::string>& all() const { return values_; }

  bool flag(const std::string& name) const { return has(name); }
  /// The number of kCount, kRank or kSize; nothing if it was not given. `prefix` is what stands before its name in an
  /// error.
  /// \throws Error kUsage if it is none.
  std::optional<std::uint64_t> number(const LayoutOption& option, const std::string& prefix = "") const;
  /// What was given for kText, else its default.
  std::string text(const LayoutOption& option) const;
  /// The chosen one of `choices`.
  /// \throws Error kUsage if it is none of them.
  std::string choice(const LayoutOption& option, const std::string& prefix = "") const;

 private:
  std::map<std::string, std::string> values_;
};

/// An axis of the mesh of ranks that a checkpoint is split over.
enum class MeshAxis : std::uint8_t {
  kTensor,
  kPipeline,
  kExpert,
  kData,  // any parts, which FSDP or ZeRO has made: files say what each is
};

/// What a checkpoint may contain besides weights.
enum class Contents : std::uint8_t {
  kStates,    // of the optimizer, which are tensors
  kGroups,    // of the optimizer's parameters, with their hyperparameters
  kObjects,   // the rest of a training run: schedulers, random numbers
  kAdapters,  // shards of LoRA adapters
};

/// What is the same for all checkpoints of a layout.
struct LayoutTraits {
  const char* name;                     // as users write it
  const char* reported_as;              // in machine-readable reports
  const char* meaning;                  // who writes and reads it, one clause
  const char* folder;                   // that its files go into, in the output directory; empty: that itself
  std::span<const Format> formats;      // that it can be written in; the first is the default; none: it is only read
  EnumSet<MeshAxis> axes{};             // along which its files have parts of tensors; none: tensors are whole
  EnumSet<Contents> reads{}, writes{};  // besides weights
  bool whole_folder = false;            // the folder is replaced as a whole
  bool casts_to_config_dtype = false;   // floating tensors get the dtype that config.json says

  bool has_ranks() const { return !axes.empty(); }
  bool has_stages() const { return axes.has(MeshAxis::kPipeline); }
  bool has_experts() const { return axes.has(MeshAxis::kExpert); }
  /// Whether files say what each part is, so that no mesh is needed to read or to write them.
  bool needs_no_mesh() const { return axes.has(MeshAxis::kData); }
  bool holds_adapters() const { return reads.has(Contents::kAdapters); }
  bool reads_states() const { return reads.has(Contents::kStates); }
  bool writes_states() const { return writes.has(Contents::kStates); }
  /// Whether of the objects of a training run only the optimizer's groups are written.
  bool writes_groups_alone() const { return writes.has(Contents::kGroups) && !writes.has(Contents::kObjects); }
  bool is_written() const { return !formats.empty(); }
};

/// A checkpoint's directory that was found.
struct FoundLayout {
  const Layout* layout = nullptr;
  std::filesystem::path path;       // of the weights: the shards folder, or the model's directory
  std::filesystem::path directory;  // the checkpoint's own, where config.json is
  bool is_empty = false;            // there is such a folder, but it lacks what can be read: reading it says so
  const char* lacks = "weights";    // of one that is empty: what it holds none of
};

/// A family from a file (read_family), or none.
using FamilySpec = std::shared_ptr<const Family>;

enum class ConfigUse {
  kLenient,  // a config.json that makes no sense is a note
  kStrict,   // it is an error, and so is a sharded checkpoint that is not the model it describes
  kRenamed,  // as kStrict, but the caller changes names first, and then looks for missing tensors itself
  kNeeded,   // the same, and so is none at all, or one of an unknown family without a plan
};

/// The config.json that a user says a checkpoint has, where that is not beside the weights.
struct ConfigChoice {
  std::filesystem::path path;  // the file, or the directory that holds it; empty for none
  bool where_missing = false;  // a config.json beside the weights goes before it
};

/// What to read of the optimizer and other state of a training run, if the layout supports it (LayoutTraits::reads).
enum class Beside : std::uint8_t {
  kCount,            // only the amount
  kLook,             // the amount, and the headers of the optimizer's files for BesideModel
  kRead,             // everything
  kReadGroups,       // everything, and the optimizer's groups as values, each of which may cost a read
  kReadPlainGroups,  // the same, but groups that are not plain values stay objects
};

/// What happens to tensors of a checkpoint that its model does not have, such as a module's buffers.
enum class ExtraTensors : std::uint8_t {
  kRefuse,
  kKeep,  // whole on every rank
  kDrop,
};

/// How a checkpoint is read.
struct ReadContext {
  ConfigUse use = ConfigUse::kLenient;
  FamilySpec family;     // of the model where somebody describes it; else the built-in one of its model_type
  OptionValues options;  // that say how it was made (LayoutOption::of_source)
  ConfigChoice config;
  Beside beside = Beside::kCount;
  ExtraTensors extra = ExtraTensors::kRefuse;

  bool reads_states() const { return beside >= Beside::kRead; }
};

/// What a checkpoint is to become.
struct TargetRequest {
  const Layout* layout = nullptr;
  std::optional<Format> format;     // default: the layout's first
  std::optional<std::uint32_t> tp;  // default: the source's ranks
  std::optional<std::uint32_t> pp;  // default: the source's, or what the cuts make
  std::uint32_t vpp = 1;
  std::optional<std::uint32_t> ep;         // default: the source's
  std::vector<std::string> pipeline_cuts;  // empty: dealt evenly
  OptionValues options;                    // of the layout
  /// What becomes of the lora_A of fused linears when an adapter is sharded for a model; the default is the mean.
  std::optional<LoraFuse> lora_fuse{};
};

/// What a target is made of.
struct TargetContext {
  const Model* model = nullptr;  // borrowed; never null for a layout of ranks
  std::span<const LogicalTensor> logical;
  std::string index_metadata;                 // as of HfIndex, of the source
  std::filesystem::path index_metadata_file;  // where it stands; empty if it is empty
  const TrainingStates* states = nullptr;    // borrowed; null where there are none, as for all that does not write them
  std::optional<std::uint32_t> source_dp{};  // data-parallel ranks that the source's states are spread over
  /// How the source's ranks are partitioned; the defaults if it has whole tensors. Layouts of training keep it as far as
  /// their trainers can load it and no option says otherwise.
  PartitionOptions source_partition{};
  std::span<const Adapter> adapters{};  // that `logical` are of; `model` is then their base model
};

/// A tensor that is the mean of others.
struct Average {
  std::string name;
  std::vector<std::string> terms;  // names; the first one's dtype, shape and role are the mean's
};

/// A checkpoint to be written.
struct TargetPlan {
  struct Copy {
    std::string name;
    std::string of;
  };

  TargetMap map;
  std::vector<TextFile> text_files;
  Format format = Format::kSafetensors;  // of its files
  Mesh mesh;
  std::optional<PipelinePartition> partition;
  std::vector<std::string> cut_names;  // "model.layers.3"
  std::optional<AttentionReport> attention;
  bool is_partial = false;  // only some of the ranks, into a directory that other runs write to as well
  bool has_first_rank = true;
  std::vector<std::string> without_place;            // tensors of the model that checkpoints of this layout do not have
  std::vector<std::string> notes;                    // what the user should know, whole sentences
  std::vector<std::filesystem::path> whole_folders;  // that are replaced as a whole, beside that of the traits
  std::vector<Copy> copies;                          // tensors of the source that it is to hold under another name, too
  std::vector<Average> means;                        // tensors of it that no source has
};

/// A kind of checkpoint directory.
class Layout {
 public:
  virtual ~Layout() = default;
  virtual const LayoutTraits& traits() const = 0;
  virtual std::vector<const LayoutOption*> options() const { return {}; }

  /// The checkpoints of this layout that `path` may mean, by names alone: itself, or one in it.
  virtual std::vector<FoundLayout> recognise(Files& files, const std::filesystem::path& path) const = 0;
  /// Why `path` is no checkpoint of this layout, where its name or its entries show that one was meant: it is a part of
  /// one, or lacks a part. Nothing for all else.
  virtual std::optional<Error> explain_missing(Files& /*files*/, const std::filesystem::path& /*path*/) const {
    return std::nullopt;
  }
  /// Reads all headers and metadata and validates them.
  /// \throws Error kBadInput, kUnsupported or kIo.
  virtual Checkpoint read(Files& files, const FoundLayout& found, const ReadContext& context) const = 0;
  /// \throws Error kUsage, with what would work, if the model cannot be laid out so.
  virtual TargetPlan plan(const TargetRequest& request, const TargetContext& context) const = 0;

  /// What else stands in the output directory does not contradict `plan`.
  /// \throws Error kBadInput.
  virtual void validate_beside(Files& files, const TargetPlan& plan,
                               const std::filesystem::path& output_directory) const;
  /// Where what is made of a checkpoint goes by default; nothing if the layout has no place beside the checkpoint.
  virtual std::optional<std::filesystem::path> default_output(Files& files, const FoundLayout& found) const;

  /// How its rank files are named, stored and explained; nullptr if it has none of that kind.
  virtual const RankFormat* ranks() const { return nullptr; }
  /// Whether an entry of a checkpoint's directory is about this layout, and not the model's own.
  virtual bool owns(Files& /*files*/, const std::filesystem::path& /*directory*/, const std::string& /*name*/) const {
    return false;
  }
  /// Whether a folder with these entries, by their names, is a checkpoint of its own.
  virtual bool is_checkpoint(const std::set<std::string>& /*files*/, const std::set<std::string>& /*folders*/) const {
    return false;
  }
};

/// All of them, the order of preference where a directory may be of several.
std::span<const Layout* const> layouts();
/// The one of that name, or null.
const Layout* layout_named(std::string_view name);
/// The layout of whole tensors that consolidating makes.
const Layout& whole_layout();
/// The layout of ranks that sharding makes unless another is asked for: the first.
const Layout& default_rank_layout();
/// The layout that shards of adapters are in.
const Layout& adapter_layout();

/// The names of the layouts that `wanted` holds for, comma-separated.
template <typename Wanted>
std::string layout_names(Wanted&& wanted) {
  std::string names;
  for (const Layout* layout : layouts())
    if (wanted(*layout)) names += (names.empty() ? "" : ", ") + std::string(layout->traits().name);
  return names;
}

/// The sharded checkpoint meant by `path`: itself, or the one inside it; nothing if there is none.
/// \throws Error kBadInput if there are two.
std::optional<FoundLayout> find_shards(Files& files, const std::filesystem::path& path);
/// The checkpoint of whole tensors in the directory `path`, if there is one.
std::optional<FoundLayout> find_whole(Files& files, const std::filesystem::path& path);

/// `directory` holds no file that `is_ours` by its name and that `plan` would not replace. `what` they are, in plural.
/// \throws Error kBadInput.
void validate_no_leftovers(Files& files, const TargetPlan& plan, const std::filesystem::path& directory,
                           const std::function<bool(const std::string& name)>& is_ours, const std::string& what);

/// The format that a request asks for.
/// \throws Error kUsage if the layout does not have it, or is only read.
Format format_of(const TargetRequest& request);
/// Validates the values of options that say how a source was made; `prefix` is what stands before their names.
/// \throws Error kUsage.
void validate_source_options(const OptionValues& values, const std::string& prefix = "");
/// As of LayoutOption::why_idle, of options that pad.
std::string why_padding_idle(const TargetPlan& plan, const Model& model);
/// A note for each option of the request that was given another value than its default and has no effect on `plan`.
std::vector<std::string> idle_option_notes(const TargetRequest& request, const Model& model, const TargetPlan& plan);
/// Validates everything about a request that needs no model: format, options and mesh fit the layout.
/// \throws Error kUsage.
void validate_request(const TargetRequest& request);

}  // namespace reshard
