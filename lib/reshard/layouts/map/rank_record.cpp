#include "reshard/layouts/map/rank_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/formats/torch/state_dict.h"
#include "reshard/specs/parallel/mesh.h"

namespace reshard {
namespace {

/// The metadata keys of one kind of rank.
struct RankKeys {
  const char* kind;
  const char* rank_key;
  const char* degree_key;
  std::uint32_t RankRecord::*rank;
  std::uint32_t RankRecord::*degree;
  bool always;  // otherwise only if the degree is above 1
};
constexpr RankKeys kRankKeys[] = {
    {"tensor-parallel", "reshard.tp_rank", "reshard.tp_degree", &RankRecord::tp_rank, &RankRecord::tp_degree, true},
    {"pipeline", "reshard.pp_rank", "reshard.pp_degree", &RankRecord::pp_rank, &RankRecord::pp_degree, false},
    {"expert-parallel", "reshard.ep_rank", "reshard.ep_degree", &RankRecord::ep_rank, &RankRecord::ep_degree, false},
};
constexpr std::string_view kOriginalsKey = "reshard.original_shapes";  // JSON: {"lm_head.weight": [509, 64]}
constexpr std::string_view kTransposedKey = "reshard.transposed";      // JSON: ["layers.*.mlp.up_proj.weight"]
constexpr std::string_view kScaledKey = "reshard.scaled";              // the same
constexpr std::size_t kMaxDims = 64;
constexpr const char* kHint = "the file is damaged or was changed; shard it again";

Error bad(const Container& file, std::string_view key, const std::string& value, const char* expected) {
  constexpr std::size_t kShown = 60;
  return Error(ErrorKind::kBadInput, fmt::format("its metadata has \"{}\" for {}, which is not {}",
                                                 printable(value.substr(0, kShown)), key, expected))
      .in(file.path)
      .hint(kHint);
}

/// Returns null if the text is not JSON. The parser's positions refer to this text, not to the file, so the caller
/// reports the error.
Json parse_value(const Container& file, const std::string& text) {
  try {
    return parse_json(text, file.path);
  } catch (const Error&) {
    return {};
  }
}

std::set<std::string> parse_names(const Container& file, std::string_view key, const std::string& text) {
  const Json json = parse_value(file, text);
  std::set<std::string> names;
  const bool fits =
      json.is_array() && std::all_of(json.begin(), json.end(), [](const Json& name) { return name.is_string(); });
  if (!fits) throw bad(file, key, text, "a list of names");
  for (const Json& name : json) names.insert(name.get<std::string>());
  return names;
}

OriginalShapes parse_originals(const Container& file, const std::string& text) {
  const Json json = parse_value(file, text);
  OriginalShapes originals;
  bool fits = json.is_object();
  if (fits)
    for (const auto& [name, shape] : json.items()) {
      fits = fits && shape.is_array() && shape.size() <= kMaxDims &&
             std::all_of(shape.begin(), shape.end(), [](const Json& size) { return size.is_number_unsigned(); });
      if (!fits) break;
      Dims& dims = originals[name];
      for (const Json& size : shape) dims.push_back(size.get<std::uint64_t>());
    }
  if (!fits) throw bad(file, kOriginalsKey, text, "an object of shapes");
  return originals;
}

}  // namespace

FileMetadata record_metadata(const RankRecord& record) {
  FileMetadata metadata;
  for (const RankKeys& keys : kRankKeys) {
    if (!keys.always && record.*keys.degree == 1) continue;
    metadata.emplace_back(keys.rank_key, std::to_string(record.*keys.rank));
    metadata.emplace_back(keys.degree_key, std::to_string(record.*keys.degree));
  }
  try {
    Json originals = Json::object();
    for (const auto& [name, shape] : *record.originals) originals[name] = std::vector(shape.begin(), shape.end());
    if (!originals.empty()) metadata.emplace_back(kOriginalsKey, originals.dump());
    if (!record.transposed.empty()) metadata.emplace_back(kTransposedKey, Json(record.transposed).dump());
    if (!record.scaled.empty()) metadata.emplace_back(kScaledKey, Json(record.scaled).dump());
  } catch (const Json::exception&) {
    throw Error(ErrorKind::kUnsupported, "a tensor has a name that is not UTF-8, which safetensors requires");
  }
  return metadata;
}

std::optional<RankRecord> read_record(const Container& file) {
  RankRecord record;
  OriginalShapes originals;
  bool any = false;
  for (const auto& [key, value] : file.metadata) {
    if (key == kOriginalsKey) {
      originals = parse_originals(file, value);
      any = true;
    }
    if (key == kTransposedKey) record.transposed = parse_names(file, key, value);
    if (key == kScaledKey) record.scaled = parse_names(file, key, value);
    for (const RankKeys& keys : kRankKeys) {
      const bool is_rank = key == keys.rank_key;
      if (!is_rank && key != keys.degree_key) continue;
      const auto number = parse_unsigned(value, kMaxParallelDegree);
      if (!number || (*number == 0 && !is_rank)) throw bad(file, key, value, "a number of ranks");
      record.*(is_rank ? keys.rank : keys.degree) = static_cast<std::uint32_t>(*number);
      any = true;
    }
  }
  if (!any) return std::nullopt;
  for (const RankKeys& keys : kRankKeys)
    if (record.*keys.rank >= record.*keys.degree)
      throw Error(ErrorKind::kBadInput, fmt::format("its metadata claims {} rank {} of {}", keys.kind,
                                                    record.*keys.rank, record.*keys.degree))
          .in(file.path)
          .hint(kHint);
  record.originals = std::make_shared<const OriginalShapes>(std::move(originals));
  return record;
}

FileMetadata further_metadata(const Container& file) {
  FileMetadata further;
  for (const auto& [key, value] : file.metadata) {
    const bool describes_rank = key == kShardedMetadataKey || key == kGqaQkvMetadataKey || key.starts_with("reshard.");
    if (key != "format" && !describes_rank) further.emplace_back(key, value);
  }
  return further;
}

std::string describe_rank(const RankRecord& record) {
  std::vector<std::string> parts;
  const auto add = [&](const char* kind, std::uint32_t rank, std::uint32_t degree) {
    if (degree > 1) parts.push_back(fmt::format("{} rank {} of {}", kind, rank, degree));
  };
  add("tensor-parallel", record.tp_rank, record.tp_degree);
  add("pipeline", record.pp_rank, record.pp_degree);
  add("expert-parallel", record.ep_rank, record.ep_degree);
  return join(parts, ", ");
}

}  // namespace reshard
