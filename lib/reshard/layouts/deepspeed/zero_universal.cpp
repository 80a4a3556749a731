#include "reshard/layouts/deepspeed/zero_universal.h"

#include <fmt/format.h>

#include <set>
#include <string>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/deepspeed/zero_folder.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMasterFile = "fp32.pt";
constexpr const char* kMomentFiles[] = {"exp_avg.pt", "exp_avg_sq.pt"};

void count_file(Files& files, const fs::path& path, TensorCount& count) {
  if (!files.is_file(path)) return;
  ++count.tensors;
  count.bytes += files.size_bytes(path);
}

/// Every folder is a parameter's.
void validate_folders(Files& files, const fs::path& zero, const ZeroModelStates& model) {
  std::set<std::string_view> names;
  for (const auto& group : model.groups)
    for (const ZeroParameter& parameter : group) names.insert(parameter.name);
  for (const DirectoryEntry& entry : files.list(zero))
    if (entry.kind == FileKind::kDirectory && !names.count(entry.name))
      throw Error(ErrorKind::kBadInput, fmt::format("is the folder of a parameter that \"param_shapes\" of {} does not "
                                                    "have",
                                                    model.file.path.filename().string()))
          .in(zero / entry.name)
          .hint("files of two checkpoints are mixed in one folder");
}

}  // namespace

UniversalMasters read_universal_masters(Files& files, const fs::path& folder, const ZeroModelStates& model, bool wanted,
                                        std::uint32_t first_file) {
  const fs::path zero = folder / kUniversalFolder;
  validate_folders(files, zero, model);
  UniversalMasters found;
  bool first = true;
  for (const auto& group : model.groups)
    for (const ZeroParameter& parameter : group) {
      const bool is_name = parameter.name.find('/') == std::string::npos && parameter.name != "..";
      const fs::path path = zero / parameter.name / kMasterFile;
      if (!is_name || !files.is_file(path))
        throw Error(ErrorKind::kBadInput, fmt::format("has no file {}", kMasterFile))
            .in(zero)
            .tensor(parameter.name)
            .hint("copy the folders of all parameters here");
      for (const char* moment : kMomentFiles) count_file(files, path.parent_path() / moment, found.state);
      if (!wanted) {
        count_file(files, path, found.unread);
        continue;
      }
      ContainerFile file;
      const TensorEntry entry = read_zero_parameter(files, path, file);
      const std::uint64_t elems = *num_elems(parameter.shape);
      const bool flat = entry.shape.size() == 1 && entry.shape[0] == elems;
      if (entry.shape != parameter.shape && !flat)
        throw Error(ErrorKind::kBadInput, fmt::format("has the shape {}, but \"param_shapes\" says {}",
                                                      to_string(entry.shape), to_string(parameter.shape)))
            .in(path)
            .tensor(parameter.name);
      if (!entry.strides.empty())
        throw Error(ErrorKind::kUnsupported, "does not lie in C order").in(path).tensor(parameter.name);
      if (first) found.masters.dtype = entry.dtype;
      first = false;
      if (entry.dtype != found.masters.dtype)
        throw Error(ErrorKind::kBadInput,
                    fmt::format("is {}, but others are {}", name(entry.dtype), name(found.masters.dtype)))
            .in(path)
            .tensor(parameter.name);
      found.masters.runs[parameter.name] = {
          {first_file + static_cast<std::uint32_t>(found.files.size()), entry.offset_bytes, 0, elems}};
      found.files.push_back(std::move(file));
    }
  return found;
}

}  // namespace reshard
