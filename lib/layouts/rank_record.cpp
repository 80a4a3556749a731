#include "reshard/layouts/rank_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/specs/mesh.h"

namespace reshard {
namespace {

constexpr std::string_view kRankKey = "reshard.tp_rank";
constexpr std::string_view kDegreeKey = "reshard.tp_degree";
constexpr std::string_view kOriginalsKey = "reshard.original_shapes";  // JSON: {"lm_head.weight": [509, 64]}
constexpr std::size_t kMaxDims = 64;
constexpr const char* kHint = "the file is damaged or was changed; shard it again";

Error bad(const Container& file, std::string_view key, const std::string& value, const char* expected) {
  constexpr std::size_t kShown = 60;
  return Error(ErrorKind::kBadInput, fmt::format("its metadata has \"{}\" for {}, which is not {}",
                                                 printable(value.substr(0, kShown)), key, expected))
      .in(file.path)
      .hint(kHint);
}

OriginalShapes parse_originals(const Container& file, const std::string& text) {
  Json json;
  try {
    json = parse_json(text, file.path);
  } catch (const Error&) {
    // Its places are those of this text, not of the file: what is wrong is said below.
  }
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

std::vector<std::pair<std::string, std::string>> record_metadata(const RankRecord& record) {
  std::vector<std::pair<std::string, std::string>> metadata{
      {std::string(kRankKey), std::to_string(record.tp_rank)},
      {std::string(kDegreeKey), std::to_string(record.tp_degree)},
  };
  if (record.originals->empty()) return metadata;
  Json originals = Json::object();
  for (const auto& [name, shape] : *record.originals) originals[name] = std::vector(shape.begin(), shape.end());
  try {
    metadata.emplace_back(kOriginalsKey, originals.dump());
  } catch (const Json::exception&) {
    throw Error(ErrorKind::kUnsupported, "a tensor has a name that is not UTF-8, which safetensors cannot hold");
  }
  return metadata;
}

std::optional<RankRecord> read_record(const Container& file) {
  RankRecord record;
  OriginalShapes originals;
  bool any = false;
  for (const auto& [key, value] : file.metadata) {
    const bool is_rank = key == kRankKey;
    if (is_rank || key == kDegreeKey) {
      const auto number = parse_unsigned(value, kMaxParallelDegree);
      if (!number || (*number == 0 && !is_rank)) throw bad(file, key, value, "a number of ranks");
      (is_rank ? record.tp_rank : record.tp_degree) = static_cast<std::uint32_t>(*number);
    } else if (key == kOriginalsKey) {
      originals = parse_originals(file, value);
    } else {
      continue;
    }
    any = true;
  }
  if (!any) return std::nullopt;
  if (record.tp_rank >= record.tp_degree)
    throw Error(ErrorKind::kBadInput, fmt::format("its metadata says that it is of rank {} of {}, which there is not",
                                                  record.tp_rank, record.tp_degree))
        .in(file.path)
        .hint(kHint);
  record.originals = std::make_shared<const OriginalShapes>(std::move(originals));
  return record;
}

}  // namespace reshard
