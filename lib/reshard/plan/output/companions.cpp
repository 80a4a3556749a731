#include "reshard/plan/output/companions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/paths.h"
#include "reshard/base/strings.h"
#include "reshard/formats/read_container.h"
#include "reshard/formats/safetensors/hf_index.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/found.h"
#include "reshard/layouts/peft/adapter_folders.h"
#include "reshard/layouts/ranks/rank_format.h"
#include "reshard/plan/output/model_files.h"
#include "reshard/plan/proof/manifest.h"
#include "reshard/plan/source/tags.h"
#include "reshard/specs/config/model_config.h"
#include "reshard/specs/peft/adapter_config.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

// Extensions of weights in formats that are not read.
constexpr std::string_view kOtherEndings[] = {".h5", ".msgpack", ".gguf", ".npz", ".ot"};
constexpr std::string_view kGraphExtension = ".onnx";
constexpr std::string_view kTokenizerConfigFile = "tokenizer_config.json";  // has no vocabulary

bool has_tensors_ending(std::string_view file_name) {
  const auto is_ending = [&](std::string_view ending) { return file_name.ends_with(ending); };
  return std::any_of(std::begin(kContainerEndings), std::end(kContainerEndings), is_ending) ||
         std::any_of(std::begin(kOtherEndings), std::end(kOtherEndings), is_ending);
}

/// A config.json next to such a file makes a checkpoint. `training_args.bin` is a .bin without tensors: it is small and
/// belongs to the run.
bool holds_tensors(std::string_view file_name) {
  return file_name != "training_args.bin" && has_tensors_ending(file_name);
}

bool is_tensor_index(std::string_view file_name) {
  return holds_tensors(indexed_name(file_name));
}

/// Whether the name is that of weights or of an index of weights.
bool is_weights(const std::string& file_name) {
  return holds_tensors(file_name) || file_name.ends_with(kGraphExtension) || !indexed_name(file_name).empty();
}

/// Returns the name of the file that a detached signature signs; std::nullopt if `file_name` is not one.
std::optional<std::string> signed_name(const std::string& file_name) {
  for (const std::string_view ending : {".sig", ".asc", ".minisig", ".sigstore", ".sigstore.json"})
    if (file_name.ends_with(ending) && file_name.size() > ending.size())
      return file_name.substr(0, file_name.size() - ending.size());
  return std::nullopt;
}

/// Whether the file proves the input's files, and thus not the output's: a list of digests, or a signature of such a
/// list, of weights, or of the whole directory (model.sig of OpenSSF model signing).
bool is_proof(const std::string& file_name) {
  const auto is_list = [](const std::string& name) { return name == kManifestFile || name == kSha256SumsFile; };
  const auto of = signed_name(file_name);
  return is_list(file_name) || (of && (*of == "model" || is_list(*of) || is_weights(*of)));
}

/// Whether a folder of this name always contains shards. A folder called "model" need not: its contents decide.
bool is_shards_name(const std::string& name) {
  return std::any_of(layouts().begin(), layouts().end(), [&](const Layout* layout) {
    const char* const own = layout->ranks() != nullptr ? layout->ranks()->own_folder : nullptr;
    return own != nullptr && name == own;
  });
}

/// Whether an entry of a checkpoint's directory describes its shards, or marks it in its training run.
bool is_of_shards(Files& files, const fs::path& directory, const std::string& name) {
  return std::any_of(layouts().begin(), layouts().end(),
                     [&](const Layout* layout) { return layout->owns(files, directory, name); }) ||
         (name == kLatestFile && !list_tags(files, directory).empty());
}

using Entries = std::vector<DirectoryEntry>;

/// Whether a folder is itself a checkpoint: a model's or an adapter's config next to weights, weights with an index,
/// shards of any layout, or what a trainer saves at a step (NxD: model/ and optim/, with marker files).
bool holds_checkpoint(Files& files, const fs::path& folder, const Entries& entries) {
  bool config = false, tensors = false;
  std::set<std::string> file_names, folder_names;
  for (const auto& [name, kind, is_link] : entries) {
    if (kind == FileKind::kDirectory) {
      if (is_shards_name(name) || rank_of_name(name)) return true;
      folder_names.insert(name);
    } else {
      if (is_tensor_index(name)) return true;
      config = config || name == kConfigFile || name == kAdapterConfigFile;
      tensors = tensors || holds_tensors(name);
      file_names.insert(name);
    }
  }
  if (config && tensors) return true;
  for (const Layout* layout : layouts())
    if (layout->is_checkpoint(file_names, folder_names)) return true;
  try {
    return find_shards(files, folder).has_value();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kIo || error.code()) throw;
    return true;  // two checkpoints in one folder
  }
}

