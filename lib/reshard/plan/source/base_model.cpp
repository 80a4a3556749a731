// The base model of adapters, and the contents of their adapter_config.json.
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

/// Reads the base model's weights next to config.json, but only if config.json has a plan, since plans lack shapes.
Model base_model(Files& files, const ModelConfig& config, const FamilySpec& family, Notes& notes) {
  const LanguageModel model = find_language_model(config, family);
  if (model.family) return instantiate(model.family, model.config);
  if (!has_config_plan(config)) throw unknown_model_type(config);
  return planned_model(config, whole_tensors(read_hf_checkpoint(files, config.path.parent_path())), notes);
}

/// Reads adapter_config.json, with the ranks and scales of separate linears. Notes any ranks that it does not explain.
void read_separate_config(Files& files, Adapter& adapter, Notes& notes) {
  const fs::path path = adapter.config.path;
  if (adapter.config.text.empty()) adapter.config = read_adapter_config(files, path);
  const SeparateConfig separate = separate_config(adapter.config, adapter.modules);
  // The lora_A of packed experts contains the rows of all experts.
  if (!separate.unexplained.empty() && adapter.config.target_parameters.empty())
    notes
        .mismatch(
            fmt::format("{} declares another rank than lora_A has: {}. The adapter was trained with another file, "
                        "so the scale is unknown, and PEFT cannot load the adapter: set \"rank_pattern\" and "
                        "\"alpha_pattern\"",
                        path.string(), list_names(separate.unexplained)))
        .in(path);
  if (separate.text == adapter.config.text) return;
  notes.changed("adapter_config.json now names the separate linears instead of the fused ones, with the same scales");
  adapter.separate_text = separate.text;
  adapter.config = parse_adapter_config(separate.text, path);
}

}  // namespace

bool has_base_model(const Request& request, const Checkpoint& source) {
  return (request.target.layout->traits().holds_adapters() || !request.target.role.empty()) &&
         (!request.adapters.empty() || source.config.is_given || source.model);
}

void read_adapter_configs(Files& files, const Request& request, Checkpoint& source) {
  const bool has_model = has_base_model(request, source);
  if (has_model) {
    const SourceRequest& base = request.source;
    const fs::path& of_base = base.config.empty() ? base.path : base.config;
    const ModelConfig config = base_config(files, request.adapters.empty() ? source.config.path : of_base);
    source.model_type = config.model_type;
    source.model = base_model(files, config, request.source.family, source.notes);
  } else if (request.target.layout->traits().holds_adapters()) {
    return;
  }
  for (Adapter& adapter : source.adapters) {
    if (!files.exists(adapter.config.path))
      throw Error(ErrorKind::kBadInput, "contains no adapter_config.json, which declares the ranks of its linears")
          .in(adapter.config.path.parent_path())
          .hint("copy it from the training run: PEFT cannot load the adapter without it");
    try {
      read_separate_config(files, adapter, source.notes);
    } catch (const Error& error) {  // a whole adapter may have any type
      if (has_model || error.kind() != ErrorKind::kUnsupported) throw;
      source.notes.mismatch(error.what()).in(error.path());
    }
  }
}

}  // namespace reshard
