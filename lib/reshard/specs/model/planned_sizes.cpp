#include "reshard/specs/model/planned_sizes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/checked.h"
#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"

namespace reshard {
namespace {

constexpr std::uint64_t kMaxPlannedSize = std::uint64_t{1} << 32;
constexpr const char* kPlanKeys = "base_model_tp_plan (_tp_plan for a head)";

/// Meaning of the elements of a dim.
enum class SizeOf : std::uint8_t { kVocabulary, kHidden, kInner, kGateUp, kQueries, kKeys, kQkv };

/// A matrix with the usual module name.
struct NamedMatrix {
  std::string_view module;
  std::array<SizeOf, 2> dims;
};
constexpr NamedMatrix kOutsideLayers[] = {
    {"embed_tokens", {SizeOf::kVocabulary, SizeOf::kHidden}},    {"wte", {SizeOf::kVocabulary, SizeOf::kHidden}},
    {"word_embeddings", {SizeOf::kVocabulary, SizeOf::kHidden}}, {"embed_in", {SizeOf::kVocabulary, SizeOf::kHidden}},
    {"tok_embeddings", {SizeOf::kVocabulary, SizeOf::kHidden}},  {"lm_head", {SizeOf::kVocabulary, SizeOf::kHidden}},
    {"embed_out", {SizeOf::kVocabulary, SizeOf::kHidden}}};
constexpr NamedMatrix kInLayers[] = {
    {"q_proj", {SizeOf::kQueries, SizeOf::kHidden}}, {"k_proj", {SizeOf::kKeys, SizeOf::kHidden}},
    {"v_proj", {SizeOf::kKeys, SizeOf::kHidden}},    {"qkv_proj", {SizeOf::kQkv, SizeOf::kHidden}},
    {"o_proj", {SizeOf::kHidden, SizeOf::kQueries}}, {"gate_proj", {SizeOf::kInner, SizeOf::kHidden}},
    {"up_proj", {SizeOf::kInner, SizeOf::kHidden}},  {"gate_up_proj", {SizeOf::kGateUp, SizeOf::kHidden}},
    {"down_proj", {SizeOf::kHidden, SizeOf::kInner}}};

/// Words in keys of config.json for further sizes of the same kind: "draft_vocab_size", "mlp_hidden_size".
constexpr std::pair<SizeOf, std::string_view> kOtherKeys[] = {
    {SizeOf::kVocabulary, "vocab"}, {SizeOf::kHidden, "hidden"}, {SizeOf::kHidden, "embed"}, {SizeOf::kHidden, "dim"},
    {SizeOf::kInner, "inter"},      {SizeOf::kInner, "ffn"},     {SizeOf::kInner, "mlp"},    {SizeOf::kInner, "inner"}};
/// Words in keys for the size of a head, which may differ between layers and between keys and values.
constexpr std::string_view kHeadSizes[] = {"head_dim", "head_size", "kv_channels", "d_kv"};
/// Prefix of keys for head sizes of an indexer for sparse attention, whose projections have other names.
constexpr std::string_view kIndexer = "index";

struct KnownSize {
  std::uint64_t size = 0;
  std::string text;  // "vocab_size 64"
};

/// The sizes in config.json.
class Sizes {
 public:
  Sizes(const Json& text, const Json& outer) : json_{&text, &outer} {
    read_numbers();
    add_key(SizeOf::kVocabulary, "vocab_size");
    add_key(SizeOf::kHidden, "hidden_size");
    add_key(SizeOf::kInner, "intermediate_size");
    if (const KnownSize* inner = find(SizeOf::kInner)) add(SizeOf::kGateUp, 2 * inner->size, "2 × " + inner->text);
    add_heads();
  }

  /// Returns null if config.json does not contain the size.
  const KnownSize* find(SizeOf kind) const {
    const auto found = sizes_.find(kind);
    return found == sizes_.end() ? nullptr : &found->second;
  }

  /// Whether another key contains a size of this kind.
  bool is_other(SizeOf kind, std::uint64_t size) const { return others_.count({kind, size}) > 0; }

