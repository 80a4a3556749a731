#include "reshard/layouts/training/module_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "reshard/base/checked.h"
#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/ranks/rank_format.h"
#include "reshard/layouts/rules/fit_form.h"
#include "reshard/specs/stages/stage_plan.h"

namespace reshard {
namespace {

/// Programs in Scheme::program, by the index of their choice in kModelSources.
constexpr const char* kModulePrograms[] = {"nxd-training", "nxdt-megatron"};
constexpr std::uint64_t kUsualVocabularyMultiple = 128;  // NxD Training's make_vocab_size_divisible_by
/// Index into Scheme::versions of files that are read; the newest one is written.
constexpr LayoutOption kModuleVersion{"module-version", LayoutOption::Type::kRank, "", {}, "0"};

const char* program_of(const OptionValues& form) {
  return kModulePrograms[form.choice(kModelSource) == kModelSources[1] ? 1 : 0];
}

bool has_rows_by_head(const OptionValues& form) {
  return form.choice(kRowOrder) == kRowOrders[0];
}

bool is_of_vocabulary(const ModelParameter& parameter) {
  return !parameter.layer && parameter.split_dim == 0u && parameter.shape.size() == 2;
}

bool stacks_experts(const WrittenNames::Entry& entry) {
  return !entry.rule->numbered_dims().empty() ||
         (!entry.rule->is_plain() && entry.rule->entry_dims.size() > entry.rule->parameter_dims.size());
}

/// The setting of a program that SchemeEntry::when may refer to, or a number of the model.
Expression::Lookup settings_of(const Model& model, const OptionValues& form) {
  return [&model, &form](const std::string& key) -> ConfigValue {
    if (key == "rows_by_head") return has_rows_by_head(form);
    if (key == "num_attention_heads") return model.heads;
    if (key == "num_key_value_heads") return model.kv_heads;
    throw Error(ErrorKind::kInternal, fmt::format("a built-in scheme refers to an unknown setting, {}", key));
  };
}

}  // namespace

std::shared_ptr<const Scheme> module_scheme(const Model& model, const OptionValues& form) {
  return builtin_scheme(program_of(form), *model.family, settings_of(model, form));
}

std::string families_with_modules(const OptionValues& form) {
  std::vector<std::string> families;
  for (const auto& scheme : builtin_schemes())
    if (scheme->program == program_of(form)) families = scheme->families;
  return join(families, ", ");
}

bool has_module_name(std::string_view tensor) {
  static const std::unordered_set<std::string> kNames = [] {
    std::unordered_set<std::string> names;
    for (const auto& scheme : builtin_schemes())
      for (const char* program : kModulePrograms)
        for (const SchemeEntry& entry : scheme->program == program ? scheme->entries : std::vector<SchemeEntry>())
          names.insert(entry.names.begin(), entry.names.end());
    return names;
  }();
  return kNames.count(with_stars(std::string(tensor))) > 0;
}

ModuleRules::ModuleRules(const Model& model, std::shared_ptr<const Scheme> scheme, OptionValues form)
    : model_(model), form_(std::move(form)), names_(model, std::move(scheme), *form_.number(kModuleVersion)) {}

bool ModuleRules::has_attention() const {
  return model_.family->attention &&
         std::any_of(model_.parameters.begin(), model_.parameters.end(), [&](const ModelParameter& parameter) {
           const auto module = module_in(model_.family->attention->module, parameter.layer);
           return module && parameter.module == *module + "." + model_.family->attention->query && has(parameter.name);
         });
}

bool ModuleRules::names_all() const {
  return std::any_of(model_.parameters.begin(), model_.parameters.end(), [&](const ModelParameter& parameter) {
    return is_of_vocabulary(parameter) && has(parameter.name);
  });
}

Model ModuleRules::without_own_splits() const {
  Model model = model_;
  for (ModelParameter& parameter : model.parameters) {
    if (!has(parameter.name)) continue;
    parameter.split_dim.reset();
    parameter.packed.clear();
  }
  return model;
}

HeadSlots ModuleRules::head_slots(const HeadCounts& heads, std::uint32_t tp) const {
  HeadSlots slots;
  if (heads.query == 0) return slots;
  GQAQKVColumnParallelLinearSpec spec;
  spec.num_attention_heads = heads.query;
  spec.num_key_value_heads = heads.key_value;
  spec.kv_size_multiplier =
      static_cast<std::uint32_t>(form_.number(kKvSizeMultiplier).value_or(usual_multiplier(heads.key_value, tp)));
  spec.tp_size = tp;
  spec.replication = replication_of(form_);
  for (const WrittenNames::Entry& entry : names_.entries()) {
    if (entry.rule->ranks.heads.empty()) continue;
    const std::string problem = multiplier_problem(heads.query, heads.key_value, tp, spec.kv_size_multiplier);
    if (!problem.empty()) throw Error(ErrorKind::kUsage, problem).tensor(entry.tensors.front());
    break;
  }
  for (std::uint32_t rank = 0; rank < tp; ++rank) {
    const auto query = spec.query_heads(rank), key_value = spec.key_value_heads(rank);
    slots.query.insert(slots.query.end(), query.begin(), query.end());
    slots.key_value.insert(slots.key_value.end(), key_value.begin(), key_value.end());
  }
  return slots;
}

std::optional<AttentionReport> ModuleRules::attention(std::uint32_t tp) const {
  const HeadCounts heads = head_counts(model_, names_);
  if (heads.query == 0) return std::nullopt;
  AttentionReport report{AttentionForm::kGroupedQuery, heads.query, heads.key_value, heads.dim, 1, {}};
  return with_slots(std::move(report), head_slots(heads, tp), tp);
}

std::vector<PartitionRule> ModuleRules::rules(const Mesh& mesh) const {
  for (const ModelParameter& parameter : model_.parameters) {
    const WrittenNames::Entry* entry = names_.find(parameter.name).entry;
    if (entry == nullptr || (entry->rule->is_padded && is_of_vocabulary(parameter)) ||
        !entry->rule->ranks.heads.empty())
      continue;
    if (const auto problem = split_problem(parameter, mesh.tp))
      throw Error(ErrorKind::kUsage, *problem).tensor(parameter.name);
  }
  const std::uint32_t ranks = mesh.tp * mesh.ep;
  RankShare usual{mesh.tp, {}, head_slots(head_counts(model_, names_), mesh.tp)};
  for (std::uint32_t rank = 0; rank < ranks; ++rank) usual.of_rank.push_back(rank % mesh.tp);
  RankShares shares;
  shares.usual.emplace("", std::move(usual));
  const bool pads_experts =
      std::any_of(names_.entries().begin(), names_.entries().end(),
                  [](const WrittenNames::Entry& entry) { return entry.rule->is_padded && stacks_experts(entry); });
  shares.experts.emplace("",
                         ExpertShare{mesh.tp, mesh.ep, 1, pads_experts ? form_.number(kRoundFactor).value_or(1) : 1});
  shares.padded = [&](const ModelParameter& parameter, std::uint32_t) {
    const std::uint64_t multiple = is_of_vocabulary(parameter) ? form_.number(kVocabularyMultiple).value_or(1) : 1;
    return rounded_up(parameter.shape[parameter.split_dim.value_or(0)], multiple * mesh.tp);
  };
  std::vector<PartitionRule> rules =
      RankRules(model_, names_, shares, ranks).run([](const std::string&) { return true; });
  for (PartitionRule& rule : rules) rule.records_originals = false;  // a stage does not know those of the others
  return rules;
}

/// Orders the rules of each layer as the scheme lists its entries: the optimizer numbers parameters in this order.
void ModuleRules::order_like_module(std::vector<PartitionRule>& rules) const {
  const auto entry_of = [&](const PartitionRule& rule) { return names_.find(rule.parts.front().logical_name).entry; };
  for (auto first = rules.begin(); first != rules.end();) {
    const auto last = std::find_if(first, rules.end(), [&](const PartitionRule& rule) {
      return numbers_in(rule.stored_name) != numbers_in(first->stored_name);
    });
    std::stable_sort(first, last, [&](const PartitionRule& a, const PartitionRule& b) {
      return entry_of(a)->rule < entry_of(b)->rule;
    });
    first = last;
  }
}

void ModuleRules::replace_in(std::vector<StageRules>& stages, const Mesh& mesh) const {
  std::vector<PartitionRule> all = rules(mesh);
  std::unordered_multimap<std::string, std::size_t> by_parameter;
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::set<std::string_view> parameters;
    for (const PartitionRule::Part& part : all[i].parts) parameters.insert(part.logical_name);
    for (const std::string_view parameter : parameters) by_parameter.emplace(parameter, i);
  }
  for (StageRules& stage : stages) {
    for (const TiedParameter& tied : stage.tied)
      if (has(tied.name))
        throw Error(ErrorKind::kUnsupported,
                    fmt::format("is tied to {}: how the trainer stores it in this style is unknown", tied.source))
            .tensor(tied.name);
    std::vector<PartitionRule> rules;
    std::set<std::size_t> added;
    for (PartitionRule& rule : stage.rules) {
      std::set<std::size_t> replacements;
      for (const PartitionRule::Part& part : rule.parts) {
        const auto [first, last] = by_parameter.equal_range(part.logical_name);
        for (auto found = first; found != last; ++found) replacements.insert(found->second);
      }
      if (replacements.empty() && names_all())
        throw Error(ErrorKind::kUnsupported, "has no name in megatron style")
            .tensor(rule.parts.empty() ? rule.stored_name : rule.parts.front().logical_name)
            .hint("leave out `model-source`, for the names of NxD Training's models of Hugging Face");
      if (replacements.empty()) rules.push_back(std::move(rule));
      for (const std::size_t i : replacements)
        if (added.insert(i).second) rules.push_back(all[i]);
    }
    if (names_all()) order_like_module(rules);
    stage.rules = std::move(rules);
  }
}

