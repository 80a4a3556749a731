#include "reshard/layouts/shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/formats/hf_index.h"
#include "reshard/formats/xser.h"
#include "reshard/io/storage.h"
#include "reshard/specs/mesh.h"
#include "reshard/specs/metadata.h"
#include "reshard/specs/model_config.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPytorchRankFile = "checkpoint.pt";

/// The weights that an entry of a `ranks` folder is or holds, or nothing if it is no rank.
std::optional<RankFile> rank_in_ranks(const fs::directory_entry& entry) {
  const auto rank = rank_of_name(entry.path().filename().string());
  if (!rank) return std::nullopt;
  if (entry.is_regular_file())
    return RankFile{*rank, entry.path(), is_xser(entry.path()) ? Format::kXser : Format::kPytorch};
  const fs::path safetensors = entry.path() / kSafetensorsFile;
  const fs::path pytorch = entry.path() / kPytorchRankFile;
  const bool both = path_exists(safetensors) && path_exists(pytorch);
  if (both)
    throw Error(ErrorKind::kBadInput, "holds both model.safetensors and checkpoint.pt")
        .in(entry.path())
        .hint("these are two checkpoints in one place; move one away");
  if (path_exists(safetensors)) return RankFile{*rank, safetensors, Format::kSafetensors};
  if (path_exists(pytorch)) return RankFile{*rank, pytorch, is_xser(pytorch) ? Format::kXser : Format::kPytorch};
  throw Error(ErrorKind::kBadInput, "holds neither model.safetensors nor checkpoint.pt").in(entry.path());
}

std::optional<RankFile> rank_in_optimum(const fs::directory_entry& entry) {
  if (!entry.is_regular_file() || entry.path().extension() != ".pt") return std::nullopt;
  const auto rank = rank_of_name(entry.path().stem().string());
  if (!rank) return std::nullopt;
  return RankFile{*rank, entry.path(), is_xser(entry.path()) ? Format::kXser : Format::kPytorch};
}

std::optional<RankFile> rank_in_presharded(const fs::directory_entry& entry) {
  if (!entry.is_regular_file()) return std::nullopt;
  const auto rank = presharded_rank(entry.path().filename().string());
  if (!rank) return std::nullopt;
  return RankFile{*rank, entry.path(), Format::kSafetensors};
}

/// Metadata as this program writes it; older ones it only reads.
bool is_our_metadata(const std::string& name) {
  return metadata_pp_rank(name) && name.ends_with(".json");
}

/// Whether `folder` holds entries that are ranks' by their names, as those of `kind` are called.
bool holds_ranks(ShardsKind kind, const fs::path& folder) {
  if (!fs::is_directory(folder)) return false;
  return std::any_of(fs::directory_iterator(folder), fs::directory_iterator(), [&](const fs::directory_entry& entry) {
    const fs::path name = entry.path().filename();
    if (describe(kind).deployed) return presharded_rank(name.string()).has_value();
    if (describe(kind).torch_only) return name.extension() == ".pt" && rank_of_name(name.stem().string()).has_value();
    return rank_of_name(name.string()).has_value();
  });
}

/// Whether `directory` is a shards folder of this kind, by the names in it.
bool looks_like(ShardsKind kind, const fs::path& directory) {
  return holds_ranks(kind, kind == ShardsKind::kOptimum ? directory / kOptimumModelFolder : directory);
}

/// The directory above `path`, whichever way that is written.
fs::path directory_above(const fs::path& path) {
  const fs::path full = fs::absolute(path).lexically_normal();
  return full.filename().empty() ? full.parent_path().parent_path() : full.parent_path();
}

/// The last part of `path`, whichever way that is written.
std::string own_name(const fs::path& path) {
  return fs::absolute(path / "").lexically_normal().parent_path().filename().string();
}

/// Whether everything in one rank's entry is a file that this program writes; what is not joins `foreign`.
void look_into_rank(const fs::path& path, const std::string& shown_as, std::vector<std::string>& foreign) {
  for (const auto& file : fs::directory_iterator(path)) {
    const std::string name = file.path().filename().string();
    if (!file.is_regular_file() || file.is_symlink() || (name != kSafetensorsFile && name != kPytorchRankFile))
      foreign.push_back(shown_as + "/" + name);
  }
}

