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

/// A box of a logical tensor in a rank's tensor: pipeline rank, tensor-parallel rank, stored name, logical name, begin
/// and size of the box, and its position in the stored tensor.
using IdPart = std::tuple<std::uint32_t, std::uint32_t, std::string, std::string, Dims, Dims, Dims>;

/// Returns the boxes in all ranks' tensors, without aliases and replicas, sorted.
std::vector<IdPart> parts_of(const TensorMap& map) {
  std::vector<IdPart> parts;
  for (std::uint32_t l = 0; l < map.logical.size(); ++l) {
    const LogicalTensor& logical = map.logical[l];
    if (logical.constant() || logical.role != TensorRole::kParameter) continue;
    for (const Piece& piece : map.pieces[l]) {
      const StoredTensor& stored = map.stored[piece.stored];
      const MapFile& file = map.file_of(stored);
      if (!stored.tied)
        parts.emplace_back(file.pp_rank, file.tp_rank, stored.name.text(), logical.name, piece.box.begin,
                           piece.box.size, piece.stored_begin);
    }
  }
  std::sort(parts.begin(), parts.end());
  parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
  return parts;
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
  const std::vector<IdPart> before = parts_of(source), after = parts_of(target);
  const auto [a, b] = std::mismatch(before.begin(), before.end(), after.begin(), after.end());
  if (a == before.end() && b == after.end()) return;
  const auto& [pp_rank, tp_rank, name, logical, begin, size, at] =
      a == before.end() || (b != after.end() && *b < *a) ? *b : *a;
  throw Error(ErrorKind::kUsage, fmt::format("{} would contain other parts of it than in the source: optimizer ids "
                                             "without known parameters can be kept only if nothing but `dp` changes",
                                             rank_name({tp_rank, pp_rank}, false)))
      .tensor(name)
      .hint(
          "take the source's ranks, layout, order of heads, `fuse-qkv` and `kv-size-multiplier`, or set "
          "`from-optimizer-groups` to the rule by which parameters were grouped");
}

}  // namespace reshard
