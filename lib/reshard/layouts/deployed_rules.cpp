#include "reshard/layouts/deployed_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string_view>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/specs/head_slots.h"
#include "reshard/specs/stage_plan.h"

namespace reshard {
namespace {

using Table = std::shared_ptr<const Placement>;

constexpr std::string_view kBasePrefix = "model.";
constexpr std::string_view kLayers = "layers.";  // of which other checkpoints have a prefix
constexpr std::uint64_t kMaxChunks = 1 << 24;    // of all sizes, over all ranks
constexpr const char* kRankName = "rank_util.rank";
constexpr const char* kVocabularyRankName = "embed_tokens.rank_util.rank";
constexpr const char* kJoinedName = "qkv_proj.Wqkv";

/// The built-in families that say how NxD Inference names them.
std::vector<std::string> inference_families() {
  std::vector<std::string> names = known_model_types();
  std::erase_if(names, [](const std::string& name) { return !builtin_family(name)->inference_names; });
  return names;
}

Table table_of(const std::vector<std::uint32_t>& slots, std::uint64_t units, std::uint64_t unit_elems,
               std::uint32_t tp) {
  Placement placement{units, unit_elems, {}};
  const std::size_t each = slots.size() / tp;
  for (std::uint32_t rank = 0; rank < tp; ++rank) {
    const auto first = slots.begin() + static_cast<std::ptrdiff_t>(rank * each);
    placement.taken.emplace_back(first, first + static_cast<std::ptrdiff_t>(each));
  }
  return std::make_shared<const Placement>(std::move(placement));
}

/// Makes the rules of one model.
class DeployedRules {
 public:
  DeployedRules(const Model& model, std::uint32_t tp, const DeployedForm& form) : model_(model), tp_(tp), form_(form) {
    if (!form.nxdi) return;
    if (!model.family->inference_names || model.heads == 0 || model.kv_heads == 0)
      throw Error(ErrorKind::kUnsupported,
                  fmt::format("how NxD Inference names the weights of {} is not known", model.family->model_type))
          .hint(fmt::format("known are {}; a description (--spec FILE) with \"nxd_inference\" may say it; the layout "
                            "presharded takes any family",
                            fmt::join(inference_families(), ", ")));
    if (model.quantized)
      throw Error(ErrorKind::kUnsupported, "the layout nxdi has no place for the scales of quantised linears")
          .hint("the layout presharded cuts them with their weights");
    const auto heads = static_cast<std::uint32_t>(model.heads);
    const auto kv_heads = static_cast<std::uint32_t>(model.kv_heads);
    const HeadSlots slots = inference_head_slots(heads, kv_heads, tp);
    query_ = table_of(slots.query, heads, model.head_dim, tp);
    key_value_ = table_of(slots.key_value, kv_heads, model.head_dim, tp);
  }

  std::vector<CutRule> run(const HoldsName& holds) {
    if (form_.nxdi) {
      add_rank(kRankName);
      if (form_.vocab_parallel) add_rank(kVocabularyRankName);
      for (std::uint64_t layer = 0; layer < model_.layers; ++layer)
        add_rank(inference_name(attention_module(layer)) + "." + kRankName);
    }
    for (const ModelParameter& parameter : model_.parameters) {
      if (parameter.optional && (!holds || !(holds(parameter.name) || holds(inference_name(parameter.name))))) continue;
      if (!form_.nxdi && !parameter.tied_to.empty()) continue;  // whose reader ties them itself
      if (!form_.nxdi || !add_attention(parameter)) add(parameter);
    }
    return std::move(rules_);
  }

 private:
  std::string attention_module(std::uint64_t layer) const {
    return expand_layer(model_.family->attention->module, layer);
  }

  std::string inference_name(const std::string& name) const {
    return form_.nxdi && name.starts_with(kBasePrefix) ? name.substr(kBasePrefix.size()) : name;
  }

  CutRule& add_rule(std::string name, CutKind kind, CutRule::Role role) {
    CutRule rule{std::move(name), kind};
    rule.role = role;
    return rules_.emplace_back(std::move(rule));
  }

  void add_rank(std::string name) { add_rule(std::move(name), CutKind::kConstant, CutRule::Role::kRankNumber); }

  void add_placed(std::string name, CutKind kind, std::uint32_t dim, std::vector<CutRule::Placed> parts) {
    CutRule& rule = add_rule(std::move(name), kind, CutRule::Role::kPlaced);
    rule.dim = dim;
    rule.placed = std::move(parts);
  }

  void add_whole(std::string name, const std::string& logical_name) {
    add_placed(std::move(name), CutKind::kReplicated, 0, {{logical_name, nullptr}});
  }

