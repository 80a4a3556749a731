#include "reshard/plan/target/target.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/paths.h"
#include "reshard/base/strings.h"
#include "reshard/formats/safetensors/hf_index.h"
#include "reshard/io/files.h"
#include "reshard/layouts/optimizer/optimizer_ids.h"
#include "reshard/layouts/ranks/rank_layout.h"
#include "reshard/plan/target/cast_dtypes.h"
#include "reshard/plan/target/companions.h"
#include "reshard/plan/target/config_dtype.h"
#include "reshard/plan/target/trainer_files.h"
#include "reshard/specs/config/model_config.h"
#include "reshard/specs/config/ties.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Whether it is a tied copy in the source; of those of several ranks, the first.
bool is_tied_once(const Job& job, const StoredTensor& tensor) {
  return tensor.tied && job.source.files[tensor.file].tp_rank == 0 && job.source.files[tensor.file].ep_rank == 0;
}

/// A second name of a tensor in the source's files is compared with it. Hugging Face's files do not have it.
void note_tied(Job& job) {
  std::set<std::string> noted;  // it may be stored in many chunks
  for (std::size_t l = 0; l < job.source.pieces.size(); ++l)
    for (const Piece& piece : job.source.pieces[l]) {
      const StoredTensor& tensor = job.source.stored[piece.stored];
      if (!is_tied_once(job, tensor)) continue;
      const std::string name = printable(tensor.name.text());
      if (!noted.insert(name).second) continue;
      job.notes.push_back(
          fmt::format("{} is tied to {}: the two are compared, and {}", name, printable(job.source.logical[l].name),
                      job.layout->traits().has_ranks ? "the replica in the files is left out when they are consolidated"
                                                     : "it is left out, as Hugging Face's file has it once"));
    }
}

/// The dtype that config.json names, if it names one. Of both keys Transformers takes `dtype`.
std::optional<DType> config_dtype(const ModelConfig& config) {
  const JsonObject object(*config.json, config.path);
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (!object.has(key) || object.at(key).is_null()) continue;
    const Json& value = object.at(key);
    for (const DTypeRow& row : kDTypes)
      if (*row.torch_name != '\0' && value == row.torch_name) return row.dtype;
    object.fail(key, "the name of a dtype, such as \"bfloat16\"");
  }
  return std::nullopt;
}

/// Whether a found checkpoint of ranks has no optimizer beside its weights, so that these alone can be hidden.
bool is_model_alone(Files& files, const FoundLayout& found) {
  const auto* const ranks = dynamic_cast<const RankLayout*>(found.layout);
  if (ranks == nullptr) return false;
  const auto optimizer = ranks->optimizer_folder(found.path);
  return !optimizer || *optimizer == found.path || !files.exists(*optimizer);
}

/// The folder that the files with weights of a found checkpoint lie in.
fs::path weights_folder_of(const FoundLayout& found) {
  const auto* const ranks = dynamic_cast<const RankLayout*>(found.layout);
  return ranks == nullptr ? found.path : ranks->weights_folder(found.path);
}

/// Where ranks of another layout lie in the output directory itself, no path would stand for them alone any more. Whole
/// weights may join a model's ranks, which they are.
void validate_alone(Files& files, const Layout& target, const TargetPlan& plan, const fs::path& output_directory) {
  const auto replaces = [&](const fs::path& folder) {
    return folder != output_directory &&
           std::any_of(plan.map.files.begin(), plan.map.files.end(),
                       [&](const TensorFile& file) { return lies_inside(output_directory / file.path, folder); });
  };
  if (!files.is_directory(output_directory)) return;
  try {
    for (const Layout* layout : layouts()) {
      const LayoutTraits& traits = layout->traits();
      if (layout == &target || !traits.has_ranks) continue;
      for (const FoundLayout& found : layout->recognise(files, output_directory))
        if (found.path == output_directory && !found.is_empty && !replaces(weights_folder_of(found)) &&
            (target.traits().has_ranks || !is_model_alone(files, found)))
          throw Error(ErrorKind::kBadInput, fmt::format("holds a sharded checkpoint in layout {}, which could not be "
                                                        "read with another beside it",
                                                        traits.name))
              .in(output_directory)
              .hint("move its files away or choose another output directory");
    }
  } catch (const Error& error) {
    if (error.code() != std::errc::permission_denied) throw;  // what may be written to need not be readable
  }
}

