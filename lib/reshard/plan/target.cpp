#include "reshard/plan/target.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/paths.h"
#include "reshard/base/strings.h"
#include "reshard/formats/hf_index.h"
#include "reshard/formats/read_container.h"
#include "reshard/io/storage.h"
#include "reshard/layouts/deployed_rules.h"
#include "reshard/layouts/hf_layout.h"
#include "reshard/specs/model_config.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Whether it is a tied copy in the source; of those of several ranks, the first.
bool is_tied_once(const Job& job, const StoredTensor& tensor) {
  return tensor.kind == CutKind::kTied && job.source.files[tensor.file].tp_rank == 0 &&
         job.source.files[tensor.file].ep_rank == 0;
}

void add_notes(Job& job, const Model& model, const ShardingRequest& request) {
  const bool gqa = job.attention && job.attention->form == AttentionForm::kGroupedQuery;
  if (!job.attention && !describe(request.form.kind).deployed) {
    for (const auto& [option, given] : {std::pair("--fuse-qkv", request.attention.fuse_qkv),
                                        {"--kv-size-multiplier", request.attention.kv_size_multiplier.has_value()}})
      if (given)
        job.notes.push_back(fmt::format("{} has no effect: models of {} keep their projections as they are", option,
                                        model.family->model_type));
    return;
  }
  if (request.attention.kv_size_multiplier && !gqa)
    job.notes.push_back(
        fmt::format("--kv-size-multiplier has no effect: {} key/value heads divide over {} ranks as they are",
                    model.kv_heads, request.tp));
  if (request.attention.fuse_qkv && job.attention && !job.attention->joined)
    job.notes.push_back(
        fmt::format("--fuse-qkv has no effect: {} query and {} key/value heads are joined only where they "
                    "are as many, or do not divide over the ranks",
                    model.heads, model.kv_heads));
  for (const StoredTensor& tensor : job.source.stored)
    if (is_tied_once(job, tensor))
      job.notes.push_back("config.json ties " + printable(tensor.name.text()) +
                          " to the embedding: it is compared with it, and its second copy "
                          "in the files is not kept when they are consolidated");
}

/// `trn_config.json`, as optimum-neuron saves it beside its shards (TrainingNeuronConfig, which has no word for
/// expert-parallel ranks).
std::string training_config_text(const Mesh& mesh, const ShardingRequest& request) {
  nlohmann::ordered_json json;
  json["tensor_parallel_size"] = mesh.tp;
  json["pipeline_parallel_size"] = mesh.pp;
  json["virtual_pipeline_parallel_size"] = mesh.vpp;
  json["kv_size_multiplier"] = nullptr;
  if (request.attention.kv_size_multiplier) json["kv_size_multiplier"] = *request.attention.kv_size_multiplier;
  json["fuse_qkv"] = request.attention.fuse_qkv;
  json["use_xser"] = request.form.format == Format::kXser;
  json["sequence_parallel_enabled"] = false;
  return json.dump(4);
}

/// Options that the layout has no room for. NxD's shard_checkpoint knows neither stages nor joined projections, NxD
/// Inference no stages.
void prove_options(const ShardingRequest& request) {
  const ShardsKind kind = request.form.kind;
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::kUsage, fmt::format("the layout {} has no {}", describe(kind).name, what));
  };
  if (request.pad && !describe(kind).deployed) refuse("room for what is filled up (--pad)");
  if (request.ep.value_or(1) != 1 && !describe(kind).has_metadata) refuse("expert-parallel ranks (--ep)");
  if (request.vocab_parallel && kind != ShardsKind::kNxdi)
    refuse("choice of how the embedding is cut (--vocab-parallel)");
  if (request.attention.replication == KvReplication::kAdjacent && kind != ShardsKind::kNxd)
    refuse("place for heads that are repeated beside each other (--kv-replication adjacent)");
  if (request.attention.pad_heads && kind != ShardsKind::kNxd && kind != ShardsKind::kNxdi)
    refuse("room for heads of zeros (--pad-attn-heads)");
  if (!describe(kind).deployed) return;
  if (request.form.format != Format::kSafetensors) refuse("form but safetensors");
  if (request.pp.value_or(1) != 1 || request.vpp != 1 || !request.pipeline_cuts.empty()) refuse("pipeline stages");
  if (request.attention.fuse_qkv && kind != ShardsKind::kNxdi) refuse("joined projections (--fuse-qkv)");
  if (request.attention.kv_size_multiplier) refuse("choice of how often heads are repeated (--kv-size-multiplier)");
}