void look_into_tensors(const fs::path& path, const std::string& shown_as, std::vector<std::string>& foreign) {
  for (const auto& file : fs::directory_iterator(path)) {
    const std::string name = file.path().filename().string();
    if (!file.is_regular_file() || !is_xser_tensor_name(name)) foreign.push_back(shown_as + "/" + name);
  }
}

/// Of the ranks, this program writes those of the first data-parallel copy.
bool is_our_rank(const std::string& name) {
  const auto rank = rank_of_name(name);
  return rank && rank->dp_rank == 0;
}

/// Entries that are ranks, with xser's beside them. `ending` is what a rank's file has after its numbers.
void look_at_ranks(const fs::path& folder, const std::string& shown_as, std::string_view ending,
                   std::vector<std::string>& foreign) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::string name = entry.path().filename().string();
    const std::string shown = shown_as + name;
    const bool tensors = name.ends_with(kXserTensorsSuffix);
    if (tensors) name.resize(name.size() - kXserTensorsSuffix.size());
    const bool info = !tensors && name.ends_with(kXserInfoSuffix);
    if (info) name.resize(name.size() - kXserInfoSuffix.size());
    const bool ended = name.ends_with(ending);
    if (ended) name.resize(name.size() - ending.size());
    const bool rank = ended && is_our_rank(name) && !entry.is_symlink();
    if (rank && tensors && entry.is_directory())
      look_into_tensors(entry.path(), shown, foreign);
    else if (rank && !tensors && !info && ending.empty() && entry.is_directory())
      look_into_rank(entry.path(), shown, foreign);
    else if (!rank || tensors || !entry.is_regular_file())
      foreign.push_back(shown);
  }
}

}  // namespace

