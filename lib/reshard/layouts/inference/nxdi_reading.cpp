#include "reshard/layouts/inference/nxdi_reading.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/formats/read_container.h"
#include "reshard/layouts/inference/inference_kernels.h"
#include "reshard/layouts/inference/inference_server.h"
#include "reshard/layouts/inference/nxdi_quantization.h"
#include "reshard/layouts/inference/nxdi_rules.h"
#include "reshard/layouts/inference/served_adapters.h"
#include "reshard/layouts/map/whole_map.h"
#include "reshard/layouts/ranks/sharded_map.h"
#include "reshard/layouts/rules/fit_form.h"
#include "reshard/specs/model/language_model.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

Error scaled_error(const fs::path& path) {
  return Error(ErrorKind::kUnsupported,
               "has fused_rmsnorm_skip_gamma: the weights were multiplied by norm weights and rounded, which cannot be "
               "undone")
      .in(path)
      .hint(
          "compile the model without fused_rmsnorm_skip_gamma, or use the model that it was compiled from; a "
          "SHA256SUMS as `manifest` verifies the files without reading them as a model");
}

/// Returns `given`, or else the form that neuron_config.json declares for the model with this role. The file is in the
/// weights' directory or its parent; for optimum-neuron, it is next to config.json, two levels up.
OptionValues declared_options(Files& files, const Checkpoint& checkpoint, const std::string& role, bool has_record,
                              OptionValues given) {
  const fs::path above = directory_above(files, checkpoint.path);
  for (const fs::path& directory : {checkpoint.path, above, checkpoint.directory})
    if (const auto compiled = read_compiled_model(files, directory)) {
      const CompiledModel* model = role == kModels[0] ? &*compiled : joined_model(*compiled, role);
      if (model == nullptr) break;
      if (model->options.flag(kSkipGamma.name)) throw scaled_error(model->file);
      for (const auto& [name, value] : model->options.all()) {
        const bool is_recorded = has_record && name == kKernels.name;
        if (given.has(name) && given.all().at(name) != value && !is_recorded)
          throw Error(ErrorKind::kUsage, fmt::format("`from-{}` {} contradicts the compiled model, which has {}", name,
                                                     given.all().at(name), value))
              .in(model->file)
              .hint(fmt::format("leave out `from-{}`; or, if neuron_config.json belongs to another compiled model, "
                                "remove it and set `config`",
                                name));
        if (!given.has(name)) given.set(name, value);
      }
      break;
    }
  return given;
}

/// Returns the rules of files that are read.
std::vector<PartitionRule> read_rules(const ShardedCheckpoint& shards, const Model& model, const OptionValues& form,
                                      const HoldsName& holds) {
  return nxdi_rules(model, shards.tp, form, holds, float_dtype(shards.files.front().front().tensors));
}

/// Returns the tensors of `rules` that the first rank lacks, or has with another number of elements.
std::vector<std::string> misfits_of(const std::vector<PartitionRule>& rules, const HeldTensors& held,
                                    const RuleShapes& shapes) {
  std::vector<std::string> misfits;
  for (const PartitionRule& rule : rules) {
    const auto shape = shapes.of(rule);
    const TensorEntry* tensor = held.find(rule.stored_name);
    if (!shape || tensor == nullptr || num_elems(*shape) != num_elems(tensor->shape))
      misfits.push_back(rule.stored_name);
  }
  return misfits;
}