/// Whether one of the paths is the folder or is inside it.
bool leads_to(Files& files, const fs::path& folder, const std::vector<fs::path>& paths) {
  const fs::path resolved = files.resolve(folder);
  return std::any_of(paths.begin(), paths.end(),
                     [&](const fs::path& path) { return lies_inside(files.resolve(path), resolved); });
}

bool is_one_of(Files& files, const fs::path& folder, const std::vector<fs::path>& paths) {
  return std::any_of(paths.begin(), paths.end(), [&](const fs::path& path) { return files.is_same(folder, path); });
}

/// Returns the result of `check`; false if it needs a subfolder that may not be read. Such a folder is left out later.
template <typename Check>
bool holds_unless_denied(Check&& check) {
  try {
    return check();
  } catch (const Error& error) {
    if (!is_denied(error)) throw;
    return false;
  }
}

/// Returns the paths, with one entry for each folder of which no file is copied.
std::vector<std::string> fold_folders(const std::vector<fs::path>& paths, const std::vector<CopiedFile>& copied) {
  std::set<fs::path> of_copies;
  for (const CopiedFile& file : copied)
    for (fs::path folder = file.path.parent_path(); !folder.empty(); folder = folder.parent_path())
      of_copies.insert(folder);
  std::vector<std::string> folded;
  for (const fs::path& path : paths) {
    std::string shown = path.string();
    for (fs::path folder = path.parent_path(); !folder.empty(); folder = folder.parent_path())
      if (of_copies.count(folder) == 0) shown = folder.string() + "/";
    if (folded.empty() || folded.back() != shown) folded.push_back(std::move(shown));
  }
  return folded;
}

class Collector {
 public:
  /// \param code  Result of model_code; not used for CompanionFiles::kAll.
  Collector(Files& files, CompanionFiles wanted, const std::vector<fs::path>& code,
            const std::vector<fs::path>& left_out)
      : files_(files), wanted_(wanted), code_(code.begin(), code.end()), left_out_(left_out) {}

  void collect(const fs::path& directory, const fs::path& relative, const Entries& entries) {
    for (const auto& [name, kind, is_link] : entries) {
      if (name.starts_with(".") && wanted_ == CompanionFiles::kAll) hidden_.push_back((relative / name).string());
      if (name.starts_with(".") || is_of_shards(files_, directory, name)) continue;
      if (kind == FileKind::kDirectory && is_link) {
        // A link may point anywhere, even back here.
        if (!is_one_of(files_, directory / name, left_out_)) linked_folders_.push_back((relative / name).string());
      } else if (kind == FileKind::kDirectory) {
        try_folder(directory / name, relative / name);
      } else if (kind == FileKind::kFile && has_weights_ending(name) && is_weights(name)) {
        found_.weights.push_back(directory / name);
      } else if (kind == FileKind::kFile && !is_weights(name) && !is_proof(name)) {
        add(directory / name, relative / name);
      } else if (kind == FileKind::kBrokenLink) {
        broken_links_.push_back((relative / name).string());
      } else if (kind == FileKind::kOther) {
        others_.push_back((relative / name).string());
      }
    }
  }

  Companions take() && {
    found_.left = fold_folders(unwanted_, found_.files);
    const auto note = [&](const std::vector<std::string>& folders, const char* one, const char* several) {
      if (!folders.empty())
        found_.notes.left_out(
            fmt::format("{} left out: {}", folders.size() == 1 ? one : several, list_names(folders, SIZE_MAX)));
    };
    note(checkpoints_, "a folder that is a separate checkpoint is", "folders that are separate checkpoints are");
    note(linked_folders_, "a folder that is a link is", "folders that are links are");
    note(broken_links_, "a broken link is", "broken links are");
    note(others_, "an entry that is not a regular file is", "entries that are not regular files are");
    note(hidden_, "a hidden file is", "hidden files are");
    note(denied_, "a folder without read permission is", "folders without read permission are");
    return std::move(found_);
  }