/// What a target keeps of the source's partition. Replicas and padding of heads belong to one number of ranks.
PartitionOptions kept_partition(const Job& job, const TargetRequest& request) {
  PartitionOptions kept = job.source_partition;
  if (request.tp.value_or(1) == job.mesh.tp) return kept;
  kept.kv_size_multiplier.reset();
  kept.pad_heads = false;
  return kept;
}

}  // namespace

ReadContext context_of(const SourceRequest& request, ConfigUse use, const Layout* target) {
  ReadContext context{use, request.family, request.options, {request.config}, request.with_optimizer};
  context.extra = request.extra;
  context.with_groups = request.with_optimizer && target != nullptr && target->traits().writes_groups;
  return context;
}

std::unique_ptr<Job> start_job(std::string command, Checkpoint& checkpoint, fs::path output_directory, bool force) {
  auto job = std::make_unique<Job>();
  job->command = std::move(command);
  job->source_directory = checkpoint.path;
  job->model_directory = checkpoint.directory;
  job->output_directory = std::move(output_directory);
  job->force = force;
  job->family = checkpoint.model_type;
  job->mesh = checkpoint.mesh;
  job->source_partition = checkpoint.partition;
  job->notes = std::move(checkpoint.notes);
  job->index_metadata = std::move(checkpoint.index_metadata);
  job->index_metadata_file = std::move(checkpoint.index_metadata_file);
  job->source = std::move(checkpoint.map);
  return job;
}

std::string state_option(const TargetRequest& target) {
  for (const Layout* layout : layouts())
    for (const LayoutOption* option : layout->options())
      if (option->of_states && target.options.has(option->name)) return option->name;
  return {};
}

std::string rank_option(const TargetRequest& target) {
  const std::pair<const char*, bool> options[] = {{"tp", target.tp.has_value()},
                                                  {"pp", target.pp.has_value()},
                                                  {"vpp", target.vpp != 1},
                                                  {"ep", target.ep.has_value()},
                                                  {"pipeline-cuts", !target.pipeline_cuts.empty()}};
  for (const auto& [option, given] : options)
    if (given) return option;
  return state_option(target);
}

void validate_takes_states(const SourceRequest& source, const Layout& target) {
  if (!source.with_optimizer || target.traits().writes_states) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("`with-optimizer`: checkpoints of layout {} have no place for the states of "
                          "an optimizer",
                          target.traits().name))
      .hint("of the layouts, these have: " +
            layout_names([](const Layout& layout) { return layout.traits().writes_states; }));
}

void validate_has_states(const SourceRequest& request, const Checkpoint& checkpoint) {
  if (!request.with_optimizer) return;
  if (checkpoint.layout == nullptr || !checkpoint.layout->traits().reads_states)
    throw Error(ErrorKind::kUsage, fmt::format("`with-optimizer`: {} is no checkpoint whose optimizer can be read",
                                               checkpoint.layout == nullptr
                                                   ? "a file of tensors"
                                                   : fmt::format("one in layout {}", checkpoint.layout->traits().name)))
        .in(checkpoint.path)
        .hint("it is for sources in layout " +
              layout_names([](const Layout& layout) { return layout.traits().reads_states; }));
  if (checkpoint.states.empty())
    throw Error(ErrorKind::kBadInput, "holds a model, and nothing of an optimizer")
        .in(checkpoint.path)
        .hint("do without `with-optimizer`, or give the directory that holds both");
}

void validate_has_tensors(const TensorMap& source, const Checkpoint& checkpoint) {
  if (source.tensor_count() > 0) return;
  const bool has_optimizer =
      !checkpoint.states.empty() || (checkpoint.beside_model && !checkpoint.beside_model->empty());
  if (!has_optimizer) throw Error(ErrorKind::kBadInput, "holds no tensors").in(checkpoint.path);
  const std::string& model = checkpoint.model_elsewhere.string();
  throw Error(ErrorKind::kBadInput, "holds states of a training run, such as an optimizer's, and no tensors of a model")
      .in(checkpoint.path)
      .hint(model.empty() ? "give the directory that holds the model"
                          : fmt::format("give the directory above, or the model's: {}", model));
}

