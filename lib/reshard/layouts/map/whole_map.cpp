#include "reshard/layouts/map/whole_map.h"

#include <numeric>
#include <string>

#include "reshard/base/error.h"

namespace reshard {
namespace {

/// \throws Error kBadInput if the map has a tensor of this name.
void validate_new(const SourceMap& map, const TensorEntry& tensor, const Container& file) {
  const auto logical = map.find_logical(tensor.name);
  if (!logical) return;
  const StoredTensor& other = map.stored[map.pieces[*logical].front().stored];
  throw Error(ErrorKind::kBadInput, "is in this file and in " + map.files[other.file].path.string())
      .in(file.path)
      .tensor(tensor.name);
}

}  // namespace

std::size_t number_of_tensors(const std::vector<Container>& files) {
  return std::accumulate(files.begin(), files.end(), std::size_t{0},
                         [](std::size_t sum, const Container& file) { return sum + file.tensors.size(); });
}

SourceMap whole_map(const std::vector<Container>& files) {
  const std::size_t count = number_of_tensors(files);
  SourceMap map;
  map.reserve_logical(count);
  map.stored.reserve(count);
  for (const Container& file : files) {
    const std::uint32_t first_file = map.add_files(file, {});
    for (const TensorEntry& tensor : file.tensors) {
      validate_new(map, tensor, file);
      map.add_whole(map.add_stored(tensor, first_file), tensor.name);
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

std::vector<TiedParameter> possible_ties(const std::optional<Model>& model) {
  if (!model || model->by_config_plan) return tied_parameters(model);
  std::vector<TiedParameter> possible;
  for (const Family::Module& module : model->family->modules)
    if (!module.tied_to.empty()) possible.push_back({module.name + ".weight", module.tied_to + ".weight"});
  return possible;
}

}  // namespace reshard