namespace {

/// Returns the form whose names most of the tensors have; std::nullopt if none has such a name.
std::optional<OptionValues> form_in_files(const Model& model, const HeldTensors& held) {
  std::optional<OptionValues> best;
  std::size_t most = 0;
  for (const char* source : kModelSources) {
    OptionValues form;
    form.set(kModelSource.name, source);
    const auto scheme = module_scheme(model, form);
    for (std::size_t version = 0; scheme && version < std::max<std::size_t>(1, scheme->versions.size()); ++version) {
      form.set_number(kModuleVersion.name, version);
      const ModuleRules rules(model, scheme, form);
      const auto& entries = rules.names().entries();
      const auto count = static_cast<std::size_t>(
          std::count_if(entries.begin(), entries.end(), [&](const auto& entry) { return held.has(entry.name); }));
      if (count > most) best = form;
      most = std::max(most, count);
    }
  }
  return best;
}

/// Removes tensors that no parameter of the model has.
/// \returns the dtype of one of them; std::nullopt if it removes none.
std::optional<DType> remove_buffers(ShardedCheckpoint& shards, const WrittenNames& names, Checkpoint& checkpoint) {
  const std::vector<std::string> unused = names.unused();
  std::optional<DType> dtype;
  std::set<std::string> removed;
  const auto is_buffer = [&](const TensorEntry& tensor) {
    const std::string pattern = with_stars(tensor.name);
    if (std::find(unused.begin(), unused.end(), pattern) == unused.end()) return false;
    dtype = tensor.dtype;
    removed.insert(pattern);
    return true;
  };
  for (std::vector<Container>& stage : shards.files)
    for (Container& file : stage) std::erase_if(file.tensors, is_buffer);
  for (ShardedCheckpoint::Copy& copy : shards.copies) std::erase_if(copy.file.tensors, is_buffer);
  if (!removed.empty())
    checkpoint.notes
        .left_out("left out, because the model computes it: " +
                  list_names(std::vector<std::string>(removed.begin(), removed.end())))
        .of({removed.begin(), removed.end()});
  return dtype;
}

/// Validates that files have the rows of fused projections of attention in the order of `form`, by head, as training saves
/// them.
void validate_row_order(const OptionValues& form, const Model& model, const HeldTensors& held, std::uint32_t tp,
                        std::optional<DType> buffers) {
  OptionValues other = form;
  other.set(kRowOrder.name, kRowOrders[1]);
  const ModuleRules rules(model, module_scheme(model, form), form), others(model, module_scheme(model, other), other);
  if (model.kv_heads <= tp) return;  // a rank has one head, and both orders are the same
  for (const WrittenNames::Entry& entry : rules.names().entries()) {
    const TensorEntry* tensor = held.find(entry.name);
    const WrittenNames::Entry* in_other = others.names().find(entry.tensors.front()).entry;
    if (tensor == nullptr || in_other == nullptr || in_other->rule->entry_dims == entry.rule->entry_dims) continue;
    if (buffers == tensor->dtype) return;  // training saves its buffers, in the dtype of the model
    throw held
        .error(ErrorKind::kBadInput, entry.name,
               buffers
                   ? fmt::format("the order of its rows is unknown: training saves them by head, with buffers of {}, "
                                 "but the buffers here are {}",
                                 reshard::name(tensor->dtype), reshard::name(*buffers))
                   : "the order of its rows is unknown: without buffers such as inv_freq, the files may come from "
                     "NxD Training's converter or be cut down from a training run")
        .hint(
            "set `from-qkv-rows` to by-projection for the output of NxD Training's converter (all query, then all key, "
            "then all value rows of a rank), or to by-head for what training in megatron style saved");
  }
}

/// Whether buffers show that training saved the files: they have the dtype of the model.
bool are_of_training(std::optional<DType> buffers, const OptionValues& form, const Model& model,
                     const HeldTensors& held) {
  const ModuleRules rules(model, module_scheme(model, form), form);
  const auto& entries = rules.names().entries();
  return std::any_of(entries.begin(), entries.end(), [&](const WrittenNames::Entry& entry) {
    const TensorEntry* tensor = entry.rule->ranks.heads.empty() ? nullptr : held.find(entry.name);
    return tensor != nullptr && buffers == tensor->dtype;
  });
}

std::uint32_t dp_rank_of(const Container& file) {
  for (const std::filesystem::path& path : {file.path, file.path.parent_path()})
    if (const auto rank = rank_of_name(path.filename().string())) return rank->dp_rank;
  return 0;
}

/// Assigns the files of data-parallel ranks to `ep` expert-parallel ranks, which neighbours alternate between.
void spread_over_experts(ShardedCheckpoint& shards, std::uint32_t ep) {
  std::vector<ShardedCheckpoint::Copy> all;
  for (std::uint32_t pp_rank = 0; pp_rank < shards.pp; ++pp_rank)
    for (std::uint32_t tp_rank = 0; tp_rank < shards.tp; ++tp_rank) {
      Container& file = shards.files[pp_rank][tp_rank];
      const RankId rank{tp_rank, pp_rank, dp_rank_of(file)};
      all.push_back({rank, std::move(file)});
    }
  std::move(shards.copies.begin(), shards.copies.end(), std::back_inserter(all));
  shards.copies.clear();
  shards.ep = ep;
  std::vector<std::vector<bool>> is_there(shards.pp, std::vector<bool>(std::size_t{ep} * shards.tp));
  for (std::vector<Container>& stage : shards.files) {
    stage.clear();
    stage.resize(std::size_t{ep} * shards.tp);
  }
  for (ShardedCheckpoint::Copy& one : all) {
    one.rank.ep_rank = one.rank.dp_rank % ep;
    const std::size_t place = one.rank.ep_rank * shards.tp + one.rank.tp_rank;
    if (is_there[one.rank.pp_rank][place]) {
      shards.copies.push_back(std::move(one));
      continue;
    }
    shards.files[one.rank.pp_rank][place] = std::move(one.file);
    is_there[one.rank.pp_rank][place] = true;
  }
  for (std::uint32_t pp_rank = 0; pp_rank < shards.pp; ++pp_rank)
    for (std::size_t place = 0; place < is_there[pp_rank].size(); ++place)
      if (!is_there[pp_rank][place])
        throw Error(
            ErrorKind::kBadInput,
            fmt::format("lacks tp rank {}, pp rank {} of expert-parallel rank {}: a file of one of the "
                        "data-parallel ranks {}, {}, …",
                        place % shards.tp, pp_rank, place / shards.tp, place / shards.tp, place / shards.tp + ep))
            .in(shards.folder.path)
            .hint("copy the files of all data-parallel ranks here");
}

/// Determines the number of expert-parallel ranks from the number of experts in a file.
void find_expert_ranks(ShardedCheckpoint& shards, const ModuleRules& rules, const Model& model,
                       const HeldTensors& held) {
  std::unordered_map<std::string_view, std::uint64_t> experts_of;
  for (const ModelParameter& parameter : model.parameters) experts_of.emplace(parameter.name, parameter.experts);
  for (const WrittenNames::Entry& entry : rules.names().entries()) {
    const TensorEntry* tensor = stacks_experts(entry) ? held.find(entry.name) : nullptr;
    if (tensor == nullptr || tensor->shape.empty()) continue;
    const std::uint64_t experts = experts_of.at(entry.tensors.front()), own = tensor->shape.front();
    if (own == 0 || experts % own != 0 || own * shards.ep == experts) return;  // another check reports the shape
    const std::uint64_t ep = experts / own;
    if (shards.ep == 1 && !shards.copies.empty() && ep <= kMaxParallelDegree)
      return spread_over_experts(shards, static_cast<std::uint32_t>(ep));
    throw held
        .error(ErrorKind::kBadInput, entry.name,
               fmt::format("contains {} of {} experts, so it belongs to one of {} expert-parallel ranks, but there {}",
                           own, experts, ep,
                           shards.ep == 1 ? "are no files of the others" : fmt::format("are {}", shards.ep)))
        .hint(
            "copy the files of all ranks here; NxD's Lightning strategy without ZeRO-1 saves data-parallel rank 0 "
            "only, "
            "and then the other experts were not saved");
  }
}

/// Infers the number of replicas of key/value heads from the shapes of the first rank, unless the form has it.
void find_multiplier(OptionValues& form, const ShardedCheckpoint& shards, const Model& model, const HeldTensors& held) {
  const auto scheme = module_scheme(model, form);
  const HeadCounts heads = head_counts(model, ModuleRules(model, scheme, form).names());
  if (form.has(kKvSizeMultiplier.name) || heads.query == 0) return;
  Unknown multiplier{&kKvSizeMultiplier, {}};
  for (const std::uint64_t one : legal_multipliers(heads.query, heads.key_value, shards.tp))
    multiplier.values.push_back(std::to_string(one));
  const RuleShapes shapes(model);
  OptionValues found = form;
  const bool fits = fit_form(found, {&multiplier, 1}, [&](const OptionValues& tried) {
    const ModuleRules modules(model, scheme, tried);
    const std::vector<PartitionRule> rules = modules.rules({shards.tp, shards.pp, 1, shards.ep});
    return static_cast<std::size_t>(std::count_if(rules.begin(), rules.end(), [&](const PartitionRule& rule) {
      const TensorEntry* tensor = held.find(rule.stored_name);
      const WrittenNames::Entry* entry =
          rule.parts.empty() ? nullptr : modules.names().find(rule.parts.front().logical_name).entry;
      const bool has_heads = tensor != nullptr && entry != nullptr && !entry->rule->ranks.heads.empty();
      return has_heads && shapes.of(rule) != tensor->shape;
    }));
  });
  if (fits) form = std::move(found);  // otherwise another check reports the shapes
}

/// Infers the padding in files from the shape of the first tensor of each kind that has a padded entry.
/// \throws Error kUnsupported for experts that are not transposed.
void find_padding(OptionValues& form, const ShardedCheckpoint& shards, const ModuleRules& rules, const Model& model,
                  const HeldTensors& held) {
  const RuleShapes shapes(model);
  std::unordered_map<std::string_view, const ModelParameter*> by_name;
  for (const ModelParameter& parameter : model.parameters) by_name.emplace(parameter.name, &parameter);
  std::unordered_map<std::string, const WrittenNames::Entry*> entries;
  for (const WrittenNames::Entry& entry : rules.names().entries()) entries.emplace(entry.name, &entry);
  std::set<std::string> seen;
  for (const PartitionRule& rule : rules.rules({shards.tp, shards.pp, 1, shards.ep})) {
    const TensorEntry* tensor = held.find(rule.stored_name);
    if (tensor == nullptr || !seen.insert(with_stars(rule.stored_name)).second) continue;
    const WrittenNames::Entry& entry = *entries.at(rule.stored_name);
    const auto expected = shapes.of(rule);
    const Dims& shape = tensor->shape;
    if (!expected || *expected == shape || expected->size() != shape.size()) continue;
    const std::uint64_t matrices = entry.rule->parameters.size();
    std::vector<std::size_t> others;
    for (std::size_t dim = 0; dim < shape.size(); ++dim)
      if ((*expected)[dim] != shape[dim]) others.push_back(dim);
    const std::size_t dim = others.front();
    const bool is_longer = others.size() == 1 && shape[dim] > (*expected)[dim] && shape[dim] % matrices == 0;
    if (is_longer && entry.rule->is_padded && stacks_experts(entry))
      form.set_number(kRoundFactor.name, shape[dim] / matrices);
    if (is_longer && entry.rule->is_padded && is_of_vocabulary(*by_name.at(entry.tensors.front())))
      form.set_number(kVocabularyMultiple.name, shape[dim]);
    if (!stacks_experts(entry) || others.size() != 2) continue;
    for (const auto& [split, other] : {std::pair(others[0], others[1]), std::pair(others[1], others[0])}) {
      const std::uint64_t of_expert = (*expected)[split] / matrices * shards.tp;
      if (shape[other] == of_expert && shape[split] * shards.tp == (*expected)[other] * matrices)
        throw held
            .error(ErrorKind::kUnsupported, rule.stored_name,
                   fmt::format("has the shape {} instead of {}: the experts are not transposed. NxD's "
                               "convert_checkpoints.py for Mixtral writes such files, which its modules refuse",
                               to_string(shape), to_string(*expected)))
            .hint("use the Hugging Face model that the files were converted from");
    }
  }
}

/// Records the options with which the files were written.
void note_form(const OptionValues& form, const ShardedCheckpoint& shards, Checkpoint& checkpoint) {
  const std::vector<const LayoutOption*> options = checkpoint.layout->options();
  const auto has = [&](const LayoutOption& option) {
    return std::any_of(options.begin(), options.end(),
                       [&](const LayoutOption* one) { return one->name == option.name; });
  };
  if (!has(kModelSource)) return;
  for (const LayoutOption* option : {&kModelSource, &kRowOrder})
    if (form.choice(*option) != option->choices.front()) checkpoint.form.set(option->name, form.choice(*option));
  if (form.number(kRoundFactor).value_or(1) > 1)
    checkpoint.form.set_number(kRoundFactor.name, *form.number(kRoundFactor));
  if (form.choice(kModelSource) == kModelSources[0]) return;
  auto multiple = form.number(kVocabularyMultiple);
  for (const ModelParameter& parameter : checkpoint.model->parameters)
    if (!multiple && is_of_vocabulary(parameter)) multiple = parameter.shape[0] / shards.tp;
  checkpoint.form.set_number(kVocabularyMultiple.name, multiple.value_or(0));
}

}  // namespace