 private:
  void add(const fs::path& file, const fs::path& relative) {
    if (wanted_ != CompanionFiles::kAll && code_.count(relative) == 0 && !belongs_to_model(relative.string())) {
      if (relative != kKeptIndexMetadataFile) unwanted_.push_back(relative);  // that is read with the shards
      return;
    }
    try {
      found_.files.push_back({file, relative, files_.size_bytes(file)});
    } catch (const Error& error) {
      if (error.code() != std::errc::no_such_file_or_directory) throw;  // it may have just been deleted
    }
  }

  /// A folder that is denied half-way is left out as a whole.
  void try_folder(const fs::path& folder, const fs::path& relative) {
    const auto files = found_.files.size(), weights = found_.weights.size(), unwanted = unwanted_.size();
    std::vector<std::size_t> sizes;
    for (const auto* names : kinds_of_left_out()) sizes.push_back(names->size());
    try {
      look_into(folder, relative);
    } catch (const Error& error) {
      if (!is_denied(error)) throw;
      found_.files.resize(files);
      found_.weights.resize(weights);
      unwanted_.resize(unwanted);
      auto size = sizes.begin();
      for (auto* names : kinds_of_left_out()) names->resize(*size++);
      denied_.push_back(relative.string());
    }
  }

  void look_into(const fs::path& folder, const fs::path& relative) {
    const std::string name = folder.filename().string();
    if (is_one_of(files_, folder, left_out_) || name.starts_with(kAdapterFolderPrefix)) return;
    const bool checkpoint_name = is_shards_name(name) || name.starts_with("checkpoint-") || rank_of_name(name) ||
                                 holds_unless_denied([&] { return is_tag_folder(files_, folder); });
    if (!checkpoint_name) (void)files_.kind_of(folder / ".");  // throws if it may not be searched
    const Entries entries = checkpoint_name ? Entries{} : files_.list(folder);
    if (!checkpoint_name && !holds_unless_denied([&] { return holds_checkpoint(files_, folder, entries); }))
      return collect(folder, relative, entries);
    if (!leads_to(files_, folder, left_out_)) checkpoints_.push_back(relative.string());
  }

  std::array<std::vector<std::string>*, 6> kinds_of_left_out() {
    return {&checkpoints_, &denied_, &hidden_, &linked_folders_, &broken_links_, &others_};
  }

  Files& files_;
  const CompanionFiles wanted_;
  const std::set<fs::path> code_;
  const std::vector<fs::path>& left_out_;
  Companions found_;
  std::vector<fs::path> unwanted_;
  std::vector<std::string> checkpoints_, denied_, hidden_, linked_folders_, broken_links_,
      others_;  // left out, by kind
};

}  // namespace

bool has_weights_ending(std::string_view file_name) {
  return file_name.ends_with(kGraphExtension) || has_tensors_ending(file_name);
}

Companions companion_files(Files& files, const fs::path& directory, CompanionFiles wanted,
                           const std::vector<fs::path>& left_out) {
  const std::vector<fs::path> code =
      wanted == CompanionFiles::kAll ? std::vector<fs::path>{} : model_code(files, directory).files;
  Collector collector(files, wanted, code, left_out);
  collector.collect(directory, {}, files.list(directory));
  return std::move(collector).take();
}

namespace {

Entries list_if_allowed(Files& files, const fs::path& directory) {
  try {
    return files.list(directory);
  } catch (const Error& error) {
    if (!is_denied(error)) throw;
    return {};
  }
}

}  // namespace

std::vector<fs::path> weights_in(Files& files, const fs::path& directory) {
  std::vector<fs::path> found;
  for (const auto& [name, kind, is_link] : list_if_allowed(files, directory))
    if (kind == FileKind::kFile && !name.starts_with(".") && has_weights_ending(name) && is_weights(name))
      found.push_back(directory / name);
  return found;
}

std::vector<CopiedFile> tokenizer_files(Files& files, const fs::path& directory) {
  std::vector<CopiedFile> found;
  bool has_tokenizer = false;
  for (const auto& [name, kind, is_link] : list_if_allowed(files, directory)) {
    if (kind != FileKind::kFile || (!is_tokenizer(name) && !is_tokenizer_setting(name))) continue;
    has_tokenizer = has_tokenizer || (is_tokenizer(name) && name != kTokenizerConfigFile);
    found.push_back({directory / name, name, files.size_bytes(directory / name)});
  }
  return has_tokenizer ? found : std::vector<CopiedFile>{};
}

}  // namespace reshard