/// Sets the padding of the head that the files show by its bias, which has an element for each row of the padded head
/// or, if ranks split it, of the rank's part. Several multiples result in the same files: sets the smallest.
void find_head_padding(const ShardedCheckpoint& shards, const Model& model, OptionValues& form) {
  const HeldTensors held(shards.files.front().front());
  const auto rows_of = [&](const std::string& name) {
    const TensorEntry* tensor = held.find(name);
    return tensor == nullptr || tensor->shape.empty() ? 0 : tensor->shape.front();
  };
  constexpr std::uint64_t kProbe = 4093;  // a prime: hardly a vocabulary needs no padding
  const Scheme scheme = nxdi_scheme(model, with_setting(form, kHeadMultiple, kProbe));
  for (const SchemeEntry& entry : scheme.entries) {
    if (entry.ranks.multiple != kProbe || entry.constants.empty()) continue;
    const std::uint64_t head = rows_of(entry.names.front()), bias = rows_of(entry.constants.front().names.front());
    const auto parameter = std::find_if(model.parameters.begin(), model.parameters.end(), [&](const auto& one) {
      return one.name == nxdi_prefix(model) + entry.parameters.front();
    });
    if (head == 0 || bias == 0 || parameter == model.parameters.end()) continue;
    const std::uint64_t padded = head * shards.tp;
    if (padded < parameter->shape.front()) continue;  // of another model
    if (shards.tp > 1 && bias == head) form.set_flag(kSplitHeadBias.name, true);
    for (std::uint64_t multiple = padded - parameter->shape.front() + 1;
         multiple <= kMaxParallelDegree && !form.has(kHeadMultiple.name); ++multiple)
      if (padded % multiple == 0) form.set_number(kHeadMultiple.name, multiple);
  }
}

/// Returns the form of the files: what their names show, with degrees that are declared, or else shown by the shapes.
OptionValues form_of(const ShardedCheckpoint& shards, const Model& model, const OptionValues& declared,
                     const HoldsName& holds) {
  std::set<std::string> held;
  for (const TensorEntry& tensor : shards.files.front().front().tensors) held.insert(with_stars(tensor.name));
  const auto is_held = [&](const OptionValues& form, const LayoutOption& option) {
    const std::set<std::string> own = names_with(model, form, option);
    return std::any_of(own.begin(), own.end(), [&](const std::string& name) { return held.count(name) > 0; });
  };
  std::vector<const LayoutOption*> options;
  for (const NxdiSetting& setting : nxdi_settings()) options.push_back(setting.option);
  std::stable_partition(options.begin(), options.end(),
                        [&](const LayoutOption* option) { return declared.has(option->name); });
  OptionValues form;
  if (const auto kernels = kernels_of(declared, "from-"))
    form.set(kKernels.name, kernels_text(*kernels));
  else if (has_quantized_mlp_kernel(shards.files.front().front().tensors))
    form.set(kKernels.name, std::string(kQuantizedMlpKernel));
  constexpr std::uint64_t kAnyDegree = 2;
  for (int round = 0; round < 2; ++round)  // the names of one setting may depend on another
    for (const LayoutOption* option : options)
      if (is_held(form, *option)) form = with_setting(form, *option, kAnyDegree);
  std::vector<std::string> divisors;
  for (std::uint32_t degree = 2; degree <= shards.tp; ++degree)
    if (shards.tp % degree == 0) divisors.push_back(std::to_string(degree));
  std::vector<Unknown> unknowns{{&kDraftDegree, {""}}};
  for (const LayoutOption* option : options) {
    if (form.has(option->name) && !is_held(form, *option)) form.erase(option->name);
    const bool is_shown = form.has(option->name), is_declared = declared.has(option->name);
    const bool is_degree = option->type != LayoutOption::Type::kFlag;
    const bool has_no_names = !is_shown && names_with(model, form, *option).empty();
    if (is_declared && ((has_no_names && has_effect(model, form, *option)) || (is_shown && is_degree)))
      form.set(option->name, declared.all().at(option->name));
    else if (is_shown && is_degree)
      unknowns.push_back({option, divisors});
  }
  std::vector<std::string>& of_draft = unknowns.front().values;
  if (declared.has(kDraftDegree.name))
    of_draft = {declared.all().at(kDraftDegree.name)};
  else if (declared.choice(kFusedModel) != kFusedModel.default_value)
    for (std::uint32_t degree = shards.tp / 2; degree > 0; --degree)
      if (shards.tp % degree == 0) of_draft.push_back(std::to_string(degree));
  const HeldTensors tensors(shards.files.front().front());
  const RuleShapes shapes(model);
  const auto misfits = [&](const OptionValues& tried) {
    return misfits_of(read_rules(shards, model, tried, holds), tensors, shapes).size();
  };
  if (fit_form(form, unknowns, misfits)) return form;
  const auto context =
      std::find_if(unknowns.begin(), unknowns.end(), [](const Unknown& one) { return one.option == &kContextDegree; });
  if (context == unknowns.end()) return form;
  // Both degrees of attention result in the same names.
  OptionValues other = form;
  other.erase(kContextDegree.name);
  context->option = &kAttentionDataDegree;
  return fit_form(other, unknowns, misfits) ? other : form;  // if none fits, the error names a tensor
}

