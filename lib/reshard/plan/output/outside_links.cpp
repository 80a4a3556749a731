#include "reshard/plan/output/outside_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "reshard/base/error.h"
#include "reshard/base/paths.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/core/model_bounds.h"
#include "reshard/specs/config/model_config.h"
#include "reshard/specs/peft/adapter_config.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Whether the output is unusable without the file.
bool is_config(const fs::path& path) {
  const fs::path name = path.filename();
  return name == kConfigFile || name == kAdapterConfigFile || name == kUnfusedConfigFile;
}

/// \param output  path of the copy in the output.
Error outside(Files& files, const fs::path& link, const fs::path& output) {
  return std::move(
      Error(ErrorKind::kBadInput, "is a link out of the model, to " + printable(files.resolve(link).string()))
          .in(link)
          .hint(std::string("replace the link with the file itself") +
                (output == kConfigFile ? ", or name it with `config`" : "")));
}

}  // namespace

void leave_out_outside_links(Files& files, Job& job, const SourceRequest& request,
                             const std::vector<fs::path>& adapters) {
  std::vector<fs::path> given = adapters;
  given.insert(given.end(), {request.path, job.source_directory, job.model_directory, request.config});
  const ModelBounds model(files, given);
  // A tokenizer may come from the directory of a given config.json, or from the one above a step of a training run.
  // Other contents of these directories do not belong to the model: only their own entries may link to them.
  std::vector<fs::path> beside{directory_above(files, request.path)};
  if (!request.config.empty() && !files.is_directory(request.config))
    beside.push_back(files.absolute(request.config).lexically_normal().parent_path());
  const auto holds = [&](const fs::path& source) {
    if (model.hold(source)) return true;
    const fs::path path = files.absolute(source).lexically_normal();
    const auto is_in = [&](const fs::path& folder) {
      return !folder.empty() && lies_inside(path, files.absolute(folder).lexically_normal());
    };
    return std::none_of(given.begin(), given.end(), is_in) &&
           std::any_of(beside.begin(), beside.end(), [&](const fs::path& folder) {
             return is_in(folder) && ModelBounds(files, {folder}).hold(source);
           });
  };
  for (const TextFile& file : job.text_files)
    if (is_config(file.path) && !file.source.empty() && !holds(file.source))
      throw outside(files, file.source, file.path);
  std::vector<std::string> left_out;
  std::erase_if(job.copied_files, [&](const CopiedFile& file) {
    if (holds(file.source)) return false;
    if (is_config(file.path)) throw outside(files, file.source, file.path);
    left_out.push_back(file.path.string());
    return true;
  });
  if (left_out.empty()) return;
  std::sort(left_out.begin(), left_out.end());
  job.notes.left_out(fmt::format(
      "{} left out: {}",
      left_out.size() == 1 ? "a link to a file outside the model is" : "links to files outside the model are",
      list_names(left_out, SIZE_MAX)));
}

}  // namespace reshard
