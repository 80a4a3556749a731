#include "reshard/layouts/rank_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "reshard/base/strings.h"
#include "reshard/formats/xser.h"
#include "reshard/specs/mesh.h"
#include "reshard/specs/metadata.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// What is in one rank's folder and none of `known` joins `foreign`.
void look_into_rank(Files& files, const fs::path& path, const std::string& shown_as,
                    const std::vector<std::string>& known, std::vector<std::string>& foreign) {
  for (const auto& [name, kind, is_link] : files.list(path))
    if (kind != FileKind::kFile || is_link || std::find(known.begin(), known.end(), name) == known.end())
      foreign.push_back(shown_as + "/" + name);
}

void look_into_tensors(Files& files, const fs::path& path, const std::string& shown_as,
                       std::vector<std::string>& foreign) {
  for (const auto& [name, kind, is_link] : files.list(path))
    if (kind != FileKind::kFile || !is_xser_tensor_name(name)) foreign.push_back(shown_as + "/" + name);
}

/// Of a model's ranks, this program writes those of the first data-parallel replica.
bool is_our_rank(const std::string& name, bool any_dp) {
  const auto rank = rank_of_name(name);
  return rank && (any_dp || rank->dp_rank == 0);
}

}  // namespace

std::string rank_name(RankId rank, bool dp) {
  return fmt::format("{}{}tp_rank_{:02}_pp_rank_{:02}", dp ? fmt::format("dp_rank_{:02}_", rank.dp_rank) : "",
                     rank.has_ep ? fmt::format("ep_rank_{:02}_", rank.ep_rank) : "", rank.tp_rank, rank.pp_rank);
}

std::optional<RankId> rank_of_name(std::string_view name) {
  constexpr std::string_view kMiddle = "_rank_";
  RankId rank;
  std::map<std::string_view, std::uint32_t*> open{
      {"tp", &rank.tp_rank}, {"pp", &rank.pp_rank}, {"dp", &rank.dp_rank}, {"ep", &rank.ep_rank}};
  while (true) {
    const auto found = open.find(name.substr(0, 2));
    if (found == open.end() || name.substr(2, kMiddle.size()) != kMiddle) return std::nullopt;
    name.remove_prefix(2 + kMiddle.size());
    const std::size_t digits = std::min(name.find('_'), name.size());
    const auto number = parse_unsigned(name.substr(0, digits), kMaxParallelDegree - 1);
    if (!number) return std::nullopt;
    *found->second = static_cast<std::uint32_t>(*number);
    open.erase(found);
    if (digits == name.size()) break;
    name.remove_prefix(digits + 1);
  }
  if (open.count("tp") || open.count("pp")) return std::nullopt;
  rank.has_ep = !open.count("ep");
  return rank;
}

Format torch_format_of(Files& files, const fs::path& path) {
  return is_xser(files, path) ? Format::kXser : Format::kPytorch;
}

fs::path directory_above(Files& files, const fs::path& path) {
  const fs::path full = files.absolute(path).lexically_normal();
  return full.filename().empty() ? full.parent_path().parent_path() : full.parent_path();
}

std::string own_name(Files& files, const fs::path& path) {
  return files.absolute(path / "").lexically_normal().parent_path().filename().string();
}

bool is_our_metadata(const std::string& name) {
  return metadata_pp_rank(name) && name.ends_with(".json");
}

void list_foreign_ranks(Files& files, const fs::path& folder, const std::string& shown_as, std::string_view ending,
                        const std::vector<std::string>& in_rank, std::vector<std::string>& foreign, bool any_dp) {
  for (const DirectoryEntry& entry : files.list(folder)) {
    const bool is_folder = entry.kind == FileKind::kDirectory;
    std::string name = entry.name;
    const std::string shown = shown_as + name;
    const bool tensors = name.ends_with(kXserTensorsSuffix);
    if (tensors) name.resize(name.size() - kXserTensorsSuffix.size());
    const bool info = !tensors && name.ends_with(kXserInfoSuffix);
    if (info) name.resize(name.size() - kXserInfoSuffix.size());
    const bool ended = name.ends_with(ending);
    if (ended) name.resize(name.size() - ending.size());
    const bool rank = ended && is_our_rank(name, any_dp) && !entry.is_link;
    if (rank && tensors && is_folder)
      look_into_tensors(files, folder / entry.name, shown, foreign);
    else if (rank && !tensors && !info && ending.empty() && is_folder)
      look_into_rank(files, folder / entry.name, shown, in_rank, foreign);
    else if (!rank || tensors || entry.kind != FileKind::kFile)
      foreign.push_back(shown);
  }
}

}  // namespace reshard