  /// Returns the numbers of ranks, greater than `tp`, for which slices of `part` elements add up to a size of this
  /// kind.
  std::set<std::uint64_t> more_ranks(SizeOf kind, std::uint64_t part, std::uint32_t tp) const {
    std::set<std::uint64_t> counts;
    const auto add_count = [&](std::uint64_t size) {
      if (size % part == 0 && size / part > tp) counts.insert(size / part);
    };
    if (const KnownSize* known = find(kind)) add_count(known->size);
    for (auto other = others_.lower_bound({kind, 0}); other != others_.end() && other->first == kind; ++other)
      add_count(other->second);
    return counts;
  }

  /// Whether the value of any key, or a product of heads, equals `size`.
  bool is_any(std::uint64_t size) const { return numbers_.count(size) > 0; }

  const std::map<SizeOf, KnownSize>& all() const { return sizes_; }

  std::set<std::uint64_t> of_vectors() const {
    std::set<std::uint64_t> found;
    if (const KnownSize* hidden = find(SizeOf::kHidden)) found.insert(hidden->size);
    const auto heads = number("num_attention_heads");
    if (const auto size = heads ? head_dim(*heads) : number("head_dim")) found.insert(*size);
    return found;
  }

 private:
  void read_numbers() {
    for (const Json* json : json_)
      for (const auto& [key, value] : json->items()) {
        if (!value.is_number_unsigned()) continue;
        const auto size = value.get<std::uint64_t>();
        numbers_.insert(size);
        for (const auto& [kind, word] : kOtherKeys)
          if (key.find(word) != key.npos) others_.emplace(kind, size);
        for (const std::string_view word : kHeadSizes)
          if (key.find(word) != key.npos && !key.starts_with(kIndexer) && size <= kMaxPlannedSize)
            head_sizes_.insert(size);
      }
  }

  std::optional<std::uint64_t> number(const char* key) const {
    for (const Json* json : json_) {
      const auto found = json->find(key);
      if (found == json->end() || !found->is_number_unsigned()) continue;
      const auto value = found->get<std::uint64_t>();
      if (value > 0 && value <= kMaxPlannedSize) return value;
    }
    return std::nullopt;
  }

  void add(SizeOf kind, std::uint64_t size, std::string text) {
    sizes_[kind] = {size, std::move(text)};
    numbers_.insert(size);
  }

  void add_key(SizeOf kind, const char* key) {
    if (const auto size = number(key)) add(kind, *size, fmt::format("{} {}", key, *size));
  }

  std::optional<std::uint64_t> head_dim(std::uint64_t heads) const {
    if (const auto said = number("head_dim")) return said;
    const KnownSize* hidden = find(SizeOf::kHidden);
    if (!head_sizes_.empty() || hidden == nullptr || hidden->size % heads != 0) return std::nullopt;
    return hidden->size / heads;
  }

  void add_heads() {
    const auto heads = number("num_attention_heads");
    const auto size = heads ? head_dim(*heads) : std::nullopt;
    const auto rows = size ? checked_mul(*heads, *size) : std::nullopt;
    if (!rows || *rows > kMaxPlannedSize) return;
    add(SizeOf::kQueries, *rows, fmt::format("num_attention_heads {} of {} elements each", *heads, *size));
    for (const std::uint64_t other : head_sizes_) others_.emplace(SizeOf::kQueries, *heads * other);
    const auto kv_heads = number("num_key_value_heads");
    if (!kv_heads || *kv_heads > *heads) return;
    for (const std::uint64_t other : head_sizes_) others_.emplace(SizeOf::kKeys, *kv_heads * other);
    add(SizeOf::kKeys, *kv_heads * *size, fmt::format("num_key_value_heads {} of {} elements each", *kv_heads, *size));
    add(SizeOf::kQkv, *rows + 2 * *kv_heads * *size,
        fmt::format("num_attention_heads {} and twice num_key_value_heads {} of {} elements each", *heads, *kv_heads,
                    *size));
  }