void validate_names(const Checkpoint& checkpoint, const Layout& target) {
  if (checkpoint.names_of.empty() || target.traits().has_ranks) return;  // these need a model, or take any names
  throw Error(
      ErrorKind::kBadInput,
      fmt::format("its tensors have {}'s names, and only the model's config.json says what the model calls them",
                  checkpoint.names_of))
      .in(checkpoint.path)
      .hint(checkpoint.config.empty() ? "say with `config` where the model's config.json is"
                                      : hint_for_model(checkpoint));
}

void note_states_left(Job& job, const Checkpoint& checkpoint, const Layout& target) {
  if (checkpoint.leaves_states && target.traits().writes_states)
    job.notes.push_back("training cannot go on from the model alone: `with-optimizer` takes its optimizer along");
}

std::vector<std::string> plan_target(Files& files, Job& job, const TargetRequest& request, const Model* model,
                                     const std::vector<LogicalTensor>& logical, const TrainingStates* states) {
  const LayoutTraits& traits = request.layout->traits();
  job.layout = request.layout;
  job.options = request.options;
  job.format = format_of(request);
  const bool has_ids = states != nullptr && !states->has_names();
  if (has_ids && !traits.writes_groups)
    throw Error(ErrorKind::kUsage,
                fmt::format("`from-optimizer-groups` ids: layout {} has names, and no ids", traits.name))
        .in(job.model_directory)
        .hint("say by which rule parameters were grouped, or take the source's own layout");
  TargetPlan plan;
  try {
    const TrainingStates* some = states == nullptr || states->empty() ? nullptr : states;
    plan = request.layout->plan(request, {model, logical, job.index_metadata, job.index_metadata_file, some,
                                          job.mesh.dp, kept_partition(job, request)});
  } catch (Error& error) {  // a layout knows the tensor, but not where it is
    const bool is_of_source =
        error.kind() == ErrorKind::kBadInput || (error.kind() == ErrorKind::kUnsupported && !error.tensor().empty());
    if (is_of_source && error.path().empty()) error.in(job.model_directory);
    throw;
  }
  if (has_ids) validate_same_ranks(job.source, plan.map);
  validate_alone(files, *request.layout, plan, job.output_directory);
  request.layout->validate_beside(files, plan, job.output_directory);
  if (traits.has_ranks) job.mesh = plan.mesh;
  job.partition = std::move(plan.partition);
  job.cut_names = std::move(plan.cut_names);
  job.attention = std::move(plan.attention);
  job.text_files = std::move(plan.map.text_files);
  for (TextFile& file : plan.text_files) job.text_files.push_back(std::move(file));
  if (traits.has_ranks && !job.index_metadata.empty() && plan.has_first_rank)  // of runs that share it, the first
    job.text_files.push_back(
        {kKeptIndexMetadataFile, kept_index_metadata_text(job.index_metadata), job.index_metadata_file});
  if (traits.whole_folder) job.whole_folders = {traits.folder};
  for (fs::path& folder : plan.whole_folders) job.whole_folders.push_back(std::move(folder));
  job.shares_directory = plan.is_partial;
  job.notes.insert(job.notes.end(), plan.notes.begin(), plan.notes.end());
  std::vector<std::uint32_t> transposed;  // which the source is read in another order for
  for (const std::uint32_t index : plan.map.transposed)
    if (const auto source = job.source.find_logical(plan.map.logical[index].name)) transposed.push_back(*source);
  job.source.transpose(transposed);
  std::map<DType, std::size_t> narrow;  // copies, which are master weights
  for (const TargetPlan::Copy& copy : plan.copies) {
    const std::uint32_t source = job.source.find_logical(copy.of).value();
    job.source.add_copy(source, copy.name, TensorRole::kState);
    if (const DType dtype = job.source.logical[source].dtype; bits(dtype) < bits(DType::kF32)) ++narrow[dtype];
  }
  for (const auto& [dtype, count] : narrow)
    job.notes.push_back(fmt::format("the source has no master weights of {} parameter{}: they are made of {} weights",
                                    count, count == 1 ? "" : "s", name(dtype)));
  job.target = std::move(plan.map);
  job.target.text_files.clear();
  note_tied(job);
  return std::move(plan.without_place);
}

