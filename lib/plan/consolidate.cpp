#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/error.h"
#include "reshard/base/storage.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/hf_layout.h"
#include "reshard/layouts/sharded_layout.h"
#include "reshard/plan/adapters.h"
#include "reshard/plan/job.h"
#include "reshard/specs/metadata.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Names with numbers compared as numbers: layers.2 before layers.10.
bool natural_less(std::string_view a, std::string_view b) {
  std::size_t i = 0;
  std::size_t j = 0;
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  while (i < a.size() && j < b.size()) {
    if (digit(a[i]) && digit(b[j])) {
      std::size_t i_end = i;
      std::size_t j_end = j;
      while (i_end < a.size() && digit(a[i_end])) ++i_end;
      while (j_end < b.size() && digit(b[j_end])) ++j_end;
      if (i_end - i != j_end - j) return i_end - i < j_end - j;
      if (const int order = a.substr(i, i_end - i).compare(b.substr(j, j_end - j))) return order < 0;
      i = i_end;
      j = j_end;
    } else if (a[i] != b[j]) {
      return a[i] < b[j];
    } else {
      ++i;
      ++j;
    }
  }
  return a.size() - i < b.size() - j;
}

void order_naturally(Layout& layout) {
  std::vector<std::string> names;
  for (const LogicalTensor& tensor : layout.logical) names.push_back(tensor.name);
  std::sort(names.begin(), names.end(), natural_less);
  layout.order_logical(names);
}

/// The model that config.json beside the shards describes, if there is one and its family is known.
std::optional<Model> model_beside(const fs::path& directory, Job& job) {
  if (!path_exists(directory / kConfigFile)) {
    job.notes.push_back("there is no config.json in " + directory.string() +
                        ", so whether the checkpoint has every tensor of its model is not known");
    return std::nullopt;
  }
  const ModelConfig config = read_model_config(directory);
  job.family = config.model_type;
  const std::vector<std::string> known = known_model_types();
  if (std::find(known.begin(), known.end(), config.model_type) == known.end()) {
    job.notes.push_back(
        fmt::format("the model_type \"{}\" is not known, so the metadata alone says what the tensors are",
                    printable(config.model_type)));
    return std::nullopt;
  }
  return instantiate(find_family(config), config);
}