  std::array<const Json*, 2> json_;
  std::map<SizeOf, KnownSize> sizes_;
  std::set<std::uint64_t> numbers_;
  std::set<std::pair<SizeOf, std::uint64_t>> others_;  // sizes from kOtherKeys, and heads of other sizes
  std::set<std::uint64_t> head_sizes_;                 // of kHeadSizes
};

/// A weight matrix of the model, on each rank and as assembled by the plan.
struct Matrix {
  const ModelParameter* parameter = nullptr;
  const NamedMatrix* usual = nullptr;  // null if its module has no usual name
  Dims part;                           // shape on each rank

  const Dims& whole() const { return parameter->shape; }
};

const NamedMatrix* find_usual(std::span<const NamedMatrix> table, std::string_view module) {
  const auto found =
      std::find_if(table.begin(), table.end(), [&](const NamedMatrix& one) { return one.module == module; });
  return found == table.end() ? nullptr : &*found;
}

/// Finds the matrix by the usual name of the parameter's module. Excludes experts, whose sizes differ.
const NamedMatrix* usual_matrix(const ModelParameter& parameter, std::string_view layers) {
  std::string_view module = parameter.module;
  if (parameter.layer) {
    module.remove_prefix(std::min(module.size(), layers.size() + 1));
    const std::vector<std::string> parts = split(module, '.');  // "0.self_attn.q_proj"
    if (parts.size() != 3 || module.find("expert") != module.npos) return nullptr;
    return find_usual(kInLayers, parts.back());
  }
  const std::size_t dot = layers.rfind('.');
  const std::string_view base = layers.substr(0, dot == layers.npos ? 0 : dot + 1);
  if (module.starts_with(base)) module.remove_prefix(base.size());
  return find_usual(kOutsideLayers, module);
}

class Validator {
 public:
  Validator(const Model& model, const Sizes& sizes, std::uint32_t tp, const std::filesystem::path& where)
      : sizes_(sizes), tp_(tp), where_(where) {
    const KnownSize* hidden = sizes.find(SizeOf::kHidden);
    for (const ModelParameter& parameter : model.parameters) {
      if (!parameter.tied_to.empty() || parameter.shape.size() != 2 || !parameter.name.ends_with(".weight")) continue;
      Matrix matrix{&parameter, usual_matrix(parameter, model.family->layers), parameter.shape};
      if (parameter.split_dim) {
        std::uint64_t& size = matrix.part[*parameter.split_dim];
        size = size / tp + (size % tp != 0 ? 1 : 0);
      }
      if (parameter.layer && parameter.split_dim)
        for (const std::uint64_t size : parameter.shape) {
          sizes_in_layers_.emplace(*parameter.layer, size);
          any_hidden_ = any_hidden_ || (hidden && size == hidden->size);
        }
      matrices_.push_back(std::move(matrix));
    }
  }

  void run() const {
    for (const Matrix& matrix : matrices_) validate_dim(matrix);
    for (const Matrix& matrix : matrices_) validate_vocabulary(matrix);
    validate_no_rank_missing();
  }

 private:
  Error bad(const Matrix& matrix, std::string message, std::string hint) const {
    Error error(ErrorKind::kBadInput, std::move(message));
    return error.in(where_).tensor(matrix.parameter->name).hint(std::move(hint));
  }

  std::string ranks_have() const {
    return tp_ == 1 ? "the one rank has" : fmt::format("the {} ranks together have", tp_);
  }

  std::string hint_for_missing(std::uint64_t ranks) const {
    return fmt::format(
        "the files of the last ranks are missing: with {} ranks the sizes would fit, so copy the others here; else "
        "config.json belongs to another model",
        ranks);
  }

  const KnownSize* known(const Matrix& matrix, std::uint32_t dim) const {
    return matrix.usual ? sizes_.find(matrix.usual->dims[dim]) : nullptr;
  }

