#include "reshard/layouts/whole_map.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <string>

#include "reshard/base/error.h"

namespace reshard {
namespace {

bool holds(const std::vector<Container>& files, const std::string& name) {
  return std::any_of(files.begin(), files.end(), [&](const Container& file) {
    return std::any_of(file.tensors.begin(), file.tensors.end(),
                       [&](const TensorEntry& tensor) { return tensor.name == name; });
  });
}

/// \throws Error kBadInput if the map has a tensor of this name.
void validate_new(const TensorMap& map, const std::string& logical_name, const TensorEntry& tensor,
                  const Container& file) {
  const auto logical = map.find_logical(logical_name);
  if (!logical) return;
  for (const Piece& piece : map.pieces[*logical]) {
    const StoredTensor& other = map.stored[piece.stored];
    if (other.name.text() == tensor.name)
      throw Error(ErrorKind::kBadInput, "is in this file and in " + map.files[other.file].path.string())
          .in(file.path)
          .tensor(tensor.name);
  }
}

}  // namespace

std::size_t number_of_tensors(const std::vector<Container>& files) {
  return std::accumulate(files.begin(), files.end(), std::size_t{0},
                         [](std::size_t sum, const Container& file) { return sum + file.tensors.size(); });
}

TensorMap whole_map(const std::vector<Container>& files, const std::vector<TiedParameter>& tied) {
  std::vector<TiedParameter> second_copies;
  std::copy_if(tied.begin(), tied.end(), std::back_inserter(second_copies),
               [&](const TiedParameter& one) { return holds(files, one.source); });
  const std::size_t count = number_of_tensors(files);
  TensorMap map;
  map.reserve_logical(count);
  map.stored.reserve(count);
  for (const Container& file : files) {
    const std::uint32_t first_file = map.add_files(file, {});
    for (const TensorEntry& tensor : file.tensors) {
      const auto copy = std::find_if(second_copies.begin(), second_copies.end(),
                                     [&](const TiedParameter& one) { return one.name == tensor.name; });
      const bool second_copy = copy != second_copies.end();
      const std::string& name = second_copy ? copy->source : tensor.name;
      validate_new(map, name, tensor, file);
      const std::uint32_t stored =
          map.add_stored(tensor, first_file, second_copy ? PartitionLabel::kTied : PartitionLabel::kWhole);
      map.stored[stored].tied = second_copy;
      map.add_whole(stored, name);
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