namespace {

void fill_rules(ShardedCheckpoint& shards, Checkpoint& checkpoint, const OptionValues& known) {
  const Model& model = *checkpoint.model;
  const HeldTensors held(shards.files);
  std::optional<OptionValues> form = form_in_files(model, held);
  if (!form) return;
  for (const LayoutOption* option : {&kKvSizeMultiplier, &kKvReplication})
    if (known.has(option->name)) form->set(option->name, known.all().at(option->name));
  find_multiplier(*form, shards, model, held);
  const ModuleRules found(model, module_scheme(model, *form), *form);
  find_expert_ranks(shards, found, model, held);
  checkpoint.mesh.ep = shards.ep;
  const std::optional<DType> buffers = remove_buffers(shards, found.names(), checkpoint);
  const HeldTensors kept(shards.files);
  if (known.has(kRowOrder.name))
    form->set(kRowOrder.name, known.choice(kRowOrder, "from-"));
  else
    validate_row_order(*form, model, kept, shards.tp, buffers);
  if (!has_rows_by_head(*form) && are_of_training(buffers, *form, model, kept))
    throw Error(ErrorKind::kBadInput,
                "`from-qkv-rows` by-projection contradicts the files: training saved them, by head")
        .in(shards.folder.path)
        .hint("leave out `from-qkv-rows`");
  find_padding(*form, shards, found, model, kept);
  const ModuleRules modules(model, module_scheme(model, *form), *form);
  std::vector<PartitionRule> all = modules.rules({shards.tp, shards.pp, 1, shards.ep});
  std::unordered_set<std::string_view> vocabularies;
  for (const ModelParameter& parameter : model.parameters)
    if (form->has(kVocabularyMultiple.name) && is_of_vocabulary(parameter)) vocabularies.insert(parameter.name);
  for (PartitionRule& rule : all)
    if (!rule.parts.empty() && vocabularies.count(rule.parts.front().logical_name) > 0) cut_padding(shards, rule);
  for (const std::vector<Container>& stage : shards.files) {
    std::unordered_set<std::string_view> names;
    for (const Container& file : stage)
      for (const TensorEntry& tensor : file.tensors) names.insert(tensor.name);
    std::vector<PartitionRule>& rules = shards.rules.emplace_back();
    for (const PartitionRule& rule : all)
      if (names.count(rule.stored_name) > 0) rules.push_back(rule);
  }
  note_form(*form, shards, checkpoint);
}

}  // namespace