/// The files of ranks that stand in the output directory, and would stay beside those that are written, belong to the
/// same checkpoint: as many ranks, of originals of the same shapes.
void prove_other_ranks(const Job& job, const ShardingRequest& request) {
  const fs::path folder = job.output_directory / describe(request.form.kind).folder;
  if (!fs::is_directory(folder)) return;
  std::vector<std::string> leftover, others;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const auto rank = presharded_rank(name);
    if (!rank) continue;
    if (rank->tp_rank >= job.mesh.tp) leftover.push_back(name);
    if (rank->tp_rank >= request.form.start_rank && rank->tp_rank <= request.form.end_rank) continue;
    const auto record = read_record(read_container(entry.path(), Format::kSafetensors));
    if (!record || record->tp_degree != job.mesh.tp ||
        *record->originals != *job.target.files.front().record->originals)
      others.push_back(name);
  }
  const auto refuse = [&](const std::string& what, std::vector<std::string>& names) {
    if (names.empty()) return;
    std::sort(names.begin(), names.end(), natural_less);
    throw Error(ErrorKind::kBadInput, what + ": " + list_names(names))
        .in(folder)
        .hint("move them away or choose another OUT_DIR");
  };
  refuse(fmt::format("holds ranks that there are not with --tp {}", job.mesh.tp), leftover);
  refuse("holds ranks of another checkpoint, or of one that was cut in another way", others);
}

/// Says what was filled up, a name for each kind of tensor: layers are alike.
void note_filled(Job& job) {
  std::vector<std::string> names;
  for (std::size_t l = 0; l < job.target.logical.size(); ++l) {
    if (!job.target.logical[l].filler) continue;
    const StoredTensor& tensor = job.target.stored[job.target.pieces[l].front().stored];
    if (tensor.kind == CutKind::kConstant) continue;
    std::string name = with_stars(tensor.name.text());
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
  }
  if (names.empty()) return;
  job.notes.push_back("filled up, as the ranks do not divide their sizes: " + list_names(names));
}

/// Of the ranks that are to be written.
void prove_ranks(const ShardingRequest& request) {
  const std::uint32_t last = request.form.end_rank == UINT32_MAX ? request.tp - 1 : request.form.end_rank;
  const bool all = request.form.start_rank == 0 && request.form.end_rank == UINT32_MAX;
  if (!all && !describe(request.form.kind).deployed)
    throw Error(ErrorKind::kUsage, "--start-rank and --end-rank are of the layouts presharded and nxdi alone");
  if (last >= request.tp || request.form.start_rank > last)
    throw Error(ErrorKind::kUsage, fmt::format("--start-rank {} --end-rank {}: with --tp {} the ranks are 0 to {}",
                                               request.form.start_rank, last, request.tp, request.tp - 1));
}

/// A second name of the embedding in the source's files is not taken over into a whole model.
void note_tied(Job& job) {
  for (const StoredTensor& tensor : job.source.stored)
    if (is_tied_once(job, tensor))
      job.notes.push_back(printable(tensor.name.text()) +
                          " is a tied copy of the embedding: it is compared with it and left out, as Hugging Face's "
                          "file has it once");
}

