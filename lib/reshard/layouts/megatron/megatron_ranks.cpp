// Megatron-LM's legacy checkpoints: iter_0000005/mp_rank_TT[_PPP]/model_optim_rng.pt, with the state dict of each rank's
// model (megatron/training/checkpointing.py, get_checkpoint_name). Layers are numbered within each pipeline stage.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "reshard/base/checked.h"
#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/names/written_names.h"
#include "reshard/layouts/ranks/rank_format.h"
#include "reshard/layouts/ranks/read_ranks.h"
#include "reshard/layouts/rules/fit_form.h"
#include "reshard/layouts/rules/rank_rules.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMegatronProgram = "megatron-ranks";
/// Index into Scheme::versions: modules of TransformerEngine, or Megatron-Core's own (--transformer-impl).
constexpr LayoutOption kMegatronModules{"transformer-impl", LayoutOption::Type::kRank, "", {}, "0"};

/// Whether a module of Megatron's has a tensor of this name.
bool has_megatron_name(std::string_view tensor) {
  static const std::set<std::string> kNames = [] {
    std::set<std::string> names;
    for (const auto& scheme : builtin_schemes())
      for (const SchemeEntry& entry :
           scheme->program == kMegatronProgram ? scheme->entries : std::vector<SchemeEntry>())
        names.insert(entry.names.begin(), entry.names.end());
    return names;
  }();
  return kNames.count(with_stars(tensor)) > 0;
}

/// The rules of each pipeline stage.
using RulesOfStages = std::vector<std::vector<PartitionRule>>;

/// Returns how the ranks share a model: equally, in groups of heads. Files have as many rows of the vocabulary as the run
/// padded it to.
RankShares megatron_shares(const Model& model, const WrittenNames& names, const HeldTensors& held, std::uint32_t tp) {
  RankShare usual{tp, std::vector<std::uint32_t>(tp), {}};
  usual.slots.query.resize(model.heads);
  usual.slots.key_value.resize(model.kv_heads);
  for (auto* numbers : {&usual.of_rank, &usual.slots.query, &usual.slots.key_value})
    std::iota(numbers->begin(), numbers->end(), 0u);
  RankShares shares;
  shares.usual.emplace("", std::move(usual));
  shares.padded = [&](const ModelParameter& parameter, std::uint32_t parts) {
    const std::uint64_t size = parameter.shape[parameter.split_dim.value_or(0)];
    const WrittenNames::Entry* entry = names.find(parameter.name).entry;
    if (entry == nullptr || !entry->rule->is_padded) return size;
    const TensorEntry* tensor = held.find(entry->name);
    const std::uint64_t rows = tensor == nullptr || tensor->shape.empty() ? 0 : tensor->shape[0];
    return std::max(rounded_up(size, std::uint64_t{parts}), rows * parts);
  };
  return shares;
}

/// Returns the number of layers in a file.
std::uint64_t layers_in(const Container& file) {
  std::uint64_t layers = 0;
  for (const TensorEntry& tensor : file.tensors)
    if (const auto numbers = numbers_in(tensor.name); !numbers.empty())
      layers = std::max(layers, parse_unsigned(numbers.front(), kMaxLayers).value_or(0) + 1);
  return layers;
}

RulesOfStages megatron_rules(const Model& model, const ShardedCheckpoint& shards, const OptionValues& form) {
  const HeldTensors held(shards.files);
  const WrittenNames names(model, builtin_scheme(kMegatronProgram, *model.family), *form.number(kMegatronModules));
  const RankShares shares = megatron_shares(model, names, held, shards.tp);
  const std::vector<PartitionRule> all =
      RankRules(model, names, shares, shards.tp).run([](const std::string&) { return false; });
  RulesOfStages stages;
  std::uint64_t begin = 0;  // layer of the model that is layer 0 of the stage
  for (const std::vector<Container>& files : shards.files) {
    const HeldTensors of_stage(files.front());
    const std::uint64_t end = begin + layers_in(files.front());
    std::vector<PartitionRule>& rules = stages.emplace_back();
    for (const PartitionRule& rule : all) {
      const std::vector<std::string> numbers = numbers_in(rule.stored_name);
      if (numbers.empty()) {  // embeddings and the last norm, which the first or the last stage has
        if (of_stage.has(rule.stored_name)) rules.push_back(rule);
        continue;
      }
      const std::uint64_t layer = parse_unsigned(numbers.front()).value_or(0);
      if (layer < begin || layer >= end) continue;
      const std::string own = std::to_string(layer - begin);
      rules.push_back(rule);
      rules.back().stored_name = with_numbers(with_stars(rule.stored_name), {&own, 1});
    }
    begin = end;
  }
  return stages;
}