void explain_modules(ShardedCheckpoint& shards, Checkpoint& checkpoint, const OptionValues& known) {
  try {
    fill_rules(shards, checkpoint, known);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUsage) throw;
    throw Error(ErrorKind::kBadInput, "according to config.json, " + error.message())
        .in(shards.folder.path)
        .tensor(error.tensor())
        .hint("the last ranks are missing, or config.json belongs to another model");
  }
}

std::string why_order_idle(const Checkpoint& checkpoint) {
  if (!checkpoint.model) return "the metadata defines the order";
  return checkpoint.partition.kv_size_multiplier.value_or(1) > 1 ? "" : "key/value heads are not replicated";
}

KvReplication replication_of(const OptionValues& values) {
  return values.choice(kKvReplication) == kKvOrders[1] ? KvReplication::kAdjacent : KvReplication::kTiled;
}

std::string why_megatron_idle(const TargetPlan& plan, const Model&) {
  return plan.form.choice(kModelSource) == kModelSources[1]
             ? ""
             : fmt::format("it applies to `{}` {}", kModelSource.name, kModelSources[1]);
}

OptionValues requested_form(OptionValues values) {
  if (values.choice(kModelSource) == kModelSources[0]) {
    values.erase(kVocabularyMultiple.name);
    return values;
  }
  values.set_number(kKvSizeMultiplier.name, 1);  // megatron style has no replicas
  if (!values.has(kVocabularyMultiple.name)) values.set_number(kVocabularyMultiple.name, kUsualVocabularyMultiple);
  return values;
}

}  // namespace reshard