/// A weight file that stands in the output directory and would not be replaced, though loaders would mix it with the
/// new.
void prove_no_leftover_weights(const Job& job) {
  if (!fs::is_directory(job.output_directory)) return;
  std::vector<std::string> leftover;
  for (const auto& entry : fs::directory_iterator(job.output_directory)) {
    const std::string name = entry.path().filename().string();
    const bool weights = name == kSafetensorsFile || name == kSafetensorsIndexFile || name == kPytorchFile ||
                         name == kPytorchIndexFile || (name.starts_with("model-") && name.ends_with(".safetensors")) ||
                         (name.starts_with("pytorch_model-") && name.ends_with(".bin"));
    const auto written = [&](const auto& file) { return file.path == name; };
    const bool replaced = std::any_of(job.target.files.begin(), job.target.files.end(), written) ||
                          std::any_of(job.text_files.begin(), job.text_files.end(), written);
    if (weights && !replaced) leftover.push_back(name);
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

/// The attention specs of the metadata are about the heads that config.json says. Their sizes alone would not show it:
/// twice the heads of half the size fit the same files in another order.
void prove_heads(const ShardedCheckpoint& checkpoint, const Model& model) {
  for (std::uint32_t pp_rank = 0; pp_rank < checkpoint.pp; ++pp_rank)
    for (const ModuleSpecs& module : checkpoint.metadata[pp_rank].modules)
      for (const TransformationSpec& spec : module.specs) {
        const auto* gqa = std::get_if<GQAQKVColumnParallelLinearSpec>(&spec);
        if (gqa == nullptr || (gqa->num_attention_heads == model.heads && gqa->num_key_value_heads == model.kv_heads))
          continue;
        throw Error(
            ErrorKind::kBadInput,
            fmt::format("the attention spec of {} is for {} query and {} key/value heads, but config.json says {} "
                        "and {}",
                        printable(module.module_fully_qualified_name), gqa->num_attention_heads,
                        gqa->num_key_value_heads, model.heads, model.kv_heads))
            .in(checkpoint.folder.path / metadata_file_name(pp_rank));
      }
}

/// Whether `path` is `folder` or lies under it; both resolved.
bool is_inside(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first == folder.end();
}

ShardsFolder shards_of(const fs::path& given) {
  if (!fs::is_directory(given))
    throw Error(ErrorKind::kBadInput, path_exists(given) ? "is not a directory" : "no such directory").in(given);
  const auto shards = find_shards_folder(given);
  if (shards) return *shards;
  throw Error(ErrorKind::kBadInput,
              fmt::format("holds neither {}/ nor {}/ nor files of ranks", describe(ShardsKind::kRanks).folder,
                          describe(ShardsKind::kOptimum).folder))
      .in(given)
      .hint("give the directory that holds the shards folder, or that folder itself");
}

/// The logical tensors of the shards, in the model's order where the model is known.
void read_source(const ShardsFolder& shards, Job& job) {
  ShardedCheckpoint checkpoint = read_sharded_checkpoint(shards);
  job.mesh = {checkpoint.tp, checkpoint.pp, 1};
  for (const std::string& warning : checkpoint.warnings) job.notes.push_back(warning);
  const std::optional<Model> model = model_beside(shards.parent, job);
  if (checkpoint.metadata.empty()) {
    if (!model)
      throw Error(ErrorKind::kBadInput,
                  "has no metadata files (mp_metadata_pp_rank_Y.json), and without a config.json of a known family "
                  "beside it nothing says how the parameters are laid out")
          .in(shards.path)
          .hint("copy the model's config.json into " + shards.parent.string());
    derive_metadata(checkpoint, *model);
    job.notes.push_back("there are no metadata files, so how the parameters are laid out is told from config.json");
  }
  job.source = sharded_source_layout(checkpoint, tied_parameters(model));
  if (model) {
    prove_heads(checkpoint, *model);
    prove_against_model(job.source, *model, shards.path);
  } else {
    order_naturally(job.source);
  }
  if (!checkpoint.not_saved.empty())
    job.notes.push_back(fmt::format("{} that the metadata lists {} not in the files and left out: {}",
                                    checkpoint.not_saved.size() == 1 ? "a parameter" : "parameters",
                                    checkpoint.not_saved.size() == 1 ? "is" : "are", list_names(checkpoint.not_saved)));
}

std::unique_ptr<Job> plan(const ConsolidateRequest& request) {
  if (const auto adapters = adapters_to_consolidate(request.checkpoint_directory); !adapters.empty())
    return plan_consolidate_adapters(request, adapters);
  const ShardsFolder shards = shards_of(request.checkpoint_directory);
  auto job = std::make_unique<Job>();
  job->command = "consolidate";
  job->source_directory = shards.path;
  job->output_directory = request.output_directory.value_or(shards.parent);
  job->force = request.force;
  if (is_inside(resolved_path(job->output_directory), resolved_path(shards.path)))
    throw Error(ErrorKind::kUsage, "the output directory is inside the shards folder")
        .in(job->output_directory)
        .hint("choose another OUT_DIR");

  if (const std::string note = note_of_adapters_left(shards.parent); !note.empty()) job->notes.push_back(note);
  read_source(shards, *job);
  job->target = hf_target_layout(job->source.logical, request.max_shard_bytes, request.format);
  job->program = make_program(job->source, job->target);

  if (job->target.files.size() > 1)
    job->text_files.push_back({hf_index_name(request.format), hf_index_text(index_of(job->target))});
  // Without config.json the directory above the shards is not known to be a model's: it may be anything, even a home.
  if (path_exists(shards.parent / kConfigFile) && resolved_path(job->output_directory) != resolved_path(shards.parent))
    job->copied_files = companion_files(shards.parent, {job->output_directory, shards.path});
  for (const StoredTensor& tensor : job->source.stored)
    if (tensor.kind == CutKind::kTied && job->source.files[tensor.file].tp_rank == 0)
      job->notes.push_back(tensor.name +
                           " is a tied copy of the embedding: it is compared with it and left out, as Hugging "
                           "Face's file has it once");
  prove_no_leftover_weights(*job);
  return job;
}

}  // namespace

std::unique_ptr<Job> plan_consolidate(const ConsolidateRequest& request) {
  return with_file_system_errors([&] { return plan(request); });
}

}  // namespace reshard