void take_model_dtypes(Job& job, std::vector<LogicalTensor>& logical) {
  std::map<std::pair<DType, bool>, std::size_t> counts;  // by dtype, and whether float64 alone is why
  for (LogicalTensor& tensor : logical) {
    if (!tensor.model_dtype) continue;
    const bool is_wide = tensor.dtype == DType::kF64 && *tensor.model_dtype == DType::kF32;
    tensor.dtype = *std::exchange(tensor.model_dtype, std::nullopt);
    ++counts[{tensor.dtype, is_wide}];
  }
  for (const auto& [how, count] : counts)
    job.notes.push_back(fmt::format("{} tensor{} {} cast {}", count, count == 1 ? "" : "s", count == 1 ? "is" : "are",
                                    how.second
                                        ? std::string("from F64 to F32")
                                        : fmt::format("to {}, which the model was trained in", name(how.first))));
}

void take_config_dtype(Files& files, Job& job, const Layout& layout, const fs::path& config_file,
                       std::vector<LogicalTensor>& logical) {
  if (!layout.traits().casts_to_config_dtype || config_file.empty()) return;
  const std::optional<DType> wanted = config_dtype(read_model_config_file(files, config_file));
  if (!wanted) return;
  const auto is_plain = [](DType dtype) {
    return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
  };
  std::size_t count = 0;
  for (LogicalTensor& tensor : logical) {
    if (!is_plain(*wanted) || !is_plain(tensor.dtype) || tensor.dtype == *wanted) continue;
    tensor.dtype = *wanted;
    ++count;
  }
  if (count != 0)
    job.notes.push_back(fmt::format("{} of the tensors are cast to {}, which config.json says", count, name(*wanted)));
}

void note_config_dtype(Files& files, Job& job, const Checkpoint& source, const std::vector<LogicalTensor>& logical) {
  if (source.config.empty()) return;
  std::optional<DType> wanted;
  try {
    wanted = config_dtype(read_model_config_file(files, source.config));
  } catch (const Error& error) {  // an unknown dtype: nothing to compare with
    if (error.kind() == ErrorKind::kIo) throw;
    return;
  }
  const auto count = std::count_if(logical.begin(), logical.end(), [&](const LogicalTensor& tensor) {
    return tensor.dtype == DType::kF32 && tensor.dtype != wanted;
  });
  if (!wanted || describe(*wanted).kind != DTypeClass::kFloat || count == 0) return;
  const bool is_all = std::all_of(logical.begin(), logical.end(), [](const LogicalTensor& tensor) {
    return tensor.dtype == DType::kF32 || describe(tensor.dtype).kind != DTypeClass::kFloat;
  });
  if (!source.beside_model && !is_all) return;  // a model may have a few parameters in float32
  job.notes.push_back(fmt::format("{} tensor{} float32{}, though config.json says {}: `dtype` {} casts {}", count,
                                  count == 1 ? " is" : "s are", source.beside_model ? ", as in training" : "",
                                  describe(*wanted).torch_name, describe(*wanted).torch_name,
                                  count == 1 ? "it" : "them"));
}

void take_dtypes(Files& files, Job& job, const Checkpoint& source, const Layout& target, std::optional<DType> dtype,
                 std::vector<LogicalTensor>& logical) {
  job.dtype = dtype;
  if (dtype) {
    cast_tensors(job, logical, {*dtype}, read_ordered_config(files, source.config));
    return;
  }
  take_model_dtypes(job, logical);
  take_config_dtype(files, job, target, source.config, logical);
  if (!target.traits().casts_to_config_dtype) note_config_dtype(files, job, source, logical);
}