  /// A parameter that is cut along one dim, filled up where its size does not divide, or stays whole.
  void add(const ModelParameter& parameter) {
    const std::string& original = parameter.tied_to.empty() ? parameter.name : parameter.tied_to;
    std::string name = inference_name(parameter.name);
    std::optional<std::uint32_t> dim = parameter.split_dim;
    const bool embedding = form_.nxdi && parameter.plan == TensorParallelPlan::kEmbeddingRowwise &&
                           !parameter.is_bias && parameter.shape.size() == 2;
    if (embedding && !form_.vocab_parallel) dim = 1;
    if (!dim) return add_whole(std::move(name), original);
    if (!parameter.packed.empty()) return add_packed(parameter, std::move(name));
    const CutKind kind = !parameter.tied_to.empty() ? CutKind::kTied : *dim == 0 ? CutKind::kColumn : CutKind::kRow;
    add_placed(std::move(name), kind, *dim, {{original, evenly(parameter, *dim), parameter.is_bias}});
  }

  void add_packed(const ModelParameter& parameter, std::string name) {
    CutRule& rule =
        add_rule(std::move(name), *parameter.split_dim == 0 ? CutKind::kColumn : CutKind::kRow, CutRule::Role::kPlain);
    rule.own = std::make_shared<const ParallelParameter>(own_parameter(parameter, tp_));
    rule.parameter = rule.own.get();
  }

  /// Of attention: its projections, and modules that NxD Inference calls otherwise. \returns false for others.
  bool add_attention(const ModelParameter& parameter) {
    if (!parameter.layer) return false;
    const Family::Attention& names = *model_.family->attention;
    const std::string module = attention_module(*parameter.layer);
    if (!parameter.module.starts_with(module + ".")) return false;
    const std::string linear = parameter.module.substr(module.size() + 1);
    const std::string prefix = inference_name(module) + ".";
    const std::string leaf = parameter.name.substr(parameter.module.size());
    const bool is_query = linear == names.query;
    if (is_query || linear == names.key || linear == names.value) {
      if (!form_.fuse_qkv)
        add_placed(prefix + "qkv_proj." + linear + leaf, CutKind::kGroupedQuery, 0,
                   {{parameter.name, is_query ? query_ : key_value_}});
      else if (is_query)
        add_placed(prefix + kJoinedName + leaf, CutKind::kGroupedQuery, 0,
                   {{parameter.name, query_},
                    {module + "." + names.key + leaf, key_value_},
                    {module + "." + names.value + leaf, key_value_}});
    } else if (linear == names.output) {
      const std::string name = prefix + linear + "." + linear + leaf;
      if (parameter.is_bias)
        add_whole(name, parameter.name);
      else
        add_placed(name, CutKind::kGroupedQuery, 1, {{parameter.name, query_}});
    } else if (const auto other = model_.family->inference_names->find(linear);
               other != model_.family->inference_names->end()) {
      add_whole(prefix + other->second + leaf, parameter.name);
    } else {
      return false;
    }
    return true;
  }

  /// A size over the ranks, each with as much of it, and filler after its end.
  Table evenly(const ModelParameter& parameter, std::uint32_t dim) {
    const std::uint64_t size = parameter.shape[dim];
    Table& table = even_[size];
    if (table) return table;
    const std::uint64_t each = size / tp_ + (size % tp_ != 0 ? 1 : 0);
    const std::uint64_t unit = std::gcd(size, each);
    chunks_ += unit == 0 ? 0 : std::min(each / unit, kMaxChunks) * tp_;
    if (chunks_ > kMaxChunks)
      throw Error(ErrorKind::kBadInput, fmt::format("dim {} has {} elements: over {} ranks, this and others are more "
                                                    "than any model has",
                                                    dim, size, tp_))
          .tensor(parameter.name);
    std::vector<std::uint32_t> slots(unit == 0 ? 0 : each / unit * tp_);
    std::iota(slots.begin(), slots.end(), 0u);
    table = table_of(slots, unit == 0 ? 1 : size / unit, unit, tp_);
    return table;
  }

  const Model& model_;
  std::uint32_t tp_;
  DeployedForm form_;
  Table query_;
  Table key_value_;
  std::map<std::uint64_t, Table> even_;  // by size
  std::uint64_t chunks_ = 0;             // of all those
  std::vector<CutRule> rules_;
};

}  // namespace

std::optional<DeployedForm> nxdi_form(const std::vector<std::string>& names) {
  DeployedForm form;
  for (const std::string& name : names) {
    if (name == kRankName || (name.starts_with(kLayers) && name.find(".qkv_proj.") != std::string::npos))
      form.nxdi = true;
    if (name.find(kJoinedName) != std::string::npos) form.fuse_qkv = true;
    if (name == kVocabularyRankName) form.vocab_parallel = true;
  }
  if (!form.nxdi) return std::nullopt;
  return form;
}

std::vector<CutRule> deployed_rules(const Model& model, std::uint32_t tp, const DeployedForm& form,
                                    const HoldsName& holds) {
  return DeployedRules(model, tp, form).run(holds);
}

}  // namespace reshard
