#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/layouts/core/attention_report.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/names/written_names.h"
#include "reshard/layouts/ranks/read_ranks.h"
#include "reshard/layouts/ranks/sharded_map.h"
#include "reshard/layouts/rules/rank_rules.h"
#include "reshard/specs/parallel/mesh.h"
#include "reshard/specs/parallel/transformation_specs.h"

namespace reshard {

/// The modules with names of their own in NxD's trainers, such as experts, which a scheme for ranks describes and metadata
/// does not. Borrows the model.
class ModuleRules {
 public:
  /// \param form  of which kModelSource, kRowOrder, kRoundFactor, kVocabularyMultiple, kKvSizeMultiplier, kKvReplication
  ///              and, for files that are read, the version of the modules matter.
  /// \throws Error kUnsupported if the model has only some of the tensors of an entry.
  ModuleRules(const Model& model, std::shared_ptr<const Scheme> scheme, OptionValues form);

  const WrittenNames& names() const { return names_; }
  /// Whether an entry stores a parameter of this name.
  bool has(const std::string& parameter) const { return names_.find(parameter).entry != nullptr; }
  /// Whether entries store the projections of the family's attention.
  bool has_attention() const;
  /// Returns how `tp` ranks share the heads of entries; std::nullopt if their number is unknown.
  std::optional<AttentionReport> attention(std::uint32_t tp) const;
  /// Whether the program has its own names for all parameters.
  bool names_all() const;
  /// Returns the model with these parameters unsplit, since entries define how they are split.
  Model without_own_splits() const;
  /// Returns the rules of all entries, over the ranks of `mesh`.
  /// \throws Error kUsage if the ranks cannot share a parameter.
  std::vector<PartitionRule> rules(const Mesh& mesh) const;
  /// Replaces the rules of these parameters by those of the entries that store them, over the ranks of `mesh`.
  /// \throws Error like `rules`, and kUnsupported for tied parameters.
  void replace_in(std::vector<StageRules>& stages, const Mesh& mesh) const;

 private:
  /// Returns the heads of all ranks.
  /// \throws Error kUsage if the ranks cannot share them.
  HeadSlots head_slots(const HeadCounts& heads, std::uint32_t tp) const;
  void order_like_module(std::vector<PartitionRule>& rules) const;

  const Model& model_;
  OptionValues form_;
  WrittenNames names_;
};

/// Returns the scheme of `form` for the model's family; null if there is none.
std::shared_ptr<const Scheme> module_scheme(const Model& model, const OptionValues& form);

/// Returns the families that have such modules in `form`, separated by commas.
std::string families_with_modules(const OptionValues& form);

/// Whether a tensor of this name belongs to such a module.
bool has_module_name(std::string_view tensor);

/// Explains the tensors of modules that have names of their own in `shards`, which have no metadata: fills
/// `shards.rules`, and distributes files of data-parallel ranks over the expert-parallel ranks that wrote them. Removes
/// buffers that are not weights. Adds to the notes and the form of `checkpoint`. No-op if there are no such names.
/// \param known  kRowOrder, kKvSizeMultiplier and kKvReplication if the user gave them.
/// \throws Error kBadInput or kUnsupported if the tensors do not match the model.
void explain_modules(ShardedCheckpoint& shards, Checkpoint& checkpoint, const OptionValues& known = {});

/// Options with which these modules are written.
inline constexpr const char* kModelSources[] = {"hf", "megatron"};
inline constexpr LayoutOption kModelSource{"model-source", LayoutOption::Type::kChoice,
                                           "NxD Training's model_source, whose names to write: hf or megatron",
                                           kModelSources, "hf"};
/// LayoutOption::why_idle for options of megatron style.
std::string why_megatron_idle(const TargetPlan& plan, const Model& model);
inline constexpr const char* kRowOrders[] = {"by-head", "by-projection"};
inline constexpr LayoutOption kRowOrder{
    .name = "qkv-rows",
    .type = LayoutOption::Type::kChoice,
    .help =
        "Rows of fused query, key and value heads in megatron style: by-head (NxD Training's module) or "
        "by-projection (its converter)",
    .choices = kRowOrders,
    .default_value = "by-head",
    .of_source = true,
    .source_help =
        "Rows of fused query, key and value heads in megatron style: by-head (saved by training) or "
        "by-projection (written by NxD Training's converter)",
    .why_idle = why_megatron_idle};
/// LayoutOption::why_source_idle of kKvReplication.
std::string why_order_idle(const Checkpoint& checkpoint);
inline constexpr const char* kKvOrders[] = {"tiled", "adjacent"};
inline constexpr LayoutOption kKvReplication{
    .name = "kv-replication",
    .type = LayoutOption::Type::kChoice,
    .help = "Order of replicated key/value heads: tiled (K0 K1 K0 K1, trn1) or adjacent (K0 K0 K1 K1, trn2)",
    .choices = kKvOrders,
    .default_value = "tiled",
    .of_source = true,
    .source_help = "Order of replicated key/value heads: tiled or adjacent",
    .why_idle = why_replication_idle,
    .why_source_idle = why_order_idle};
inline constexpr LayoutOption kRoundFactor{
    .name = "i-tp-round-factor",
    .type = LayoutOption::Type::kCount,
    .help = "Pad each rank's part of an expert to a multiple of this, as DBRX's trainer with the same setting",
    .why_idle = why_padding_idle};
inline constexpr LayoutOption kVocabularyMultiple{
    .name = "make-vocab-size-divisible-by",
    .type = LayoutOption::Type::kCount,
    .help = "In megatron style, pad each rank's vocabulary to a multiple of this (default: 128, as NxD Training)",
    .why_idle = why_megatron_idle};

/// Returns the value of kKvReplication.
KvReplication replication_of(const OptionValues& values);

/// Returns the form that `values` request, with the trainer's own defaults.
OptionValues requested_form(OptionValues values);

}  // namespace reshard