/// A weight file that stands in the output directory and would not be replaced, though loaders would mix it with the
/// new.
void prove_no_leftover_weights(const Job& job) {
  if (!fs::is_directory(job.output_directory)) return;
  std::vector<std::string> leftover;
  for (const auto& entry : fs::directory_iterator(job.output_directory)) {
    const std::string name = entry.path().filename().string();
    const auto written = [&](const auto& file) { return file.path == name; };
    const bool replaced = std::any_of(job.target.files.begin(), job.target.files.end(), written) ||
                          std::any_of(job.text_files.begin(), job.text_files.end(), written);
    if (is_hf_weights_name(name) && !replaced) leftover.push_back(name);
  }
  std::sort(leftover.begin(), leftover.end());
  if (!leftover.empty())
    throw Error(ErrorKind::kBadInput,
                "holds weights of another checkpoint that would not be replaced, and that loaders would "
                "mix with the new ones: " +
                    list_names(leftover))
        .in(job.output_directory)
        .hint("move them away or choose another OUT_DIR");
}

}  // namespace

std::unique_ptr<Job> start_job(std::string command, Checkpoint& checkpoint, fs::path output_directory, bool force) {
  auto job = std::make_unique<Job>();
  job->command = std::move(command);
  job->source_directory = checkpoint.path;
  job->model_directory = checkpoint.directory;
  job->output_directory = std::move(output_directory);
  job->force = force;
  job->family = checkpoint.model_type;
  job->mesh = checkpoint.mesh;
  job->notes = std::move(checkpoint.notes);
  const bool sharded = checkpoint.what == Checkpoint::What::kSharded;
  job->index_metadata = sharded ? read_kept_index_metadata(checkpoint.directory) : std::move(checkpoint.index_metadata);
  if (!job->index_metadata.empty())
    job->index_metadata_file =
        checkpoint.directory / (sharded ? kKeptIndexMetadataFile : hf_index_name(checkpoint.format));
  job->source = std::move(checkpoint.map);
  return job;
}

Mesh mesh_of(const ShardingRequest& request) {
  Mesh mesh{request.tp, request.pp.value_or(1), request.vpp, request.ep.value_or(1)};
  prove_mesh(mesh);
  if (request.pp || request.pipeline_cuts.empty()) return mesh;
  const std::size_t stages = request.pipeline_cuts.size() + 1;
  if (stages % mesh.vpp != 0)
    throw Error(ErrorKind::kUsage,
                fmt::format("--pipeline-cuts: {} cuts make {} stages, which --vpp {} does not divide",
                            request.pipeline_cuts.size(), stages, mesh.vpp));
  mesh.pp = static_cast<std::uint32_t>(std::min<std::size_t>(stages / mesh.vpp, kMaxParallelDegree + 1));
  prove_mesh(mesh);
  return mesh;
}

void prove_sharding_options(const ShardingRequest& request) {
  prove_options(request);
  prove_ranks(request);
}

void plan_mesh(Job& job, const ShardingRequest& request, const Model& model) {
  job.mesh = mesh_of(request);
  const std::string& layer_prefix = model.family->layers;
  job.partition = request.pipeline_cuts.empty()
                      ? partition_evenly(model.layers, job.mesh)
                      : partition_by_cuts(model.layers, job.mesh, request.pipeline_cuts, layer_prefix);
  for (const std::uint64_t layer : job.partition->cuts())
    job.cut_names.push_back(fmt::format("{}.{}", layer_prefix, layer));
}