/// Validates the sizes of the first rank's tensors, if the model may have padding that only neuron_config.json shows.
void validate_unpadded(const ShardedCheckpoint& shards, const Model& model, const OptionValues& form,
                       const std::vector<PartitionRule>& rules) {
  bool may_be_padded = false;
  std::string options;
  for (const LayoutOption* option : {&kPaddedHidden, &kPaddedIntermediate, &kShardOnIntermediate}) {
    const OptionValues padded = with_setting(form, *option, tried_degree(form, *option));
    if (form.has(option->name) || !has_effect(model, padded, *option)) continue;
    may_be_padded = true;
    if (option->of_source) options += fmt::format(" or set `from-{}`", option->name);
  }
  if (!may_be_padded) return;
  const HeldTensors held(shards.files.front().front());
  const std::vector<std::string> misfits = misfits_of(rules, held, RuleShapes(model));
  if (misfits.empty() || !held.has(misfits.front())) return;
  throw held
      .error(ErrorKind::kBadInput, misfits.front(),
             fmt::format("its shape {} does not fit its partition over {} ranks",
                         to_string(held.find(misfits.front())->shape), shards.tp))
      .hint(
          "the last ranks are missing, config.json belongs to another model, or the model was padded: copy its "
          "neuron_config.json next to the folder with the weights" +
          options);
}

/// Removes `wrapper` from the name of a tensor in a wrapped module.
std::string unwrapped(std::string name, const std::string& wrapper) {
  if (const auto at = name.find(wrapper + "."); at != std::string::npos) name.erase(at, wrapper.size());
  return name;
}

/// Returns the shapes that files record for one of their models.
OriginalShapes originals_of(const OriginalShapes& shapes, const std::string& chosen) {
  OriginalShapes own;
  for (const auto& [name, shape] : shapes) {
    const auto role = std::find_if(std::begin(kModels), std::end(kModels), [&, &name = name](const std::string& model) {
      return name.starts_with(model + ".");
    });
    if ((role == std::end(kModels) ? kModels[0] : *role) != chosen) continue;
    own.emplace(role == std::end(kModels) ? name : name.substr(chosen.size() + 1), shape);
  }
  return own;
}

