#include "reshard/layouts/optimizer/optimizer_ids.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/ranks/rank_format.h"

namespace reshard {
namespace {

constexpr const char* kSayRule =
    "set `from-optimizer-groups` to the rule by which parameters were grouped, if there is one";

/// A box of a logical tensor, and its position in a local one.
struct IdPart {
  std::string logical;
  Dims begin, size, at;

  friend auto operator<=>(const IdPart&, const IdPart&) = default;
};

/// The pieces of each rank's tensors, without aliases, by pipeline rank, tensor-parallel rank and name.
using Content = std::map<std::tuple<std::uint32_t, std::uint32_t, std::string>, std::vector<IdPart>>;

Content content_of(const TensorMap& map) {
  Content content;
  const auto parts_of = [&](std::uint32_t s) -> std::vector<IdPart>& {
    const StoredTensor& stored = map.stored[s];
    const MapFile& file = map.file_of(stored);
    return content[{file.pp_rank, file.tp_rank, stored.name.text()}];
  };
  for (std::uint32_t l = 0; l < map.logical.size(); ++l) {
    const LogicalTensor& logical = map.logical[l];
    if (logical.constant() || logical.role != TensorRole::kParameter) continue;
    for (const Piece& piece : map.pieces[l])
      if (!map.stored[piece.stored].tied)
        parts_of(piece.stored).push_back({logical.name, piece.box.begin, piece.box.size, piece.stored_begin});
  }
  for (auto& [place, parts] : content) {
    std::sort(parts.begin(), parts.end());
    parts.erase(std::unique(parts.begin(), parts.end()), parts.end());  // replicas of other data-parallel ranks
  }
  return content;
}

/// Validates that ids are sufficient for this optimizer.
void validate_kind(const OptimizerFiles& files) {
  const auto fail = [&](const std::string& message, const std::string& hint) {
    throw Error(ErrorKind::kUnsupported, message).in(files.folder).hint(hint);
  };
  if (files.ep > 1)
    fail(fmt::format("the optimizer is one of {} expert-parallel ranks", files.ep),
         "`from-optimizer-groups` ids supports only dense models");
  if (files.has_names()) fail("the optimizer's files have names, and no ids", "leave out `from-optimizer-groups` ids");
  if (files.form() == OptimizerStage::Form::kWhole)
    fail("the optimizer is not a ZeRO-1 optimizer, and without names no master weights can be computed", kSayRule);
  if (files.lost_masters)
    fail("NxD's converter, which wrote the files full_…, lost master weights, and without names none can be computed",
         kSayRule);
}

/// Validates that the file has no more ids of a shape than the model's file has parameters.
void validate_shapes(const OptimizerStage& file, const std::vector<LocalParameter>& parameters, std::uint32_t pp_rank) {
  std::map<Dims, std::size_t> in_model, in_optimizer;
  for (const LocalParameter& parameter : parameters) ++in_model[parameter.shape];
  for (std::uint32_t id = 0; id < file.entries.size(); ++id) {
    const std::optional<Dims>& shape = file.entries[id].shape;
    if (!shape)
      throw Error(ErrorKind::kUnsupported,
                  fmt::format("has no state of {} from which its shape could be inferred", file.name_of(id)))
          .in(file.path)
          .hint(kSayRule);
    ++in_optimizer[*shape];
  }
  for (std::uint32_t id = 0; id < file.entries.size(); ++id) {
    const Dims& shape = *file.entries[id].shape;
    const std::size_t ids = in_optimizer[shape], most = in_model[shape];
    if (ids <= most) continue;
    throw Error(ErrorKind::kBadInput,
                fmt::format("{} has the shape {}, as {} of its ids {}, but the model's files of pp rank {} have {} of "
                            "that shape",
                            file.name_of(id), to_string(shape), ids, ids == 1 ? "has" : "have", pp_rank,
                            most == 0 ? "no parameter" : fmt::format("{} parameter{}", most, most == 1 ? "" : "s")))
        .in(file.path)
        .hint("the optimizer belongs to another model or other ranks: use files of one save");
  }
}

}  // namespace

bool keeps_ids(const OptionValues& values) {
  return values.choice(kSourceOptimizerGroups) == kGroupsById;
}

std::vector<std::vector<std::string>> names_by_id(const OptimizerFiles& files,
                                                  const std::vector<std::vector<LocalParameter>>& parameters) {
  validate_kind(files);
  std::vector<std::vector<std::string>> all;
  for (std::uint32_t pp_rank = 0; pp_rank < files.pp; ++pp_rank) {
    validate_shapes(files.stages[pp_rank], parameters[pp_rank], pp_rank);
    std::vector<std::string>& names = all.emplace_back();
    for (std::size_t id = 0; id < files.stages[pp_rank].entries.size(); ++id) names.push_back(std::to_string(id));
  }
  return all;
}

SourceMap local_tensors_by_id(const OptimizerFiles& files) {
  SourceMap map;
  for (std::uint32_t pp_rank = 0; pp_rank < files.pp; ++pp_rank)
    for (std::uint32_t tp_rank = 0; tp_rank < files.tp; ++tp_rank) {
      const OptimizerStage& file = files.stages[pp_rank];
      map.files.push_back({{files.path_of(pp_rank, std::size_t{tp_rank} * files.dp), 0, tp_rank, pp_rank}});
      for (std::uint32_t id = 0; id < file.entries.size(); ++id) {
        StoredTensor stored{std::to_string(id), DType::kF32, file.entries[id].shape.value()};
        stored.file = static_cast<std::uint32_t>(map.files.size() - 1);
        map.stored.push_back(std::move(stored));
        map.add_whole(static_cast<std::uint32_t>(map.stored.size() - 1),
                      fmt::format("{}.{}", rank_name({tp_rank, pp_rank}, false), id));
      }
    }
  return map;
}

void validate_same_ranks(const SourceMap& source, const TargetMap& target) {
  const Content before = content_of(source), after = content_of(target);
  auto a = before.begin();
  auto b = after.begin();
  while (a != before.end() && b != after.end() && *a == *b) ++a, ++b;
  if (a == before.end() && b == after.end()) return;
  const auto& place = a == before.end() || (b != after.end() && b->first < a->first) ? b->first : a->first;
  throw Error(ErrorKind::kUsage, fmt::format("{} would contain other parts of it than in the source: optimizer ids "
                                             "without known parameters can be kept only if nothing but `dp` changes",
                                             rank_name({std::get<1>(place), std::get<0>(place)}, false)))
      .tensor(std::get<2>(place))
      .hint(
          "take the source's ranks, layout, order of heads, `fuse-qkv` and `kv-size-multiplier`, or set "
          "`from-optimizer-groups` to the rule by which parameters were grouped");
}

}  // namespace reshard