  /// Fails if each rank has the whole dim that the plan splits, and a slice of the other dim.
  void validate_dim(const Matrix& matrix) const {
    if (!matrix.parameter->split_dim || tp_ == 1) return;
    const std::uint32_t split = *matrix.parameter->split_dim, other = 1 - split;
    Dims expected = matrix.part;
    expected[other] *= tp_;  // no overflow: the other matrix has at least as many elements
    const auto fits = [&](std::uint32_t dim, std::uint64_t size) {
      const KnownSize* expected_size = known(matrix, dim);
      if (!expected_size) return false;
      const bool may_pad = matrix.usual->dims[dim] == SizeOf::kVocabulary;
      return may_pad ? size >= expected_size->size : size == expected_size->size;
    };
    const bool wrong =
        fits(split, matrix.part[split]) && fits(other, expected[other]) && !fits(other, matrix.part[other]);
    if (!wrong && !has_hidden_size_split(matrix)) return;
    throw bad(
        matrix,
        fmt::format("a rank has {} of it, which the plan in config.json joins to {}, but the sizes in config.json "
                    "are those of {}",
                    to_string(matrix.part), to_string(matrix.whole()), to_string(expected)),
        fmt::format(
            "the plan splits the wrong dim: correct its entry in {} (\"colwise\" splits rows, \"rowwise\" columns)",
            kPlanKeys));
  }

  /// The same check for modules with other names: a rank has the hidden size along the dim that the plan splits, and a
  /// slice of another size along the other dim.
  bool has_hidden_size_split(const Matrix& matrix) const {
    const KnownSize* hidden = sizes_.find(SizeOf::kHidden);
    if (!hidden || !matrix.parameter->layer) return false;
    const std::uint32_t split = *matrix.parameter->split_dim, other = 1 - split;
    const std::uint64_t part = matrix.part[other];
    if (matrix.part[split] != hidden->size || part == hidden->size || sizes_.is_any(part)) return false;
    if (sizes_.is_any(part * tp_)) return true;
    return sizes_in_layers_.count({*matrix.parameter->layer, part * tp_}) > 0 || !any_hidden_;
  }

  void validate_vocabulary(const Matrix& matrix) const {
    const KnownSize* vocabulary = known(matrix, 0);
    if (!vocabulary || matrix.usual->dims[0] != SizeOf::kVocabulary) return;
    const bool is_split = matrix.parameter->split_dim == 0u;
    const std::uint64_t rows = matrix.whole()[0], part = matrix.part[0];
    if (is_split && tp_ > 1 && part >= vocabulary->size)
      throw bad(
          matrix,
          fmt::format("each of the {} ranks has {} rows of it, which the plan in config.json joins to {}, but "
                      "config.json says {}",
                      tp_, part, rows, vocabulary->text),
          fmt::format("every rank has the whole tensor: remove it from the plan, or set it to \"replicate\" in {}",
                      kPlanKeys));
    if (rows >= vocabulary->size || sizes_.is_other(SizeOf::kVocabulary, rows)) return;
    if (!is_split && tp_ > 1 && rows * tp_ >= vocabulary->size)
      throw bad(matrix,
                fmt::format("each of the {} ranks has {} rows of it, and the plan in config.json does not split them, "
                            "but config.json says {}",
                            tp_, rows, vocabulary->text),
                fmt::format("the plan lacks it: name its module in {}, with \"colwise\"", kPlanKeys));
    const std::uint64_t ranks = part == 0 ? 0 : (vocabulary->size + part - 1) / part;
    throw bad(matrix, fmt::format("{} {} rows of it, but config.json says {}", ranks_have(), rows, vocabulary->text),
              hint_for_missing(ranks));
  }

  /// Confidence about which size of config.json the split dim has. Gated queries have twice the size, and layers may
  /// have MLPs of different sizes.
  enum class Evidence : std::uint8_t { kHeads, kQueries, kInner, kAnyName };

  /// Numbers of ranks for which the split dim has a size of config.json.
  struct Fit {
    Evidence evidence;
    bool as_it_is;                  // with the existing ranks
    std::set<std::uint64_t> ranks;  // with more ranks
  };