void validate_outside(Files& files, const fs::path& output_directory, const Checkpoint& source) {
  if (!source.has_ranks()) return;
  const fs::path folder = files.resolve(source.path);
  const fs::path output = files.resolve(output_directory);
  const auto beside = source.layout->default_output(files, source.found());
  if (beside && output == folder && folder == files.resolve(*beside)) return;  // the ranks are in a folder below
  if (lies_inside(output, folder))
    throw Error(ErrorKind::kUsage, "the output directory is inside the shards folder")
        .in(output_directory)
        .hint("choose another output directory");
}

bool is_in_place(Files& files, const fs::path& config, const fs::path& output_directory) {
  return config.filename() == kConfigFile &&
         files.resolve(files.absolute(config).parent_path()) == files.resolve(output_directory);
}

namespace {

void replace_copy(std::vector<CopiedFile>& copies, CopiedFile file) {
  std::erase_if(copies, [&](const CopiedFile& copied) { return copied.path == file.path; });
  copies.push_back(std::move(file));
}

/// The other files of the checkpoint's directory, and of a step of a run its own, too.
Companions companions_of(Files& files, const Checkpoint& source, std::vector<fs::path> left_out) {
  Companions found = companion_files(files, source.directory, left_out);
  if (!is_step_of_run(files, source)) return found;
  std::erase_if(found.files, [](const CopiedFile& copied) { return is_trainer_file(copied.path); });
  left_out.push_back(source.directory);  // which may be a folder of the step
  Companions own = companion_files(files, source.path, left_out);
  for (CopiedFile& file : own.files)
    if (!is_trainer_file(file.path)) replace_copy(found.files, std::move(file));
  std::move(own.notes.begin(), own.notes.end(), std::back_inserter(found.notes));
  std::move(own.weights.begin(), own.weights.end(), std::back_inserter(found.weights));
  return found;
}

/// Names every file with weights that is neither read nor copied.
void note_weights_left(Files& files, Job& job, const Checkpoint& source, const std::vector<fs::path>& weights) {
  const auto plain = [&](const fs::path& path) { return files.absolute(path).lexically_normal(); };
  std::set<fs::path> read;
  if (!weights.empty()) {
    for (const TensorFile& file : job.source.files) read.insert(plain(file.path));
    for (const CopiedFile& file : job.copied_files) read.insert(plain(file.source));  // a trainer's
  }
  std::vector<std::string> left;
  for (const fs::path& path : weights)
    if (read.count(plain(path)) == 0) left.push_back(path.lexically_relative(source.directory).string());
  if (!left.empty())
    job.notes.push_back(fmt::format("left out, as {} not among the model's weights: {}",
                                    left.size() == 1 ? "it is" : "they are", list_names(left, SIZE_MAX)));
}

/// Names the tokenizer files in the output directory that the job does not replace: they may be another model's.
void note_old_tokenizer(Files& files, Job& job, const std::vector<fs::path>& own) {
  if (files.kind_of(job.output_directory) != FileKind::kDirectory ||
      std::any_of(own.begin(), own.end(),
                  [&](const fs::path& one) { return files.is_same(one, job.output_directory); }))
    return;
  std::vector<std::string> old;
  for (const CopiedFile& file : tokenizer_files(files, job.output_directory))
    if (std::none_of(job.copied_files.begin(), job.copied_files.end(),
                     [&](const CopiedFile& copied) { return copied.path == file.path; }))
      old.push_back(file.path.string());
  if (!old.empty())
    job.notes.push_back(fmt::format("{} stay{} in the output directory, and may be of another model", list_names(old),
                                    old.size() == 1 ? "s" : ""));
}

/// If no tokenizer comes along, copies the one next to the config.json that the user names, or else the checkpoint's own.
void carry_tokenizer(Files& files, Job& job, const Checkpoint& source) {
  std::vector<fs::path> directories;
  if (source.config_given)
    directories.push_back(source.config.has_parent_path() ? source.config.parent_path() : fs::path("."));
  if (source.layout != nullptr) directories.push_back(source.directory);
  const fs::path output = files.resolve(job.output_directory);
  fs::path taken;  // the directory whose tokenizer the output has
  if (std::any_of(job.copied_files.begin(), job.copied_files.end(),
                  [](const CopiedFile& file) { return is_tokenizer(file.path.string()); }))
    taken = source.directory;
  for (const fs::path& directory : directories) {
    std::vector<CopiedFile> found = tokenizer_files(files, directory);
    if (found.empty() || files.is_same(directory, taken)) continue;
    if (taken.empty()) {
      taken = directory;
      if (files.resolve(directory) == output) continue;  // it is there
      for (CopiedFile& file : found) replace_copy(job.copied_files, std::move(file));
    } else {
      job.notes.push_back(fmt::format("the tokenizer is that of {}, and the one in {} is left out", taken.string(),
                                      directory.string()));
    }
  }
  note_old_tokenizer(files, job, directories);
}

}  // namespace

