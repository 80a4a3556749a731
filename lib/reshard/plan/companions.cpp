#include "reshard/plan/companions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/paths.h"
#include "reshard/base/strings.h"
#include "reshard/io/local_storage.h"
#include "reshard/layouts/adapter_folders.h"
#include "reshard/layouts/layout.h"
#include "reshard/layouts/rank_folder.h"
#include "reshard/plan/tags.h"
#include "reshard/specs/adapter_config.h"
#include "reshard/specs/model_config.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

// Those of tensors; a config.json beside some makes a checkpoint.
constexpr std::array kTensorExtensions = {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf"};
constexpr std::string_view kGraphExtension = ".onnx";
constexpr std::string_view kIndexEnding = ".index.json";

/// `training_args.bin` is a .bin that holds none: it is small and belongs to the run.
bool holds_tensors(const std::string& file_name) {
  return file_name != "training_args.bin" &&
         std::any_of(kTensorExtensions.begin(), kTensorExtensions.end(),
                     [&](const char* extension) { return file_name.ends_with(extension); });
}

bool is_tensor_index(const std::string& file_name) {
  return file_name.ends_with(kIndexEnding) &&
         holds_tensors(file_name.substr(0, file_name.size() - kIndexEnding.size()));
}

/// Weights by their name, or an index of them.
bool is_weights(const std::string& file_name) {
  return holds_tensors(file_name) || file_name.ends_with(kGraphExtension) || file_name.ends_with(kIndexEnding);
}

/// A folder of this name can only be one of shards. Anything may be called "model": that is told by what is in it.
bool is_shards_name(const std::string& name) {
  return std::any_of(layouts().begin(), layouts().end(),
                     [&](const Layout* layout) { return layout->owns_folder_name(name); });
}

/// What is about the shards in a checkpoint's directory, or marks it among those of a run.
bool is_of_shards(const fs::path& directory, const std::string& name) {
  return std::any_of(layouts().begin(), layouts().end(),
                     [&](const Layout* layout) { return layout->owns(directory, name); }) ||
         (name == kLatestFile && !list_tags(directory).empty());
}

using Entries = std::set<fs::directory_entry>;  // sorted: the order must not be the file system's

Entries entries_of(const fs::path& folder) {
  Entries entries;
  for (const auto& entry : fs::directory_iterator(folder)) entries.insert(entry);
  return entries;
}

/// Whether a folder is a checkpoint of its own: a model's or an adapter's config with weights beside it, weights with an
/// index, shards of any layout, or what a trainer saves at a step (NxD: model/ and optim/, with marker files).
bool holds_checkpoint(const fs::path& folder, const Entries& entries) {
  bool config = false, tensors = false;
  std::set<std::string> files, folders;
  for (const fs::directory_entry& entry : entries) {
    const std::string name = entry.path().filename().string();
    std::error_code broken_link;
    if (entry.is_directory(broken_link)) {
      if (is_shards_name(name) || rank_of_name(name)) return true;
      folders.insert(name);
    } else {
      if (is_tensor_index(name)) return true;
      config = config || name == kConfigFile || name == kAdapterConfigFile;
      tensors = tensors || holds_tensors(name);
      files.insert(name);
    }
  }
  if (config && tensors) return true;
  for (const Layout* layout : layouts())
    if (layout->is_checkpoint(files, folders)) return true;
  try {
    return find_shards(folder).has_value();
  } catch (const Error&) {
    return true;  // two in one place
  }
}

/// Whether these are the folder, or one of them lies in it.
bool leads_to(const fs::path& folder, const std::vector<fs::path>& paths) {
  const fs::path resolved = resolved_path(folder);
  return std::any_of(paths.begin(), paths.end(),
                     [&](const fs::path& path) { return lies_inside(resolved_path(path), resolved); });
}

bool is_one_of(const fs::path& folder, const std::vector<fs::path>& paths) {
  std::error_code ignored;
  return std::any_of(paths.begin(), paths.end(),
                     [&](const fs::path& path) { return fs::equivalent(folder, path, ignored); });
}

/// Whether what a folder holds is not to be had, and no fault of the disk: it may not be read, or has just gone.
bool is_denied(const std::error_code& error) {
  return error == std::errc::permission_denied || error == std::errc::operation_not_permitted ||
         error == std::errc::no_such_file_or_directory;
}

/// What `check` says of a folder; false if it looks at something below that may not be read, which is then left out by
/// itself.
template <typename Check>
bool holds_unless_denied(Check&& check) {
  try {
    return check();
  } catch (const fs::filesystem_error& error) {
    if (!is_denied(error.code())) throw;
    return false;
  }
}

class Collector {
 public:
  explicit Collector(const std::vector<fs::path>& left_out) : left_out_(left_out) {}

  void collect(const fs::path& directory, const fs::path& relative, const Entries& entries) {
    for (const auto& entry : entries) {
      const std::string name = entry.path().filename().string();
      std::error_code broken_link;
      if (name.starts_with(".") || is_of_shards(directory, name)) continue;
      if (entry.is_directory(broken_link)) {
        // A linked folder may lead anywhere, even back here.
        if (!entry.is_symlink()) try_folder(directory / name, relative / name);
      } else if (entry.is_regular_file(broken_link) && !is_weights(name)) {
        std::error_code error;
        const std::uint64_t size_bytes = entry.file_size(error);
        if (error == std::errc::no_such_file_or_directory) continue;  // it has just gone
        if (error) throw fs::filesystem_error("cannot look at it", entry.path(), error);
        found_.files.push_back({entry.path(), relative / name, size_bytes});
      }
    }
  }

  Companions take() && {
    const auto note = [&](const std::vector<std::string>& folders, const char* one, const char* several) {
      if (!folders.empty())
        found_.notes.push_back(
            fmt::format("{} left out: {}", folders.size() == 1 ? one : several, list_names(folders, SIZE_MAX)));
    };
    note(checkpoints_, "a folder that is a checkpoint of its own is", "folders that are checkpoints of their own are");
    note(denied_, "a folder that may not be read is", "folders that may not be read are");
    return std::move(found_);
  }

 private:
  /// A folder that is denied half-way is left out as a whole.
  void try_folder(const fs::path& folder, const fs::path& relative) {
    const auto files = found_.files.size(), checkpoints = checkpoints_.size(), denied = denied_.size();
    try {
      look_into(folder, relative);
    } catch (const fs::filesystem_error& error) {
      if (!is_denied(error.code())) throw;
      found_.files.resize(files);
      checkpoints_.resize(checkpoints);
      denied_.resize(denied);
      denied_.push_back(relative.string());
    }
  }

  void look_into(const fs::path& folder, const fs::path& relative) {
    const std::string name = folder.filename().string();
    if (is_one_of(folder, left_out_) || name.starts_with(kAdapterFolderPrefix)) return;
    const bool checkpoint_name = is_shards_name(name) || name.starts_with("checkpoint-") || rank_of_name(name) ||
                                 holds_unless_denied([&] { return is_tag_folder(folder); });
    if (!checkpoint_name) (void)fs::status(folder / ".");  // throws if it may not be searched
    const Entries entries = checkpoint_name ? Entries{} : entries_of(folder);
    if (!checkpoint_name && !holds_unless_denied([&] { return holds_checkpoint(folder, entries); }))
      return collect(folder, relative, entries);
    if (!leads_to(folder, left_out_)) checkpoints_.push_back(relative.string());
  }

  const std::vector<fs::path>& left_out_;
  Companions found_;
  std::vector<std::string> checkpoints_, denied_;
};

}  // namespace

bool has_weights_ending(std::string_view file_name) {
  return file_name.ends_with(kGraphExtension) ||
         std::any_of(kTensorExtensions.begin(), kTensorExtensions.end(),
                     [&](const char* extension) { return file_name.ends_with(extension); });
}

Companions companion_files(const fs::path& directory, const std::vector<fs::path>& left_out) {
  Collector collector(left_out);
  collector.collect(directory, {}, entries_of(directory));
  return std::move(collector).take();
}

}  // namespace reshard
