// PEFT's directories as targets.
#include <fmt/format.h>

#include "reshard/base/error.h"
#include "reshard/base/paths.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/map/target_file.h"
#include "reshard/plan/adapters/adapters.h"
#include "reshard/plan/target/checks.h"
#include "reshard/plan/target/make_target.h"
#include "reshard/specs/family/family_parser.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

void validate_folder_name(const AdapterFolder& adapter) {
  if (!adapter.name.empty() && adapter.name != "." && adapter.name != "..") return;
  throw Error(ErrorKind::kBadInput, "is not called adapter_NAME with a name that a folder can have")
      .in(adapter.shards.directory);
}

void validate_outside(Files& files, const fs::path& output_directory, const std::vector<AdapterFolder>& adapters) {
  for (const AdapterFolder& adapter : adapters)
    if (lies_inside(files.resolve(output_directory / "."), files.resolve(adapter.shards.path)))
      throw Error(ErrorKind::kUsage, "the output directory is inside the shards folder")
          .in(output_directory)
          .hint("choose another output directory");
}

/// PEFT takes safetensors where both are there.
void validate_beside(Files& files, const fs::path& output_directory, Format format) {
  const fs::path other =
      output_directory / (format == Format::kPytorch ? kAdapterSafetensorsFile : kAdapterPytorchFile);
  if (files.exists(other))
    throw Error(ErrorKind::kBadInput,
                "is of another adapter, would not be replaced, and loaders would mix it up with the new file")
        .in(other)
        .hint("move it away or choose another output directory");
}

void add_config(Files& files, Job& job, const Adapter& adapter, const fs::path& folder) {
  const fs::path final = folder / kAdapterConfigFile;
  if (!files.exists(adapter.config)) {
    job.notes.push_back("there is no adapter_config.json in " + adapter.config.parent_path().string() +
                        ", without which PEFT does not load the adapter");
    return;
  }
  const std::optional<std::string> separate = separate_config_text(files, adapter, job.notes);
  const bool in_place =
      files.resolve(adapter.config.parent_path() / kAdapterConfigFile) == files.resolve(job.output_directory / final);
  if (in_place && (separate || adapter.config.filename() != kAdapterConfigFile))
    throw Error(ErrorKind::kUsage,
                "says how the shards beside it are to be read, and that of the separate linears would replace it")
        .in(job.output_directory / final)
        .hint("choose another output directory");
  if (separate)
    job.text_files.push_back({final, *separate, adapter.config});
  else if (!in_place)
    job.copied_files.push_back({adapter.config, final, files.size_bytes(adapter.config)});
}

/// \throws Error kUsage for options that are about models.
void validate_for_adapters(const Request& request, const fs::path& where) {
  if (!request.source.config.empty())
    throw Error(ErrorKind::kUsage, "`config` has no effect: these are adapters, which need no config.json").in(where);
  if (request.dtype)
    throw Error(ErrorKind::kUsage, "`dtype` is about models: convert casts an adapter once it is whole").in(where);
  if (!request.names.empty())
    throw Error(ErrorKind::kUsage,
                "`rename`, `drop` and `keep` are about models: convert takes an adapter once it is whole")
        .in(where);
  if (request.allow_missing)
    throw Error(ErrorKind::kUsage, "`allow-missing` is about models: adapters are read whole").in(where);
  for (const std::string& option : request.target.options.names())
    throw Error(ErrorKind::kUsage, "`" + option + "` is about models: adapters have one file each").in(where);
}

}  // namespace

std::optional<std::string> separate_config_text(Files& files, const Adapter& adapter, std::vector<std::string>& notes) {
  try {
    const AdapterConfig config = read_adapter_config(files, adapter.config);
    SeparateConfig separate = separate_config(config, adapter.modules);
    // The lora_A of packed experts has the rank of each, one below the other.
    if (!separate.unexplained.empty() && config.target_parameters.empty())
      notes.push_back(
          fmt::format("adapter_config.json gives another rank than lora_A has: {}. It is not the one that the adapter "
                      "was trained with, so the scale is unknown, and PEFT does not load the adapter: set "
                      "\"rank_pattern\" and \"alpha_pattern\"",
                      list_names(separate.unexplained)));
    if (separate.text == config.text) return std::nullopt;
    notes.push_back(
        "adapter_config.json names the separate linears where it named the fused ones, with the same scales");
    return std::move(separate.text);
  } catch (const Error& error) {
    notes.push_back(error.what());
    return std::nullopt;
  }
}