namespace {

/// That the model can be split so; where filling up is all that lacks, the error says how to ask for it.
void prove_model(const Model& model, const ShardingRequest& request, const AttentionOptions& options) {
  try {
    prove_split(model, request.tp, options);
  } catch (Error& error) {
    AttentionOptions filled = options;
    const char* option = nullptr;
    if (request.form.kind == ShardsKind::kPresharded) filled.fill_up = true, option = "--pad";
    if (request.form.kind == ShardsKind::kNxd) filled.pad_heads = true, option = "--pad-attn-heads";
    if (option != nullptr && !tensor_parallel_problem(model, request.tp, filled))
      error.hint(fmt::format("{} fills up what {} ranks do not divide; {}", option, request.tp, error.hint()));
    throw;
  }
}

/// Ranks do not share a byte of packed elements.
void prove_whole_bytes(const Model& model, std::uint32_t tp, const AttentionOptions& options,
                       const std::vector<LogicalTensor>& logical) {
  std::unordered_map<std::string_view, const LogicalTensor*> packed;
  for (const LogicalTensor& tensor : logical)
    if (bits(tensor.dtype) % 8 != 0) packed.emplace(tensor.name, &tensor);
  if (packed.empty()) return;
  /// The first tensor of which `degree` ranks would share a byte.
  const auto shared = [&](std::uint64_t degree) -> const LogicalTensor* {
    for (const ModelParameter& parameter : model.parameters) {
      const auto found = packed.find(parameter.name);
      if (found == packed.end() || !parameter.split_dim || split_problem(parameter, degree, false)) continue;
      std::uint64_t inner = bits(found->second->dtype);  // of one element along the dim that is split
      for (std::size_t d = *parameter.split_dim + 1; d < parameter.shape.size(); ++d) inner *= parameter.shape[d] % 8;
      std::vector<std::uint64_t> sizes{parameter.shape[*parameter.split_dim]};
      for (const PackedPart& part : parameter.packed) sizes.push_back(part.size);
      for (const std::uint64_t size : sizes)
        if (size / degree % 8 * (inner % 8) % 8 != 0) return found->second;
    }
    return nullptr;
  };
  const LogicalTensor* tensor = shared(tp);
  if (tensor == nullptr) return;
  std::vector<std::uint64_t> degrees = legal_tp_degrees(model, options);
  std::erase_if(degrees, shared);
  throw Error(ErrorKind::kUsage, fmt::format("{} ranks would share a packed byte: elements of {} have {} bits", tp,
                                             name(tensor->dtype), bits(tensor->dtype)))
      .tensor(tensor->name)
      .hint("TP degrees that work for this model: " + list_numbers(degrees, 24));
}

}  // namespace

void plan_sharded_target(Job& job, const ShardingRequest& request, const Model& model,
                         const std::vector<LogicalTensor>& logical) {
  if (describe(request.form.kind).torch_only && request.form.format == Format::kSafetensors)
    throw Error(ErrorKind::kUsage,
                fmt::format("the layout {} has no safetensors form", describe(request.form.kind).name))
        .hint("choose pytorch or xser");
  const bool deployed = describe(request.form.kind).deployed;
  prove_sharding_options(request);
  plan_mesh(job, request, model);
  AttentionOptions attention = request.attention;
  attention.apart = deployed;
  attention.fill_up = request.pad || request.form.kind == ShardsKind::kNxdi;
  prove_model(model, request, attention);
  prove_whole_bytes(model, request.tp, attention, logical);
  std::unordered_set<std::string_view> held;
  held.reserve(logical.size());
  for (const LogicalTensor& tensor : logical) held.insert(tensor.name);
  const auto holds = [&](const std::string& name) { return held.count(name) > 0; };
  if (attention.fill_up) {
    const DeployedForm form{request.form.kind == ShardsKind::kNxdi, request.attention.fuse_qkv, request.vocab_parallel};
    job.target =
        sharded_target_map(deployed_rules(model, job.mesh.tp, form, holds), job.mesh.tp, logical, request.form);
    note_filled(job);
  } else {
    const auto plans = plan_stages(model, job.mesh.tp, *job.partition, attention, holds, job.mesh.ep);
    job.target = sharded_target_map(plans, job.mesh.tp, logical, request.form, job.mesh.ep);
  }
  if (request.form.kind == ShardsKind::kNxdi)
    job.attention = inference_report(model, request.tp, request.attention);
  else if (model.family->attention && !deployed)
    job.attention = attention_report(model, request.tp, request.attention);
  job.text_files = std::move(job.target.text_files);
  if (request.form.kind == ShardsKind::kOptimum)
    job.text_files.push_back({kTrainingConfigFile, training_config_text(job.mesh, request)});
  if (!job.index_metadata.empty() && request.form.start_rank == 0)  // of runs that share a directory, the first
    job.text_files.push_back(
        {kKeptIndexMetadataFile, kept_index_metadata_text(job.index_metadata), job.index_metadata_file});
  if (describe(request.form.kind).whole) job.whole_folders = {describe(request.form.kind).folder};
  add_notes(job, model, request);
  if (!deployed) return;
  prove_other_ranks(job, request);
  job.shares_directory = request.form.is_partial();
  job.partition.reset();  // of stages there are none
  job.cut_names.clear();
}