namespace {

/// A trainer that goes on with the output would read what another save has left there.
void validate_no_trainer_files(Files& files, const Job& job) {
  std::vector<std::string> left;
  for (const char* name : kTrainerFiles)
    if (files.exists(job.output_directory / name) &&
        std::none_of(job.copied_files.begin(), job.copied_files.end(),
                     [&](const CopiedFile& copied) { return copied.path == name; }))
      left.emplace_back(name);
  if (left.empty()) return;
  throw Error(
      ErrorKind::kBadInput,
      fmt::format("holds {} of another save, which a trainer would read beside the new states", list_names(left)))
      .in(job.output_directory)
      .hint("move what it holds away, or choose another output directory");
}

/// Adds config.json, unless it is among the companions and stays as it is.
void carry_config(Files& files, Job& job, const Checkpoint& source) {
  if (source.config.empty() || is_in_place(files, source.config, job.output_directory)) return;
  OrderedJson config = read_compiled_config(files, source.config);
  bool is_new = !config.is_null();
  if (!is_new) config = read_ordered_config(files, source.config);
  if (job.dtype) is_new = set_config_dtype(config, *job.dtype) || is_new;
  if (source.model && source.model->tied_by_files && config.is_object()) {
    set_ties(config, *source.model->tied_by_files);
    is_new = true;
    job.notes.push_back(
        fmt::format("the config.json that is written says \"{}\": {}", kTiedKey, *source.model->tied_by_files));
  }
  if (!is_new && !source.config_given) return;
  std::erase_if(job.copied_files, [](const CopiedFile& file) { return file.path == kConfigFile; });
  if (is_new)
    job.text_files.push_back({kConfigFile, json_text(config, 2) + "\n", source.config});
  else
    job.copied_files.push_back({source.config, kConfigFile, files.size_bytes(source.config)});
}

}  // namespace

void carry_companions(Files& files, Job& job, const Checkpoint& source, const std::vector<fs::path>& left_out) {
  // Without config.json the directory is not known to be a model's: it may be anything, even a home.
  const bool is_models = find_model_config(files, source.directory).has_value();
  const bool in_place = files.resolve(job.output_directory) == files.resolve(source.directory);
  std::vector<fs::path> weights;  // that may stay behind
  if (is_models && !in_place) {
    std::set<fs::path> sources(left_out.begin(), left_out.end());  // the checkpoint itself needs no note
    for (const TensorFile& file : job.source.files) sources.insert(file.path.parent_path());
    Companions companions = companions_of(files, source, {sources.begin(), sources.end()});
    job.copied_files = std::move(companions.files);
    job.notes.insert(job.notes.end(), companions.notes.begin(), companions.notes.end());
    weights = std::move(companions.weights);
  } else if (!in_place && source.layout != nullptr) {
    weights = weights_in(files, source.directory);
  }
  carry_config(files, job, source);
  carry_tokenizer(files, job, source);
  if (!source.states.empty() && job.layout->traits().writes_states)
    for (CopiedFile& file : trainer_files(files, source)) replace_copy(job.copied_files, std::move(file));
  if (!source.states.empty() && job.layout->traits().writes_groups) validate_no_trainer_files(files, job);
  note_weights_left(files, job, source, weights);
  // What this job writes anew is not carried over from an older one.
  std::erase_if(job.copied_files, [&](const CopiedFile& copied) {
    return copied.path == kKeptIndexMetadataFile ||
           std::any_of(job.text_files.begin(), job.text_files.end(),
                       [&](const TextFile& text) { return text.path == copied.path; });
  });
}

}  // namespace reshard
