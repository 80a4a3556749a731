#include "reshard/layouts/ranks_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/hf_layout.h"
#include "reshard/specs/metadata.h"

namespace reshard {
namespace {

/// The rule of a tied parameter: its source's, under its own name.
struct NamedRule {
  std::string stored_name;
  const CutRule* rule;
  bool tied;
};

std::vector<NamedRule> named_rules(const std::vector<CutRule>& rules, const std::vector<TiedParameter>& tied) {
  std::vector<NamedRule> named;
  std::unordered_map<std::string, const CutRule*> by_name;
  for (const CutRule& rule : rules) {
    named.push_back({rule.stored_name, &rule, false});
    by_name.emplace(rule.stored_name, &rule);
  }
  for (const TiedParameter& parameter : tied) {
    const auto source = by_name.find(parameter.source);
    if (source != by_name.end()) named.push_back({parameter.name, source->second, true});
  }
  return named;
}

/// The stored tensor that `cut` makes of the source's logical tensors.
StoredTensor stored_from(const Layout& source, const NamedRule& named, const Cut& cut) {
  std::vector<Dims> shapes;
  std::optional<DType> dtype;
  for (const Cut::Part& part : cut.parts) {
    const auto logical = source.find_logical(part.logical_name);
    if (!logical)
      throw Error(ErrorKind::kInternal, "the plan asks for a tensor that was not proved").tensor(part.logical_name);
    const LogicalTensor& tensor = source.logical[*logical];
    if (dtype && *dtype != tensor.dtype)
      throw Error(ErrorKind::kBadInput,
                  fmt::format("is {}, but {} is {}: tensors of two dtypes cannot be joined into {}", name(tensor.dtype),
                              cut.parts.front().logical_name, name(*dtype), named.stored_name))
          .tensor(tensor.name);
    dtype = tensor.dtype;
    shapes.push_back(tensor.shape);
  }
  const auto shape = stored_shape(cut, shapes);
  if (!shape) throw Error(ErrorKind::kInternal, "the cut does not fit a proved shape").tensor(named.stored_name);
  if (!num_bytes(*dtype, *shape))
    throw Error(ErrorKind::kUsage,
                fmt::format("a rank's part {} goes through a packed byte: elements of {} have {} bits",
                            to_string(*shape), name(*dtype), bits(*dtype)))
        .tensor(cut.parts.front().logical_name)
        .hint("choose a smaller TP degree");
  return {named.stored_name, *dtype, *shape, 0, 0, 0, named.tied ? CutKind::kTied : cut.kind};
}

}  // namespace

std::string rank_folder_name(RankId rank) {
  return fmt::format("tp_rank_{:02}_pp_rank_{:02}", rank.tp_rank, rank.pp_rank);
}

std::optional<RankId> rank_of_folder(std::string_view name) {
  constexpr std::string_view kTp = "tp_rank_";
  constexpr std::string_view kPp = "_pp_rank_";
  const std::size_t middle = name.find(kPp);
  if (!name.starts_with(kTp) || middle == name.npos) return std::nullopt;
  const auto tp_rank = parse_unsigned(name.substr(kTp.size(), middle - kTp.size()), kMaxParallelDegree - 1);
  const auto pp_rank = parse_unsigned(name.substr(middle + kPp.size()), kMaxParallelDegree - 1);
  if (!tp_rank || !pp_rank) return std::nullopt;
  return RankId{static_cast<std::uint32_t>(*tp_rank), static_cast<std::uint32_t>(*pp_rank)};
}

Layout ranks_target_layout(const std::vector<StagePlan>& plans, std::uint32_t tp, const Layout& source) {
  Layout layout;
  for (const LogicalTensor& tensor : source.logical) layout.add_logical(tensor, {});
  for (std::uint32_t pp_rank = 0; pp_rank < plans.size(); ++pp_rank) {
    const std::vector<CutRule> rules = cut_rules(plans[pp_rank].metadata);
    const std::vector<NamedRule> named = named_rules(rules, plans[pp_rank].tied);
    for (std::uint32_t tp_rank = 0; tp_rank < tp; ++tp_rank) {
      std::vector<Cut> cuts;
      std::vector<StoredTensor> tensors;
      for (const NamedRule& rule : named) {
        cuts.push_back(rule.rule->for_rank(tp_rank, tp));
        tensors.push_back(stored_from(source, rule, cuts.back()));
      }
      const std::filesystem::path path =
          std::filesystem::path(kShardsFolder) / rank_folder_name({tp_rank, pp_rank}) / kSafetensorsFile;
      const auto indices = add_target_file(layout, {path, 0, tp_rank, pp_rank, 0, 0}, tensors);
      for (std::size_t i = 0; i < cuts.size(); ++i) layout.add_cut(indices[i], cuts[i]);
    }
  }
  return layout;
}

Layout ranks_source_layout(const RanksCheckpoint& checkpoint, const std::vector<TiedParameter>& tied) {
  Layout layout;
  for (std::uint32_t pp_rank = 0; pp_rank < checkpoint.pp; ++pp_rank) {
    const std::vector<CutRule> rules = cut_rules(checkpoint.metadata[pp_rank]);
    std::unordered_map<std::string, NamedRule> by_name;
    for (const NamedRule& rule : named_rules(rules, tied)) by_name.emplace(rule.stored_name, rule);
    for (std::uint32_t tp_rank = 0; tp_rank < checkpoint.tp; ++tp_rank) {
      const Container& file = checkpoint.files[pp_rank][tp_rank];
      const auto file_index = static_cast<std::uint32_t>(layout.files.size());
      layout.files.push_back({file.path, file.size_bytes, tp_rank, pp_rank, 0, 0});
      for (const TensorEntry& tensor : file.tensors) {
        const auto found = by_name.find(tensor.name);
        if (found == by_name.end())
          throw Error(ErrorKind::kBadInput,
                      "the file holds it, but " + metadata_file_name(pp_rank) + " does not list it")
              .in(file.path)
              .tensor(tensor.name)
              .hint("if it is a tied copy of another parameter, config.json must say \"tie_word_embeddings\": true");
        const Cut cut = found->second.rule->for_rank(tp_rank, checkpoint.tp);
        const std::uint32_t stored =
            layout.add_stored({tensor.name, tensor.dtype, tensor.shape, file_index, tensor.offset_bytes,
                               tensor.size_bytes, found->second.tied ? CutKind::kTied : cut.kind});
        layout.add_cut(stored, cut);
      }
    }
  }
  return layout;
}

}  // namespace reshard
