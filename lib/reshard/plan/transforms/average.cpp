#include "reshard/plan/transforms/average.h"

#include <algorithm>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/tensor/recipes/mean.h"

namespace reshard {
namespace {

/// Whether two tensors of a map are the same bytes of the same files.
bool is_same_place(const SourceMap& map, std::uint32_t a, std::uint32_t b) {
  return std::ranges::equal(map.pieces[a], map.pieces[b], [&](const Piece& x, const Piece& y) {
    const StoredTensor &in_x = map.stored[x.stored], &in_y = map.stored[y.stored];
    return in_x.file == in_y.file && in_x.offset_bytes == in_y.offset_bytes && in_x.view() == in_y.view() &&
           x.box == y.box && x.stored_begin == y.stored_begin;
  });
}

/// The terms that are different bytes.
std::vector<std::uint32_t> distinct_terms(const SourceMap& map, const Average& mean, std::vector<bool>& dropped) {
  std::vector<std::uint32_t> distinct;
  for (const std::string& name : mean.terms) {
    const auto term = map.find_logical(name);
    if (!term) throw Error(ErrorKind::kInternal, "a mean of a tensor that is not there").tensor(name);
    if (std::any_of(distinct.begin(), distinct.end(), [&](auto other) { return is_same_place(map, other, *term); }))
      dropped[*term] = true;
    else
      distinct.push_back(*term);
  }
  return distinct;
}

}  // namespace

SourceMap average(SourceMap source, const std::vector<Average>& means) {
  if (means.empty()) return source;
  std::vector<bool> dropped(source.logical.size());  // or moved to the end, with another name
  std::vector<std::vector<std::uint32_t>> terms;
  for (const Average& mean : means) {
    terms.push_back(distinct_terms(source, mean, dropped));
    if (terms.back().size() == 1) dropped[terms.back().front()] = true;
  }
  std::vector<LogicalTensor> tensors;
  std::vector<std::vector<Piece>> pieces;
  std::vector<std::uint32_t> from;
  std::vector<bool> used(source.stored.size());
  const auto add = [&](std::uint32_t index, const std::string& name, bool stored) {
    tensors.push_back(source.logical[index]);
    tensors.back().name = name;
    pieces.push_back(stored ? source.pieces[index] : std::vector<Piece>());
    from.push_back(index);
    for (const Piece& piece : pieces.back()) used[piece.stored] = true;
  };
  for (std::uint32_t i = 0; i < source.logical.size(); ++i)
    if (!dropped[i]) add(i, source.logical[i].name, true);
  std::unordered_map<std::string, Computed> computed;
  for (std::size_t m = 0; m < means.size(); ++m) {
    add(terms[m].front(), means[m].name, terms[m].size() == 1);
    if (terms[m].size() == 1) continue;
    Computed& mean = computed[means[m].name];
    mean.recipe = mean_recipe();
    for (const std::uint32_t term : terms[m]) mean.inputs.push_back(source.logical[term].name);
  }
  source.set_logical(std::move(tensors), std::move(pieces), from);
  source.computed.merge(computed);
  source.keep_stored(used);
  return source;
}

}  // namespace reshard