void explain_megatron(Files&, const OptionValues&, ShardedCheckpoint& shards, Checkpoint& checkpoint) {
  const Model& model = *checkpoint.model;
  const auto scheme = builtin_scheme(kMegatronProgram, *model.family);
  if (scheme == nullptr)
    throw Error(ErrorKind::kUnsupported, fmt::format("the names of Megatron-LM's modules for {} are unknown",
                                                     printable(model.family->model_type)))
        .in(checkpoint.path)
        .hint("export the model from Megatron-LM with Hugging Face's names, for instance with Megatron Bridge");
  if (model.kv_heads == 0 || model.heads % model.kv_heads != 0 || model.kv_heads % shards.tp != 0)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("{} query heads in {} groups do not divide over {} ranks, which then share rows of a group",
                            model.heads, model.kv_heads, shards.tp))
        .in(checkpoint.path)
        .hint("save the model on fewer tensor-parallel ranks; or config.json belongs to another model");
  Unknown modules{&kMegatronModules, {}};
  for (std::size_t version = 0; version < scheme->versions.size(); ++version)
    modules.values.push_back(std::to_string(version));
  const RuleShapes shapes(model);
  OptionValues form;
  fit_form(form, {&modules, 1}, [&](const OptionValues& tried) {
    const RulesOfStages stages = megatron_rules(model, shards, tried);
    std::size_t misfits = 0;
    for (std::uint32_t pp_rank = 0; pp_rank < shards.pp; ++pp_rank)
      misfits += file_misfits(shards.files[pp_rank].front(), stages[pp_rank], shapes).count;
    return misfits;
  });  // if none fits, another check reports the tensor
  shards.rules = megatron_rules(model, shards, form);
  for (std::uint32_t pp_rank = 0; pp_rank < shards.pp; ++pp_rank)
    for (PartitionRule& rule : shards.rules[pp_rank])
      if (const std::uint64_t rows = cut_padding(shards, rule); rows > 0)
        checkpoint.notes.left_out(fmt::format(
            "left out {} rows of {}, which are padding of the vocabulary in config.json", rows, rule.stored_name));
}

constexpr LayoutTraits kMegatronTraits{.name = "megatron-ranks",
                                       .reported_as = "megatron-ranks",
                                       .meaning = "Megatron-LM's checkpoints of one file per rank",
                                       .folder = "",
                                       .formats = {},
                                       .axes = {MeshAxis::kTensor, MeshAxis::kPipeline}};
constexpr const char* kMegatronFiles[] = {"", "model_optim_rng.pt"};

constexpr RankFormat kMegatronFormat{
    .name = NumberedName("mp_rank_{tp:2}[_{pp:3}]"),
    .ending = NumberedName(""),
    .read = NumberedName("mp_rank_{tp:2}[_{pp:3}]", kMaxParallelDegree - 1),
    .files_in_folder = kMegatronFiles,
    .keeps_names = false,
    .has_own_name = has_megatron_name,
    .explain = explain_megatron,
    .hint_for_replicas =
        "rank files were swapped or come from different checkpoints, or config.json belongs to another model; "
        "`replicas` first has no effect, as nothing else shows how the parameters are partitioned"};

class MegatronRanksLayout final : public Layout {
 public:
  const LayoutTraits& traits() const override { return kMegatronTraits; }
  const RankFormat* ranks() const override { return &kMegatronFormat; }
  std::vector<FoundLayout> recognise(Files& files, const fs::path& path) const override {
    return recognise_ranks(files, *this, path);
  }
  Checkpoint read(Files& files, const FoundLayout& found, const ReadContext& context) const override {
    return read_ranks(files, found, context);
  }
};

}  // namespace

const Layout& megatron_ranks_layout() {
  static const MegatronRanksLayout kLayout;
  return kLayout;
}

}  // namespace reshard
