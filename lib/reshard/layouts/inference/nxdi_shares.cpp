// How the ranks of NxD Inference share parameters: which part of a division each rank has, and with which padding.
#include "reshard/layouts/inference/nxdi_shares.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/layouts/inference/nxdi_settings.h"
#include "reshard/specs/config/model_config.h"
#include "reshard/specs/parallel/head_slots.h"
#include "reshard/specs/stages/stage_plan.h"

namespace reshard {
namespace {

/// Returns the parts of the ranks when the ranks of a coarser division have the same key/value heads: in turn, each rank
/// takes the lowest free part whose head it has there.
/// Source: NxD Inference, modules/attention/utils.py.
std::vector<std::uint32_t> parts_beside(std::uint32_t tp, std::uint32_t coarse, std::uint32_t kv_heads) {
  std::vector<std::uint32_t> parts;
  std::vector<bool> is_taken(tp);
  for (std::uint32_t rank = 0; rank < tp; ++rank) {
    const std::uint32_t own = rank % coarse;
    for (std::uint32_t part = 0; part < tp; ++part) {
      const std::uint32_t head = part / (tp / kv_heads);
      const bool has_head = coarse >= kv_heads
                                ? own / (coarse / kv_heads) == head
                                : head >= own * (kv_heads / coarse) && head < (own + 1) * (kv_heads / coarse);
      if (is_taken[part] || !has_head) continue;
      is_taken[part] = true;
      parts.push_back(part);
      break;
    }
  }
  return parts;
}

/// Returns a degree, which must divide the ranks.
std::uint32_t dividing_degree(const OptionValues& form, const LayoutOption& option, std::uint32_t tp) {
  const std::uint32_t degree = degree_in(form, option);
  if (tp % degree != 0)
    fail_degree(fmt::format("`{}` {} does not divide {} ranks", option.name, degree, tp),
                fmt::format("choose a `{}` that divides the ranks", option.name));
  return degree;
}

/// Returns the shapes of the parameters whose sizes `form` pads; null if it pads none.
PaddedShapes padded_shapes(const Model& model, const OptionValues& form) {
  Json config = model.config == nullptr ? Json() : *model.config;
  bool is_padded = false;
  for (const auto& [key, setting] : model.family->inference->padded_sizes) {
    const LayoutOption* option = nxdi_option(setting);
    const auto padded = option == nullptr ? std::nullopt : form.number(*option);
    if (!padded) continue;
    const Json* own = find_key(config, key);
    if (own != nullptr && own->is_number_unsigned() && own->get<std::uint64_t>() > *padded)
      fail_degree(fmt::format("`{}` {} is less than the {} {} of the model", option->name, *padded, key,
                              own->get<std::uint64_t>()),
                  "choose a larger size");
    config[key] = *padded;
    is_padded = true;
  }
  if (!is_padded) return nullptr;
  ModelConfig padded{.json = std::make_shared<const Json>(std::move(config)), .model_type = model.family->model_type};
  std::set<std::string_view> names;
  for (const ModelParameter& parameter : model.parameters) names.insert(parameter.name);
  const Model larger =
      instantiate(model.family, padded, [&](const std::string& name) { return names.count(name) > 0; });
  auto shapes = std::make_shared<std::unordered_map<std::string, Dims>>();
  for (const ModelParameter& parameter : larger.parameters) shapes->emplace(parameter.name, parameter.shape);
  return shapes;
}

}  // namespace

void fail_degree(const std::string& problem, const std::string& hint) {
  throw Error(ErrorKind::kUsage, problem).hint(hint);
}

RankShares nxdi_shares(const Model& model, const OptionValues& form, std::uint32_t tp, HeadCounts heads) {
  RankShares shares;
  const PaddedShapes padded = padded_shapes(model, form);
  const auto share = [&](std::uint32_t parts, std::vector<std::uint32_t> of_rank) {
    RankShare one{parts, std::move(of_rank), {}, padded};
    if (heads.query != 0) one.slots = inference_head_slots(heads.query, heads.key_value, parts);
    return one;
  };
  const auto repeated = [&](std::uint32_t parts) {
    std::vector<std::uint32_t> of_rank(tp);
    for (std::uint32_t rank = 0; rank < tp; ++rank) of_rank[rank] = rank % parts;
    return share(parts, std::move(of_rank));
  };
  shares.usual[""] = shares.usual["unpadded"] = repeated(tp);
  shares.usual["unpadded"].padded_shapes = nullptr;
  if (form.has(kDraftDegree.name)) shares.usual[kOutsideLayers] = repeated(dividing_degree(form, kDraftDegree, tp));
  const std::uint32_t context = dividing_degree(form, kContextDegree, tp);
  const std::uint32_t data = dividing_degree(form, kAttentionDataDegree, tp);
  if (context > 1 && data > 1) fail_degree("`cp-degree` and `attention-dp-degree` are both above 1", "use one of them");
  if (context * data > 1 && (heads.key_value == 0 || tp % heads.key_value != 0))
    fail_degree(
        fmt::format("{} key/value heads do not divide {} ranks, as two sets of matrices require", heads.key_value, tp),
        "choose a `tp` that the key/value heads divide");
  const std::uint32_t coarse = tp / (context * data);
  shares.usual["cte_attention"] =
      context > 1 || data == 1 ? repeated(coarse) : share(tp, parts_beside(tp, coarse, heads.key_value));
  shares.usual["tkg_attention"] =
      data > 1 || context == 1 ? repeated(coarse) : share(tp, parts_beside(tp, coarse, heads.key_value));
  shares.usual["cte_mlp"] = repeated(tp / dividing_degree(form, kMlpContextDegree, tp));
  shares.usual["tkg_mlp"] = repeated(tp);
  const auto experts = [&](const LayoutOption& option) {
    const std::uint32_t groups = dividing_degree(form, option, tp);
    for (const ModelParameter& parameter : model.parameters)
      if (parameter.experts % groups != 0)
        fail_degree(fmt::format("{} experts do not divide over `{}` {}", parameter.experts, option.name, groups),
                    fmt::format("choose a `{}` that divides the experts", option.name));
    return ExpertShare{tp / groups, groups, 1, 1, padded};
  };
  shares.experts = {{"", experts(kMoeExpertDegree)},
                    {"all", {tp, 1, 1, 1, padded}},
                    {"experts_of_256", experts(kMoeExpertDegree)},
                    {"cte_experts", experts(kPromptExpertDegree)},
                    {"tkg_experts", experts(kTokenExpertDegree)}};
  if (form.flag(kShardOnIntermediate.name)) {
    const std::uint32_t groups = degree_in(form, kMoeExpertDegree);
    const std::uint32_t parts = groups > 1 ? tp / groups : degree_in(form, kMoeTensorDegree);
    shares.experts["experts_of_256"].multiple = std::uint64_t{256} * parts;
  }
  shares.padded = [&model](const ModelParameter& parameter, std::uint32_t parts) {
    return padded_size(model, parameter, parts);
  };
  return shares;
}

}  // namespace reshard
