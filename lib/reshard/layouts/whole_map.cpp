#include "reshard/layouts/whole_map.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "reshard/base/error.h"

namespace reshard {
TensorMap whole_map(const std::vector<Container>& files, const std::vector<TiedParameter>& tied) {
  TensorMap map;
  std::unordered_map<std::string_view, const Container*> names_held;
  for (const Container& file : files)
    for (const TensorEntry& tensor : file.tensors) {
      const auto [found, is_new] = names_held.emplace(tensor.name, &file);
      if (!is_new)
        throw Error(ErrorKind::kBadInput, "is in this file and in " + found->second->path.string())
            .in(file.path)
            .tensor(tensor.name);
    }
  map.reserve_logical(names_held.size());
  for (const Container& file : files) {
    const std::uint32_t first_file = map.add_files(file, {});
    for (const TensorEntry& tensor : file.tensors) {
      const auto alias =
          std::find_if(tied.begin(), tied.end(), [&](const TiedParameter& t) { return t.name == tensor.name; });
      const bool second_copy = alias != tied.end() && names_held.count(alias->source) > 0;
      const std::uint32_t stored =
          map.add_stored(tensor, first_file, second_copy ? PartitionLabel::kTied : PartitionLabel::kWhole);
      map.stored[stored].tied = second_copy;
      map.add_whole(stored, second_copy ? alias->source : tensor.name);
    }
  }
  return map;
}

std::vector<TiedParameter> tied_parameters(const std::optional<Model>& model) {
  if (!model) return {{"lm_head.weight", "model.embed_tokens.weight"}};
  std::vector<TiedParameter> tied;
  for (const ModelParameter& parameter : model->parameters)
    if (!parameter.tied_to.empty()) tied.push_back({parameter.name, parameter.tied_to});
  return tied;
}

}  // namespace reshard