/// Restricts the files to the tensors of one model, under its own names: files may contain the target and the draft of a
/// speculation, adapters next to their base, and Medusa's heads.
void select_model(const OptionValues& options, ShardedCheckpoint& shards, Checkpoint& checkpoint) {
  const Scheme& scheme = inference_scheme();
  const std::string chosen = options.choice(kFusedModel);
  const std::string& prefix = scheme.models.at(chosen);
  std::set<std::string> others, left_out;
  bool is_fused = false;
  const auto other_model_of = [&](const std::string& name) {
    for (const auto& [model, start] : scheme.models)
      if (name.starts_with(start)) return model;
    return std::string();
  };
  for (std::vector<Container>& of_stage : shards.files)
    for (Container& file : of_stage) {
      std::vector<TensorEntry> kept;
      for (TensorEntry& tensor : file.tensors) {
        const std::string model = other_model_of(tensor.name);
        is_fused = is_fused || !model.empty();
        if (!model.empty() && model != chosen) {
          others.insert(model);
          continue;
        }
        if (!model.empty()) tensor.name.erase(0, prefix.size());
        const auto is_in = [&](const std::string& part) { return tensor.name.find(part) != std::string::npos; };
        if (std::any_of(scheme.left_out.begin(), scheme.left_out.end(), is_in)) {
          left_out.insert(with_stars(tensor.name));
          continue;
        }
        tensor.name = unwrapped(std::move(tensor.name), scheme.wrapper);
        kept.push_back(std::move(tensor));
      }
      file.tensors = std::move(kept);
      if (!file.tensors.empty()) continue;
      throw Error(ErrorKind::kBadInput, fmt::format("contains no {} model", chosen))
          .in(file.path)
          .hint(fmt::format("`{}` applies to files of a fused speculation", kFusedModel.name));
    }
  if (chosen != kFusedModel.default_value && !is_fused)
    throw Error(ErrorKind::kUsage, fmt::format("`{}` {}: the files contain one model", kFusedModel.name, chosen))
        .in(checkpoint.path)
        .hint(fmt::format("leave out `{}`", kFusedModel.name));
  for (const std::string& model : others)
    checkpoint.notes.chosen(fmt::format("only the {} model is read; `{}` {}, with its `config`, reads the other one",
                                        chosen, kFusedModel.name, model));
  if (shards.record) {
    RankRecord& record = *shards.record;
    for (std::set<std::string>* names : {&record.transposed, &record.scaled}) {
      std::set<std::string> own;
      for (const std::string& name : *names)
        if (const std::string model = other_model_of(name); model.empty() || model == chosen)
          own.insert(unwrapped(name.substr(model.empty() ? 0 : prefix.size()), scheme.wrapper));
      *names = std::move(own);
    }
    record.originals = std::make_shared<const OriginalShapes>(originals_of(*record.originals, chosen));
  }
  if (!left_out.empty())
    checkpoint.notes
        .left_out(
            "left out: adapters, whose scales and ranks the files do not contain, and Medusa's heads, which are in "
            "medusa_heads.pt of the original model: " +
            list_names(std::vector<std::string>(left_out.begin(), left_out.end())))
        .of({left_out.begin(), left_out.end()});
}

/// Returns the files of the ranks `all` with only the tensors that are not in `kept`.
std::vector<Container> rest_of(std::vector<Container> all, const std::vector<Container>& kept) {
  const auto place_of = [](const TensorEntry& tensor) { return std::pair(tensor.offset_bytes, tensor.size_bytes); };
  for (std::size_t tp_rank = 0; tp_rank < all.size(); ++tp_rank) {
    std::set<std::pair<std::uint64_t, std::uint64_t>> places;
    for (const TensorEntry& tensor : kept[tp_rank].tensors) places.insert(place_of(tensor));
    std::erase_if(all[tp_rank].tensors, [&](const TensorEntry& one) { return places.count(place_of(one)) > 0; });
  }
  return all;
}

/// Returns the tensors of `rest` and of files of adapters in `folder`. A tensor's name ends with its file.
SourceMap read_unread_tensors(Files& files, const fs::path& folder, std::vector<Container> rest) {
  for (const DirectoryEntry& entry : files.list(folder))
    if (entry.name.ends_with(kHostFileEnding))
      rest.push_back(read_container(files, folder / entry.name, Format::kSafetensors));
  for (Container& file : rest)
    for (TensorEntry& tensor : file.tensors) tensor.name += " in " + file.path.filename().string();
  return whole_map(rest);
}

/// Notes the parameters that the files contain as results of rounded operations.
void note_lost_digits(const std::vector<PartitionRule>& rules, Checkpoint& checkpoint) {
  const std::set<std::string> names = rounded_in(rules);
  if (!names.empty())
    checkpoint.notes
        .changed(
            "the files contain sums and quotients that NxD Inference rounded, so that parameters have lost digits that "
            "cannot be recovered: " +
            list_names(std::vector<std::string>(names.begin(), names.end())))
        .of({names.begin(), names.end()});
}

/// Sets the model that the files contain, under the names of the larger model that config.json describes.
void set_prefixed_model(Checkpoint& checkpoint) {
  Model& model = *checkpoint.model;
  const LanguageModel& found = checkpoint.language_model;
  if (!model.family->inference || !found.family || !found.config.json) return;
  if (!model.is_part || model.family->inference->prefix.empty()) return;
  Model served = instantiate(with_inference_prefix(found).family, found.config);
  served.renamed = served.family->layers != found.family->layers;
  served.is_part = model.is_part;
  served.family_from = model.family_from;
  served.find_other_families = model.find_other_families;
  model = std::move(served);
}

}  // namespace

