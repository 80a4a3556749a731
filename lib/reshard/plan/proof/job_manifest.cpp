#include "reshard/plan/proof/job_manifest.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <unordered_map>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/tensor/recipes/mean.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

void sort_by_path(std::vector<Manifest::File>& files) {
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
}

/// Returns the path relative to the source's directory, so that its location does not matter. A source that is a file
/// has its name.
std::string source_path(const Job& job, const fs::path& file) {
  const fs::path relative = file.lexically_relative(job.source_directory);
  const bool is_below = !relative.empty() && relative != "." && *relative.begin() != "..";
  return (is_below ? relative : file.filename()).generic_string();
}

std::optional<Sha256Digest> digest_of(const Job& job, const fs::path& file) {
  const auto found = job.source_digests.find(file);
  return found == job.source_digests.end() ? std::nullopt : std::optional(found->second);
}

/// Adds the states that other target tensors represent, since a reader finds all of them.
void add_same(const TargetMap& target, std::vector<Manifest::Tensor>& tensors) {
  if (target.same.empty()) return;
  std::unordered_map<std::string_view, std::vector<std::string_view>> names;
  for (const auto& [name, of] : target.same) names[of].push_back(name);
  for (std::size_t t = 0, count = tensors.size(); t < count; ++t) {
    const auto found = names.find(tensors[t].name);
    if (found == names.end()) continue;
    for (const std::string_view name : found->second) {
      Manifest::Tensor other = tensors[t];
      other.name = name;
      tensors.push_back(std::move(other));
    }
  }
}

/// Returns the names that a reader gives a target tensor: a mean is read as each of its terms.
std::vector<std::string> names_when_read(const SourceMap& source, const std::string& name) {
  const auto index = source.find_logical(name);
  const Computed* const computed = index ? source.logical[*index].computed.get() : nullptr;
  if (computed == nullptr || computed->recipe->key() != kMeanKey) return {name};
  std::vector<std::string> names = computed->inputs;
  names.insert(names.end(), computed->copies.begin(), computed->copies.end());
  return names;
}

/// Returns the options besides the mesh that shaped the output.
std::map<std::string, Manifest::OptionValue> options_of(const Job& job) {
  std::map<std::string, Manifest::OptionValue> options;
  if (job.format) options["format"] = std::string(name(*job.format));
  if (job.dtype) options["dtype"] = std::string(name(*job.dtype));
  if (job.layout == nullptr) return options;
  for (const LayoutOption* option : job.layout->options())
    if (auto value = given_option(job, *option)) options[option->name] = std::move(*value);
  return options;
}

bool is_json_text(const std::string& text) {
  try {
    json_string(text);
    return true;
  } catch (const Json::exception&) {
    return false;
  }
}

}  // namespace

std::optional<Manifest::OptionValue> given_option(const Job& job, const LayoutOption& option) {
  if (!job.options.has(option.name)) return std::nullopt;
  switch (option.type) {
    case LayoutOption::Type::kFlag: return true;
    case LayoutOption::Type::kDegree:
    case LayoutOption::Type::kCount:
    case LayoutOption::Type::kRank:
    case LayoutOption::Type::kSize: return job.options.number(option).value();
    case LayoutOption::Type::kChoice: return job.options.choice(option);
    case LayoutOption::Type::kText: return job.options.text(option);
  }
  return std::nullopt;
}

void validate_manifest_names(const Job& job) {
  constexpr const char* kHint = "rename it, or leave out `manifest`";
  constexpr const char* kNoText = "has a name that is not UTF-8, which a manifest cannot contain";
  const auto validate = [&](const fs::path& path, const fs::path& listed) {
    if (!is_json_text(listed.generic_string())) throw Error(ErrorKind::kBadInput, kNoText).in(path).hint(kHint);
  };
  for (const SourceFile& file : job.source.files) validate(file.path, source_path(job, file.path));
  for (const CopiedFile& file : job.copied_files) {
    validate(file.source, source_path(job, file.source));
    validate(file.source, file.path);
  }
  for (const TargetFile& file : job.target.files) validate(job.output_directory / file.path, file.path);
  for (const LogicalTensor& tensor : job.target.logical)
    if (!is_json_text(tensor.name)) throw Error(ErrorKind::kBadInput, kNoText).tensor(tensor.name).hint(kHint);
}

Manifest manifest_of(const Job& job, std::string fingerprint, const std::vector<TensorDigest>& digests,
                     std::vector<Manifest::File> files) {
  Manifest manifest;
  manifest.version = RESHARD_VERSION;
  manifest.command = job.command;
  manifest.layout = job.layout != nullptr ? job.layout->traits().name : "";
  manifest.tp = job.mesh.tp;
  manifest.pp = job.mesh.pp;
  manifest.ep = job.mesh.ep;
  manifest.options = options_of(job);
  manifest.fingerprint = std::move(fingerprint);
  for (const SourceFile& file : job.source.files)
    manifest.sources.push_back({source_path(job, file.path), file.size_bytes, digest_of(job, file.path)});
  for (const CopiedFile& file : job.copied_files)
    manifest.sources.push_back({source_path(job, file.source), file.size_bytes, digest_of(job, file.source)});
  sort_by_path(manifest.sources);
  manifest.files = std::move(files);
  sort_by_path(manifest.files);
  for (std::size_t t = 0; t < digests.size(); ++t) {
    const LogicalTensor& tensor = job.target.logical[t];
    if (tensor.constant()) continue;
    for (std::string& name : names_when_read(job.source, tensor.name))
      manifest.tensors.push_back({std::move(name), tensor.dtype, tensor.shape, digests[t], tensor.role});
  }
  add_same(job.target, manifest.tensors);
  std::sort(manifest.tensors.begin(), manifest.tensors.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return manifest;
}

}  // namespace reshard
