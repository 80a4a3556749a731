// The base model of adapters, and what their adapter_config.json says.
#include <fmt/format.h>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/core/config_model.h"
#include "reshard/layouts/hf/hf_files.h"
#include "reshard/plan/source/metadata_model.h"
#include "reshard/specs/config/model_config.h"
#include "reshard/specs/model/language_model.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// \param given  The base model's directory, or its config.json under whatever name.
ModelConfig base_config(Files& files, const fs::path& given) {
  if (files.is_directory(given)) return read_model_config(files, given);
  if (files.is_file(given)) return read_model_config_file(files, given);
  throw Error(ErrorKind::kBadInput, files.exists(given) ? "is not a directory" : "no such directory")
      .in(given)
      .hint("give the base model's directory, or its config.json");
}

/// Reads the base model's weights, next to config.json, only if a plan in config.json describes it: a plan has no shapes.
Model base_model(Files& files, const ModelConfig& config, const FamilySpec& family, std::vector<std::string>& notes) {
  const LanguageModel model = find_language_model(config, family);
  if (model.family) return instantiate(model.family, model.config);
  if (!has_config_plan(config)) throw unknown_model_type(config);
  return planned_model(config, read_hf_checkpoint(files, config.path.parent_path()), notes);
}

/// Reads adapter_config.json, with the ranks and scales of separate linears. Notes any ranks that it does not explain.
void read_separate_config(Files& files, Adapter& adapter, std::vector<std::string>& notes) {
  const fs::path path = adapter.config.path;
  adapter.config = read_adapter_config(files, path);
  const SeparateConfig separate = separate_config(adapter.config, adapter.modules);
  // The lora_A of packed experts has the rank of each, one below the other.
  if (!separate.unexplained.empty() && adapter.config.target_parameters.empty())
    notes.push_back(
        fmt::format("adapter_config.json gives another rank than lora_A has: {}. It is not the one that the adapter "
                    "was trained with, so the scale is unknown, and PEFT does not load the adapter: set "
                    "\"rank_pattern\" and \"alpha_pattern\"",
                    list_names(separate.unexplained)));
  if (separate.text == adapter.config.text) return;
  notes.push_back("adapter_config.json names the separate linears where it named the fused ones, with the same scales");
  adapter.separate_text = separate.text;
  adapter.config = parse_adapter_config(separate.text, path);
}

}  // namespace

bool has_base_model(const Request& request, const Checkpoint& source) {
  return request.target.layout == &adapter_layout() && (!request.adapters.empty() || source.config_given);
}

void read_adapter_configs(Files& files, const Request& request, Checkpoint& source) {
  const bool has_model = has_base_model(request, source);
  if (has_model) {
    const ModelConfig config = base_config(files, request.adapters.empty() ? source.config : request.source.path);
    source.model_type = config.model_type;
    source.model = base_model(files, config, request.source.family, source.notes);
  } else if (request.target.layout == &adapter_layout()) {
    return;
  }
  for (Adapter& adapter : source.adapters) {
    if (!files.exists(adapter.config.path))
      throw Error(ErrorKind::kBadInput, "holds no adapter_config.json, which says the ranks of its linears")
          .in(adapter.config.path.parent_path())
          .hint("put the one of the training run there: without it PEFT does not load the adapter");
    try {
      read_separate_config(files, adapter, source.notes);
    } catch (const Error& error) {  // a whole adapter may be of any kind
      if (has_model || error.kind() != ErrorKind::kUnsupported) throw;
      source.notes.emplace_back(error.what());
    }
  }
}

}  // namespace reshard
