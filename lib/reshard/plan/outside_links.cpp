#include "reshard/plan/outside_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/model_bounds.h"
#include "reshard/specs/adapter_config.h"
#include "reshard/specs/model_config.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Whether the output is of no use without the file.
bool is_config(const fs::path& path) {
  const fs::path name = path.filename();
  return name == kConfigFile || name == kAdapterConfigFile || name == kUnfusedConfigFile;
}

Error outside(Files& files, const fs::path& link) {
  return std::move(
      Error(ErrorKind::kBadInput, "is a link to outside of the model, to " + printable(files.resolve(link).string()))
          .in(link)
          .hint("replace the link by the file itself, or name it with `config`"));
}

}  // namespace

void leave_out_outside_links(Files& files, Job& job, const SourceRequest& request,
                             const std::vector<fs::path>& adapters) {
  std::vector<fs::path> given = adapters;
  given.insert(given.end(), {request.path, job.source_directory, job.model_directory, request.config});
  if (!request.config.empty() && !files.is_directory(request.config))  // a tokenizer may come from there, too
    given.push_back(request.config.has_parent_path() ? request.config.parent_path() : fs::path("."));
  const ModelBounds bounds(files, given);
  for (const TextFile& file : job.text_files)
    if (is_config(file.path) && !file.source.empty() && !bounds.hold(file.source)) throw outside(files, file.source);
  std::vector<std::string> left_out;
  std::erase_if(job.copied_files, [&](const CopiedFile& file) {
    if (bounds.hold(file.source)) return false;
    if (is_config(file.path)) throw outside(files, file.source);
    left_out.push_back(file.path.string());
    return true;
  });
  if (left_out.empty()) return;
  std::sort(left_out.begin(), left_out.end());
  job.notes.push_back(fmt::format(
      "{} left out: {}",
      left_out.size() == 1 ? "a link to a file outside of the model is" : "links to files outside of the model are",
      list_names(left_out, SIZE_MAX)));
}

}  // namespace reshard
