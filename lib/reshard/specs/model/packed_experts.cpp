#include "reshard/specs/model/packed_experts.h"

#include <algorithm>
#include <array>
#include <map>

#include "reshard/base/strings.h"

namespace reshard {
namespace {

constexpr std::string_view kExperts = ".experts.*.";

/// A linear of an expert.
struct Linear {
  std::string_view name;
  std::string_view stack;
  std::size_t part;  // of the stack's
};
constexpr Linear kLinears[] = {{"gate_proj", "gate_up_proj", 0}, {"up_proj", "gate_up_proj", 1},
                               {"down_proj", "down_proj", 0},    {"w1", "gate_up_proj", 0},
                               {"w3", "gate_up_proj", 1},        {"w2", "down_proj", 0}};

/// Whose experts Transformers 5 has packed in memory, and apart in files.
constexpr std::string_view kPackedTypes[] = {
    "deepseek_v2",      "deepseek_v3",    "dots1",          "ernie4_5_moe",
    "exaone_moe",       "flex_olmo",      "glm4_moe",       "glm4_moe_lite",
    "glm4v_moe",        "glm4v_moe_text", "hunyuan_v1_moe", "jamba",
    "lfm2_moe",         "longcat_flash",  "minimax",        "minimax_m2",
    "mixtral",          "olmoe",          "phimoe",         "qwen2_moe",
    "qwen3_5_moe_text", "qwen3_moe",      "qwen3_next",     "qwen3_vl_moe_text",
    "solar_open"};

/// What Transformers 4 saved packed, with the last two dims the other way round, and Transformers 5 saves packed.
constexpr std::string_view kStayPacked[] = {"qwen3_vl_moe_text"};

/// Parts of names, of one family or of all that have them.
struct Rename {
  std::string_view own;
  std::string_view packed;
  std::string_view model_type = {};
};
constexpr Rename kRenames[] = {{"block_sparse_moe.gate", "mlp.router", "phimoe"},
                               {"block_sparse_moe", "mlp"},
                               {"mlp.moe_statics", "mlp.gate.moe_statics", "ernie4_5_moe"},
                               {"mlp.e_score_correction_bias", "mlp.gate.e_score_correction_bias", "exaone_moe"}};

/// `name` with `to` in the place of `from`, if that stands in it between dots.
std::optional<std::string> replaced(const std::string& name, std::string_view from, std::string_view to) {
  const std::size_t at = ("." + name + ".").find("." + std::string(from) + ".");
  if (at == name.npos) return std::nullopt;
  return std::string(name).replace(at, from.size(), to);
}

}  // namespace

std::string PackedExperts::Stack::name_of(std::size_t part, std::uint64_t expert) const {
  return with_numbers(parts[part], std::array{std::to_string(expert)});
}

PackedExperts::PackedExperts(const Family& family) {
  const auto is_turned = [](const Family::Module& module) {
    return module.stacked && module.plan == TensorParallelPlan::kPackedRowwise;
  };
  const auto is_one_of = [&](const auto& types) {
    return std::find(std::begin(types), std::end(types), family.model_type) != std::end(types);
  };
  is_known_ = is_one_of(kPackedTypes);
  stay_packed_ = is_one_of(kStayPacked);
  // Others that are packed (E, H, 2 I) in files are so in memory.
  if (!stay_packed_ && std::any_of(family.modules.begin(), family.modules.end(), is_turned)) return;
  for (const Rename& rename : kRenames)
    if (rename.model_type.empty() || rename.model_type == family.model_type)
      renames_.emplace_back(rename.own, rename.packed);
  std::map<std::string, std::vector<std::string>> stacks;
  for (const Family::Module& module : family.modules) {
    names_.insert(module.parameter.empty() ? module.name : module.name + "." + module.parameter);
    const std::size_t at = module.name.rfind(kExperts);
    if (!module.experts || module.stacked || module.first_expert || at == module.name.npos ||
        module.parameter != "weight")
      continue;
    const std::string_view leaf = std::string_view(module.name).substr(at + kExperts.size());
    const auto linear =
        std::find_if(std::begin(kLinears), std::end(kLinears), [&](const Linear& one) { return one.name == leaf; });
    if (linear == std::end(kLinears)) return;
    std::vector<std::string>& parts =
        stacks[packed_name(module.name.substr(0, at)) + std::string(kExperts.substr(0, kExperts.size() - 2)) +
               std::string(linear->stack)];
    parts.resize(std::max(parts.size(), linear->part + 1));
    parts[linear->part] = module.name + "." + module.parameter;
  }
  for (auto& [name, parts] : stacks)
    if (std::none_of(parts.begin(), parts.end(), [](const std::string& part) { return part.empty(); }))
      stacks_.push_back({name, std::move(parts)});
}

std::optional<PackedExperts::Stack> PackedExperts::find(std::string_view name) const {
  const std::string starred = with_stars(name);
  const auto found =
      std::find_if(stacks_.begin(), stacks_.end(), [&](const Stack& stack) { return stack.name == starred; });
  if (found == stacks_.end()) return std::nullopt;
  Stack stack{std::string(name), found->parts};
  const std::vector<std::string> layer = numbers_in(name);
  for (std::string& part : stack.parts) part = with_numbers(std::move(part), layer);
  return stack;
}

std::optional<PackedExperts::Place> PackedExperts::place_of(std::string_view parameter) const {
  const std::string starred = with_stars(parameter);
  for (const Stack& stack : stacks_) {
    const auto part = std::find(stack.parts.begin(), stack.parts.end(), starred);
    if (part == stack.parts.end()) continue;
    std::vector<std::string> numbers = numbers_in(parameter);
    const auto expert = parse_unsigned(numbers.back());
    if (!expert || std::to_string(*expert) != numbers.back()) return std::nullopt;  // "007"
    numbers.pop_back();
    return Place{*find(with_numbers(stack.name, numbers)), *expert,
                 static_cast<std::size_t>(part - stack.parts.begin())};
  }
  return std::nullopt;
}

std::string PackedExperts::packed_name(const std::string& own) const {
  for (const auto& [from, to] : renames_)
    if (auto renamed = replaced(own, from, to)) return *renamed;
  return own;
}

std::string PackedExperts::own_name(const std::string& packed) const {
  if (names_.count(with_stars(packed)) > 0) return packed;
  for (const auto& [to, from] : renames_)
    if (auto renamed = replaced(packed, from, to); renamed && names_.count(with_stars(*renamed)) > 0) return *renamed;
  return packed;
}

bool PackedExperts::is_of_expert(std::string_view parameter) {
  return with_stars(parameter).find(kExperts) != std::string::npos;
}

}  // namespace reshard