void explain_nxdi(Files& files, const OptionValues& options, ShardedCheckpoint& shards, Checkpoint& checkpoint) {
  const std::vector<Container> all = shards.files.front();
  const Notes noted = checkpoint.notes;
  select_model(options, shards, checkpoint);
  checkpoint.unread.notes = checkpoint.notes;
  checkpoint.unread.notes.remove(noted);
  if (shards.record && !shards.record->scaled.empty()) throw scaled_error(shards.files.front().front().path);
  recognise_rank_quantization(shards, checkpoint);
  set_prefixed_model(checkpoint);
  const Model& model = *checkpoint.model;
  validate_named(model);
  // The settings of a draft are not those of its target.
  const bool is_draft = options.choice(kFusedModel) != kFusedModel.default_value;
  if (is_draft && !checkpoint.config.is_given)
    throw Error(ErrorKind::kUsage, fmt::format("`{}` {}: the draft has a configuration of its own", kFusedModel.name,
                                               options.choice(kFusedModel)))
        .in(checkpoint.path)
        .hint("set `config` to the directory of the draft, or to its config.json");
  OptionValues declared =
      declared_options(files, checkpoint, options.choice(kFusedModel), shards.record.has_value(), options);
  erase_usual_degree(declared, shards.tp);
  find_head_padding(shards, model, declared);
  validate_padded_split(shards, checkpoint);
  std::set<std::string> held;
  for (const TensorEntry& tensor : shards.files.front().front().tensors) held.insert(tensor.name);
  const auto holds = [&](const std::string& name) { return held.count(name) > 0; };
  const OptionValues form = form_of(shards, model, declared, holds);
  if (form.flag(kMxfp4Compute.name) && !declared.flag(kMxfp4Compute.name))
    throw Error(ErrorKind::kBadInput,
                "has experts in MXFP4, but the files do not show what else is shuffled, and what is added to biases")
        .in(checkpoint.path)
        .hint("copy the neuron_config.json of the compiled model next to the folder with the weights");
  const std::set<std::string> left_out = add_scales_in_files(shards, checkpoint, nxdi_names(model, form), declared);
  if (!options.has(kFusedModel.name))
    checkpoint.unread.read = [&files, folder = shards.folder.path, rest = rest_of(all, shards.files.front())] {
      return read_unread_tensors(files, folder, rest);
    };
  std::vector<PartitionRule>& rules = shards.rules.emplace_back(read_rules(shards, model, form, holds));
  std::erase_if(rules, [&](const PartitionRule& rule) { return left_out.count(rule.stored_name) > 0; });
  validate_unpadded(shards, model, form, rules);
  note_lost_digits(rules, checkpoint);
  const std::optional<Kernels> given = kernels_of(declared, "from-");
  const Kernels kernels = kernels_in_files(shards, rules, model, given);
  if (!kernels.empty() && !given && !shards.record)
    checkpoint.notes.assumed(
        "the weights are transposed for NxD Inference's kernels; without neuron_config.json it is unknown whether "
        "fused_rmsnorm_skip_gamma changed their values");
  transpose_rules(rules, kernels);
  checkpoint.form = form;
  checkpoint.form.erase(kKernels.name);
  if (!kernels.empty()) checkpoint.form.set(kKernels.name, kernels_text(kernels));
}

bool is_nxdi(const std::vector<TensorEntry>& tensors) {
  constexpr const char* kNumberName = "rank_util.rank";
  constexpr std::string_view kLayers = "layers.";  // other checkpoints have a prefix before it
  return std::any_of(tensors.begin(), tensors.end(), [&](const TensorEntry& tensor) {
    std::string name = tensor.name;
    for (const auto& [model, prefix] : inference_scheme().models)
      if (name.starts_with(prefix)) name.erase(0, prefix.size());
    return name == kNumberName || (name.starts_with(kLayers) && name.find("qkv_proj.") != std::string::npos);
  });
}

}  // namespace reshard
