#include "reshard/engine/check/verify_manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "reshard/base/error.h"
#include "reshard/engine/check/digests.h"
#include "reshard/engine/units/leaf_digests.h"
#include "reshard/plan/output/companions.h"
#include "reshard/tensor/values/box.h"

namespace reshard {
namespace {

std::string form(DType dtype, const Dims& shape) {
  return fmt::format("{} {}", name(dtype), to_string(shape));
}

/// Returns the files of `map` that contain some of `part` of tensor `logical`.
std::vector<std::string> files_of(const SourceMap& map, std::uint32_t logical, const Box& part) {
  std::vector<std::string> files;
  for (const Piece& piece : map.pieces[logical]) {
    if (!intersect(piece.box, part)) continue;
    std::string file = map.files[map.stored[piece.stored].file].path.string();
    if (std::find(files.begin(), files.end(), file) == files.end()) files.push_back(std::move(file));
  }
  return files;
}

DigestDifference difference(const SourceMap& map, std::uint32_t logical, const TensorDigest& own,
                            const TensorDigest& expected) {
  const LogicalTensor& tensor = map.logical[logical];
  DigestDifference found;
  found.name = tensor.name;
  found.leaves = std::max<std::size_t>(own.leaves.size(), 1);
  for (std::size_t leaf = 0; leaf < own.leaves.size(); ++leaf)
    if (own.leaves[leaf] != expected.leaves[leaf]) found.differ.push_back(leaf);
  if (own.leaves.empty()) found.differ.push_back(0);
  const Box part = leaf_of(tensor.dtype, tensor.shape, found.differ.front());
  found.first = to_string(part);
  found.files = files_of(map, logical, part);
  return found;
}

/// Finds weights files in a directory tree that a list does not name. Ignores unreadable folders.
void find_unlisted(Files& files, const std::filesystem::path& directory, const std::filesystem::path& folder,
                   const std::set<std::string>& listed, std::vector<std::string>& unlisted) {
  std::vector<DirectoryEntry> entries;
  try {
    entries = files.list(directory / folder);
  } catch (const Error&) {
    return;
  }
  for (const DirectoryEntry& entry : entries) {
    const std::filesystem::path path = folder / entry.name;
    if (entry.kind == FileKind::kDirectory && !entry.is_link && !entry.name.starts_with('.'))
      find_unlisted(files, directory, path, listed, unlisted);
    if (entry.kind == FileKind::kFile && has_weights_ending(entry.name) && !listed.contains(path.generic_string()))
      unlisted.push_back(path.generic_string());
  }
}

}  // namespace

ManifestVerification verify_manifest(const SourceMap& map, const Manifest& manifest,
                                     const std::filesystem::path& manifest_path, const RunOptions& options) {
  Together alone;
  return verify_manifest(map, manifest, manifest_path, options, alone);
}

ManifestVerification verify_manifest(const SourceMap& map, const Manifest& manifest,
                                     const std::filesystem::path& manifest_path, const RunOptions& options,
                                     Together& together) {
  ManifestVerification result;
  std::map<std::string_view, const Manifest::Tensor*> expected;
  for (const Manifest::Tensor& tensor : manifest.tensors) expected.emplace(tensor.name, &tensor);
  std::vector<std::uint32_t> wanted;
  std::vector<const Manifest::Tensor*> against;
  for (std::uint32_t index = 0; index < map.logical.size(); ++index) {
    const LogicalTensor& tensor = map.logical[index];
    if (tensor.constant()) continue;
    const auto found = expected.find(tensor.name);
    if (found == expected.end() && (tensor.role == TensorRole::kPart || tensor.computed)) continue;
    if (found == expected.end()) {
      result.only_checkpoint.push_back(tensor.name);
      continue;
    }
    const Manifest::Tensor& other = *found->second;
    expected.erase(found);
    if (tensor.dtype != other.dtype || tensor.shape != other.shape) {
      result.other_form.push_back(fmt::format("{}: {}, in the manifest {}", tensor.name,
                                              form(tensor.dtype, tensor.shape), form(other.dtype, other.shape)));
      continue;
    }
    const std::uint64_t leaves = LeafDigests(tensor.dtype, tensor.shape).leaves();
    if (other.digest.leaves.size() != (leaves > 1 ? leaves : 0))
      throw Error(ErrorKind::kBadInput, fmt::format("lists {} leaves, but a tensor of its shape has {}",
                                                    other.digest.leaves.size(), leaves > 1 ? leaves : 0))
          .in(manifest_path)
          .tensor(tensor.name)
          .hint("the manifest was edited or damaged");
    wanted.push_back(index);
    against.push_back(&other);
  }
  const bool has_states = std::any_of(map.logical.begin(), map.logical.end(), [](const LogicalTensor& tensor) {
    return tensor.role != TensorRole::kParameter && tensor.role != TensorRole::kPart;
  });
  for (const auto& [name, tensor] : expected) {
    // A tensor that a layout computes has the name of the parameter first: "bias[1::2] + 1".
    const std::size_t parameter = name.find_first_of(" [");
    if (parameter != name.npos && map.find_logical(std::string(name.substr(0, parameter))))
      throw Error(ErrorKind::kUnsupported,
                  fmt::format("lists tensors that its layout computes from the model's, such as {}: this checkpoint "
                              "cannot be compared with them",
                              name))
          .in(manifest_path)
          .hint("verify the manifest's own directory with it, and compare that directory with this checkpoint");
    if (tensor->role != TensorRole::kParameter && !has_states)
      ++result.states_left;
    else
      result.only_manifest.emplace_back(name);
  }
  const std::vector<TensorDigest> digests = compute_digests(map, wanted, options, true, together);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const LogicalTensor& tensor = map.logical[wanted[i]];
    ++result.compared_tensors;
    result.compared_bytes += num_bytes(tensor.dtype, tensor.shape).value_or(0);
    if (digests[i].digest != against[i]->digest.digest)
      result.different.push_back(difference(map, wanted[i], digests[i], against[i]->digest));
  }
  for (std::vector<std::string>* names : {&result.only_manifest, &result.only_checkpoint, &result.other_form})
    std::sort(names->begin(), names->end());
  std::sort(result.different.begin(), result.different.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return result;
}

FilesVerification verify_manifest_files(const Manifest& manifest, const std::filesystem::path& directory,
                                        const RunOptions& options, Together& together) {
  FilesVerification result;
  std::set<std::string> listed = {kManifestFile, kSha256SumsFile};
  std::vector<const Manifest::File*> hashed;
  std::vector<std::filesystem::path> paths;
  for (const Manifest::File& file : manifest.files) {
    listed.insert(file.path);
    const std::filesystem::path path = directory / file.path;
    if (!options.stores.sources().is_file(path)) {
      result.missing.push_back(file.path);
      continue;
    }
    ++result.compared_files;
    result.compared_bytes += options.stores.sources().size_bytes(path);
    if (options.stores.sources().size_bytes(path) != file.size_bytes) {
      result.different.push_back(file.path);
    } else if (file.digest) {
      hashed.push_back(&file);
      paths.push_back(path);
    }
  }
  const auto read = [&](std::uint64_t bytes) {
    if (options.progress) options.progress->done_bytes += bytes;
  };
  const std::vector<Sha256Digest> digests = digest_files(paths, options, read, together);
  for (std::size_t i = 0; i < hashed.size(); ++i)
    if (digests[i] != *hashed[i]->digest) result.different.push_back(hashed[i]->path);
  std::sort(result.different.begin(), result.different.end());
  find_unlisted(options.stores.sources(), directory, {}, listed, result.unlisted);
  return result;
}

FilesVerification verify_files(const std::filesystem::path& directory, const std::vector<FileDigest>& files,
                               const RunOptions& options) {
  Together alone;
  return verify_files(directory, files, options, alone);
}

FilesVerification verify_files(const std::filesystem::path& directory, const std::vector<FileDigest>& files,
                               const RunOptions& options, Together& together) {
  FilesVerification result;
  std::vector<const FileDigest*> present;
  std::vector<std::filesystem::path> paths;
  for (const FileDigest& file : files) {
    if (options.stores.sources().is_file(directory / file.path)) {
      present.push_back(&file);
      paths.push_back(directory / file.path);
      result.compared_bytes += options.stores.sources().size_bytes(paths.back());
    } else {
      result.missing.push_back(file.path);
    }
  }
  const auto read = [&](std::uint64_t bytes) {
    if (options.progress) options.progress->done_bytes += bytes;
  };
  const std::vector<Sha256Digest> digests = digest_files(paths, options, read, together);
  for (std::size_t i = 0; i < present.size(); ++i)
    if (digests[i] != present[i]->digest) result.different.push_back(present[i]->path);
  result.compared_files = present.size();
  std::set<std::string> listed;
  for (const FileDigest& file : files) listed.insert(file.path);
  find_unlisted(options.stores.sources(), directory, {}, listed, result.unlisted);
  return result;
}

}  // namespace reshard