namespace {

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

}  // namespace

void take_config_dtype(Job& job, const fs::path& config_file, std::vector<LogicalTensor>& logical) {
  const std::optional<DType> wanted = config_dtype(read_model_config_file(config_file));
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

void plan_hf_target(Job& job, Format format, std::uint64_t max_shard_bytes, const std::vector<LogicalTensor>& logical) {
  job.target = hf_target_map(logical, max_shard_bytes, format);
  note_tied(job);
  if (job.target.files.size() > 1) {
    HfIndex index = index_of(job.target);
    index.metadata = job.index_metadata;
    job.text_files.push_back({hf_index_name(format), hf_index_text(index), job.index_metadata_file});
  }
  prove_no_leftover_weights(job);
}

void prove_outside(const fs::path& output_directory, const Checkpoint& source) {
  if (source.what != Checkpoint::What::kSharded) return;
  const fs::path folder = resolved_path(source.path);
  const fs::path output = resolved_path(output_directory);
  if (output == folder && (folder == resolved_path(source.directory) || source.shards_kind == ShardsKind::kNxd))
    return;  // as NxD saves it, ranks in a folder below
  if (lies_inside(output, folder))
    throw Error(ErrorKind::kUsage, "the output directory is inside the shards folder")
        .in(output_directory)
        .hint("choose another OUT_DIR");
}

bool is_in_place(const fs::path& config, const fs::path& output_directory) {
  return config.filename() == kConfigFile &&
         resolved_path(fs::absolute(config).parent_path()) == resolved_path(output_directory);
}

void carry_companions(Job& job, const Checkpoint& source, const std::vector<fs::path>& left_out) {
  // Without config.json the directory is not known to be a model's: it may be anything, even a home.
  if (path_exists(source.directory / kConfigFile) &&
      resolved_path(job.output_directory) != resolved_path(source.directory)) {
    std::set<fs::path> sources(left_out.begin(), left_out.end());  // the checkpoint itself needs no note
    for (const TensorFile& file : job.source.files) sources.insert(file.path.parent_path());
    Companions companions = companion_files(source.directory, {sources.begin(), sources.end()});
    job.copied_files = std::move(companions.files);
    job.notes.insert(job.notes.end(), companions.notes.begin(), companions.notes.end());
  }
  if (source.config_given) {
    std::erase_if(job.copied_files, [](const CopiedFile& copied) { return copied.path == kConfigFile; });
    if (!is_in_place(source.config, job.output_directory))
      job.copied_files.push_back({source.config, kConfigFile, fs::file_size(source.config)});
  }
  // What this job writes anew is not carried over from an older one.
  std::erase_if(job.copied_files, [&](const CopiedFile& copied) {
    return copied.path == kKeptIndexMetadataFile ||
           std::any_of(job.text_files.begin(), job.text_files.end(),
                       [&](const TextFile& text) { return text.path == copied.path; });
  });
}

}  // namespace reshard