void add_peft_target(Files& files, Job& job, const Adapter& adapter, std::span<const LogicalTensor> logical,
                     Format format, const fs::path& folder) {
  validate_beside(files, job.output_directory / folder, format);
  // Adapters hold tensors of the same names: all but the one that goes to the top are told apart by their folder.
  const std::string prefix = folder.empty() ? "" : folder.string() + "/";
  TargetContainer container;
  container.format = format;
  container.path = folder / (format == Format::kPytorch ? kAdapterPytorchFile : kAdapterSafetensorsFile);
  for (const LogicalTensor& tensor : logical) {
    const Dims& shape = tensor.shape;
    const std::uint32_t index = job.target.add_logical({prefix + tensor.name, tensor.dtype, shape, {}}, {});
    container.tensors.push_back({{tensor.name, tensor.dtype, shape}, {{index, whole(shape), Dims(shape.size())}}});
  }
  add_target_container(job.target, std::move(container));
  add_config(files, job, adapter, folder);
}

void note_adapters_left(Files& files, Checkpoint& model) {
  std::vector<std::string> folders;
  for (const AdapterFolder& adapter : find_adapter_folders(files, model.directory))
    folders.push_back(adapter.shards.directory.filename().string());
  if (!folders.empty())
    model.notes.push_back(
        fmt::format("the model is consolidated, the adapters beside it are not: {}; give {} to consolidate one",
                    list_names(folders), (model.directory / folders.front()).string()));
}

void note_idle_options(const SourceRequest& request, Job& job) {
  std::vector<std::string> options;
  if (request.family)
    options.emplace_back(builtin_family(request.family->model_type) == request.family ? "family" : "spec");
  if (request.extra != ExtraTensors::kRefuse) options.emplace_back("extra-tensors");
  for (const std::string& option : options) job.notes.push_back(fmt::format("`{}` has no effect on adapters", option));
}

std::unique_ptr<Job> plan_consolidate_adapters(Files& files, const Request& request, const FoundCheckpoint& found,
                                               const std::vector<AdapterFolder>& adapters) {
  validate_for_adapters(request, found.path);
  const bool single = adapters.front().alone;
  auto job = std::make_unique<Job>();
  job->command = "consolidate";
  job->layout = &whole_layout();
  job->source_directory = single ? adapters.front().shards.path : found.path;
  job->model_directory = single ? adapters.front().shards.directory : found.path;
  job->output_directory = request.output_directory.value_or(job->model_directory);
  job->force = request.force;
  job->notes = found.notes;
  for (const AdapterFolder& folder : adapters) {
    if (!single) validate_folder_name(folder);
    const fs::path output = single || folder.name == kDefaultAdapter ? fs::path() : fs::path(folder.name);
    validate_outside(files, job->output_directory / output, adapters);
    Checkpoint checkpoint = read_sharded_adapter(
        files, folder, {.use = ConfigUse::kStrict, .family = request.source.family, .options = request.source.options});
    if (job->source.files.empty()) job->mesh = checkpoint.mesh;
    job->notes.insert(job->notes.end(), checkpoint.notes.begin(), checkpoint.notes.end());
    add_peft_target(files, *job, *checkpoint.adapter, checkpoint.map.state_dict(), format_of(request.target), output);
    job->source.append(std::move(checkpoint.map), output.empty() ? "" : output.string() + "/");
  }
  note_idle_options(request.source, *job);
  for (const std::string& option : request.source.options.names())
    job->notes.push_back(fmt::format("`from-{}` has no effect on adapters", option));
  ProgramOptions options;
  options.check_replicas = request.check_replicas;
  job->program = make_program(job->source, job->target, options);
  return job;
}

}  // namespace reshard