  /// \returns std::nullopt if config.json does not contain the size of the split dim.
  std::optional<Fit> fit(const Matrix& matrix) const {
    if (!matrix.parameter->split_dim) return std::nullopt;
    const std::uint32_t dim = *matrix.parameter->split_dim;
    const std::uint64_t part = matrix.part[dim], whole = matrix.whole()[dim];
    if (part == 0) return std::nullopt;
    Fit fit{Evidence::kAnyName, false, {}};
    if (matrix.usual) {
      const SizeOf kind = matrix.usual->dims[dim];
      const KnownSize* size = sizes_.find(kind);
      if (!size || kind == SizeOf::kVocabulary) return std::nullopt;
      const bool is_inner = kind == SizeOf::kInner || kind == SizeOf::kGateUp;
      fit = {dim == 0 && kind == SizeOf::kQueries ? Evidence::kQueries
             : is_inner                           ? Evidence::kInner
                                                  : Evidence::kHeads,
             whole == size->size || sizes_.is_other(kind, whole), sizes_.more_ranks(kind, part, tp_)};
    } else {
      const KnownSize* hidden = sizes_.find(SizeOf::kHidden);
      if (!matrix.parameter->layer || !hidden || matrix.whole()[1 - dim] != hidden->size) return std::nullopt;
      for (const auto& [kind, size] : sizes_.all()) {
        if (kind == SizeOf::kVocabulary || kind == SizeOf::kHidden) continue;
        fit.as_it_is = fit.as_it_is || size.size == whole || sizes_.is_other(kind, whole);
        fit.ranks.merge(sizes_.more_ranks(kind, part, tp_));
      }
    }
    if (!fit.as_it_is && fit.ranks.empty()) return std::nullopt;
    return fit;
  }

  /// Fails if a matrix does not fit, and a larger number of ranks would fit all matrices with the same or better
  /// evidence: ranks are missing.
  void validate_no_rank_missing() const {
    std::optional<std::set<std::uint64_t>> common;
    for (const Evidence evidence : {Evidence::kHeads, Evidence::kQueries, Evidence::kInner, Evidence::kAnyName}) {
      const Matrix* too_small = nullptr;
      for (const Matrix& matrix : matrices_) {
        const auto fit = this->fit(matrix);
        if (!fit || fit->evidence != evidence) continue;
        if (!fit->as_it_is && !too_small) too_small = &matrix;
        if (!common) common = fit->ranks;
        std::erase_if(*common, [&](std::uint64_t ranks) { return fit->ranks.count(ranks) == 0; });
      }
      if (common && common->empty()) return;
      if (too_small) throw missing_ranks(*too_small, *common->begin());
    }
  }

  Error missing_ranks(const Matrix& matrix, std::uint64_t ranks) const {
    const std::uint32_t dim = *matrix.parameter->split_dim;
    const std::uint64_t size = matrix.part[dim] * ranks;
    const KnownSize* usual = known(matrix, dim);
    return bad(matrix,
               fmt::format("{} {} of it, but config.json says {} for dim {}", ranks_have(), to_string(matrix.whole()),
                           usual && usual->size == size ? usual->text : fmt::format("{}", size), dim),
               hint_for_missing(ranks));
  }

  const Sizes& sizes_;
  std::uint32_t tp_;
  const std::filesystem::path& where_;
  std::vector<Matrix> matrices_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> sizes_in_layers_;  // of split matrices, by layer
  bool any_hidden_ = false;                                            // whether one of these is hidden_size
};

}  // namespace

void validate_planned_sizes(const Model& model, const ModelConfig& text, const ModelConfig& outer, std::uint32_t tp,
                            const std::filesystem::path& where) {
  const Sizes sizes(*text.json, *outer.json);
  Validator(model, sizes, tp, where).run();
}

std::set<std::uint64_t> stated_vector_sizes(const ModelConfig& text, const ModelConfig& outer) {
  return Sizes(*text.json, *outer.json).of_vectors();
}

}  // namespace reshard