std::string rank_name(ShardsKind kind, RankId rank) {
  if (describe(kind).deployed) return fmt::format("tp{}_sharded_checkpoint", rank.tp_rank);
  const std::string ep = rank.has_ep ? fmt::format("ep_rank_{:02}_", rank.ep_rank) : "";
  const std::string name = fmt::format("{}tp_rank_{:02}_pp_rank_{:02}", ep, rank.tp_rank, rank.pp_rank);
  return describe(kind).torch_only ? fmt::format("dp_rank_{:02}_{}", rank.dp_rank, name) : name;
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

std::optional<RankId> presharded_rank(std::string_view file_name) {
  constexpr std::string_view kBegin = "tp";
  constexpr std::string_view kEnd = "_sharded_checkpoint.safetensors";
  if (!file_name.starts_with(kBegin) || !file_name.ends_with(kEnd)) return std::nullopt;
  file_name.remove_prefix(kBegin.size());
  file_name.remove_suffix(std::min(kEnd.size(), file_name.size()));
  const auto number = parse_unsigned(file_name, kMaxParallelDegree - 1);
  if (!number) return std::nullopt;
  return RankId{static_cast<std::uint32_t>(*number)};
}

fs::path rank_path(ShardsKind kind, Format format, RankId rank) {
  const std::string name = rank_name(kind, rank);
  const fs::path folder = describe(kind).folder;
  if (kind == ShardsKind::kOptimum) return folder / kOptimumModelFolder / (name + ".pt");
  if (kind == ShardsKind::kNxd) return folder / (name + ".pt");
  if (describe(kind).deployed) return folder / (name + ".safetensors");
  switch (format) {
    case Format::kSafetensors: return folder / name / kSafetensorsFile;
    case Format::kPytorch: return folder / name / kPytorchRankFile;
    case Format::kXser: return folder / name;
  }
  return {};
}

namespace {

/// The checkpoint's own directory for a folder of shards that was given itself: where config.json is. Without one, a
/// folder of the usual name lies in it, and one of another name is it, as NxD saves it.
fs::path directory_of(const fs::path& shards, const std::string& usual_name) {
  const fs::path above = directory_above(shards);
  if (path_exists(shards / kConfigFile)) return shards;
  if (path_exists(above / kConfigFile)) return above;
  return own_name(shards) == usual_name ? above : shards;
}

}  // namespace

std::optional<ShardsFolder> find_shards_folder(const fs::path& path) {
  if (!fs::is_directory(path)) return std::nullopt;
  std::vector<ShardsFolder> found;
  // The folder of the weights inside the shards folder stands for that.
  if (own_name(path) == kOptimumModelFolder && holds_ranks(ShardsKind::kOptimum, path))
    return find_shards_folder(directory_above(path));
  for (const ShardsKind kind : {ShardsKind::kRanks, ShardsKind::kOptimum, ShardsKind::kPresharded}) {
    const ShardsKindRow& row = describe(kind);
    if (looks_like(row.kind, path / row.folder)) found.push_back({row.kind, path / row.folder, path});
    if (looks_like(row.kind, path)) found.push_back({row.kind, path, directory_of(path, row.folder)});
  }
  if (found.size() > 1)
    throw Error(ErrorKind::kBadInput,
                fmt::format("holds two sharded checkpoints, {} and {}", found[0].path.string(), found[1].path.string()))
        .in(path)
        .hint("give the folder that is meant");
  if (!found.empty()) return found.front();
  const fs::path empty = path / describe(ShardsKind::kRanks).folder;  // its own error says what is missing
  if (fs::is_directory(empty)) return ShardsFolder{ShardsKind::kRanks, empty, path};
  return std::nullopt;
}

std::vector<AdapterFolder> find_adapter_folders(const fs::path& path) {
  std::vector<AdapterFolder> found;
  const auto add = [&](const fs::path& parent, const fs::path& shards) {
    if (!looks_like(ShardsKind::kOptimum, shards)) return;
    std::string name = directory_above(shards).filename().string();
    const bool named = name.starts_with(kAdapterFolderPrefix);
    found.push_back({named ? name.substr(kAdapterFolderPrefix.size()) : "", {ShardsKind::kOptimum, shards, parent}});
  };
  if (!fs::is_directory(path)) return found;
  if (own_name(path) == kAdapterShardsFolder) add(directory_above(path), path);
  if (found.empty()) add(path, path / kAdapterShardsFolder);
  if (!found.empty()) {
    found.front().alone = true;
    return found;
  }
  std::optional<fs::filesystem_error> denied;
  for (const auto& entry : fs::directory_iterator(path)) {
    if (!entry.path().filename().string().starts_with(kAdapterFolderPrefix)) continue;
    try {
      add(entry.path(), entry.path() / kAdapterShardsFolder);
    } catch (const fs::filesystem_error& error) {
      if (error.code() != std::errc::permission_denied) throw;
      denied = error;
    }
  }
  if (denied && !found.empty()) throw *denied;  // else one of several adapters would silently be left out
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return found;
}

std::vector<RankFile> list_rank_files(const ShardsFolder& folder) {
  const bool optimum = folder.kind == ShardsKind::kOptimum;
  std::map<RankId, RankFile> by_rank;
  for (const auto& entry : fs::directory_iterator(optimum ? folder.path / kOptimumModelFolder : folder.path)) {
    const auto file = optimum                                  ? rank_in_optimum(entry)
                      : folder.kind == ShardsKind::kPresharded ? rank_in_presharded(entry)
                                                               : rank_in_ranks(entry);
    if (file && !by_rank.emplace(file->rank, *file).second)
      throw Error(ErrorKind::kBadInput,
                  fmt::format("is there twice: tp rank {}, pp rank {}", file->rank.tp_rank, file->rank.pp_rank))
          .in(entry.path());
  }
  if (by_rank.empty())
    throw Error(ErrorKind::kBadInput, "holds no weights named tp_rank_XX_pp_rank_YY").in(folder.path);
  std::vector<RankFile> files;
  for (auto& [rank, file] : by_rank) files.push_back(std::move(file));
  return files;
}

std::vector<std::string> foreign_entries(const fs::path& folder) {
  std::vector<std::string> foreign;
  if (looks_like(ShardsKind::kOptimum, folder)) {
    look_at_ranks(folder / kOptimumModelFolder, std::string(kOptimumModelFolder) + "/", ".pt", foreign);
    for (const auto& entry : fs::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      const bool ours = name == kCheckpointMarker || name == kDoneMarker || is_our_metadata(name);
      if (name != kOptimumModelFolder && !(ours && entry.is_regular_file())) foreign.push_back(name);
    }
  } else if (holds_ranks(ShardsKind::kNxd, folder)) {
    look_at_ranks(folder, "", ".pt", foreign);
  } else {
    look_at_ranks(folder, "", "", foreign);
    std::erase_if(foreign,
                  [&](const std::string& name) { return is_our_metadata(name) && fs::is_regular_file(folder / name); });
  }
  std::sort(foreign.begin(), foreign.end());
  return foreign;
}

}  // namespace reshard
