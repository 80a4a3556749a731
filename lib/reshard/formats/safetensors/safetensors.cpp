#include "reshard/formats/safetensors/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_set>

#include "reshard/base/checked.h"
#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/formats/common/magic.h"
#include "reshard/formats/common/tensor_names.h"
#include "reshard/formats/safetensors/safetensors_header.h"

namespace reshard {
namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kHeaderAlignment = 8;
constexpr std::size_t kLookBytes = 64;  // enough to detect other formats

static_assert(std::endian::native == std::endian::little, "lengths are read and written in place");

Error bad(const std::filesystem::path& path, std::string message) {
  return Error(ErrorKind::kBadInput, std::move(message)).in(path);
}

/// Rules 10 to 12 for one tensor: the size from shape and dtype equals the size from the offsets.
void validate_size(const SafetensorsHeader::Tensor& tensor, const std::filesystem::path& path) {
  const auto elems = num_elems(tensor.shape);
  const auto total_bits = elems ? checked_mul(*elems, bits(tensor.dtype)) : std::nullopt;
  if (!total_bits)
    throw bad(path,
              "the shape " + to_string(tensor.shape) + " of " + std::string(name(tensor.dtype)) + " overflows 64 bits")
        .tensor(tensor.name);
  if (*total_bits % 8 != 0)
    throw bad(path, "the shape " + to_string(tensor.shape) + " of " + std::string(name(tensor.dtype)) + " takes " +
                        std::to_string(*total_bits) + " bits, which is not a whole number of bytes")
        .tensor(tensor.name);
  if (tensor.end - tensor.begin != *total_bits / 8)
    throw bad(path, "the shape " + to_string(tensor.shape) + " of " + std::string(name(tensor.dtype)) + " takes " +
                        std::to_string(*total_bits / 8) + " bytes, but data_offsets contain " +
                        std::to_string(tensor.end - tensor.begin))
        .tensor(tensor.name);
}

/// Rule 9: in offset order, each tensor begins where the previous one ends. If a hole exists because a tensor is
/// outside the `data_bytes` of the file, reports that tensor and not the one after the hole.
void validate_offsets(const std::vector<SafetensorsHeader::Tensor>& by_offset, std::uint64_t data_bytes,
                      const std::filesystem::path& path) {
  for (const auto& tensor : by_offset)
    if (tensor.end < tensor.begin)
      throw bad(path, "data_offsets end at " + std::to_string(tensor.end) + ", before they begin at " +
                          std::to_string(tensor.begin))
          .tensor(tensor.name);
  std::uint64_t expected = 0;
  const std::string* previous = nullptr;
  for (const auto& tensor : by_offset) {
    if (tensor.begin > expected && by_offset.back().begin >= data_bytes && by_offset.back().end > data_bytes)
      throw bad(path, fmt::format("data_offsets are {} to {}, but the file has {} bytes of data",
                                  by_offset.back().begin, by_offset.back().end, data_bytes))
          .tensor(by_offset.back().name);
    if (tensor.begin != expected) {
      const std::string what = tensor.begin < expected ? "overlap" : "leave a hole after";
      const std::string other = previous ? "tensor " + printable(*previous) : std::string("the start of the data");
      throw bad(path, "data_offsets begin at " + std::to_string(tensor.begin) + " and " + what + " " + other +
                          ", which ends at " + std::to_string(expected))
          .tensor(tensor.name);
    }
    expected = tensor.end;
    previous = &tensor.name;
  }
}

}  // namespace

Container parse_safetensors_header(std::string_view header, std::uint64_t file_bytes,
                                   const std::filesystem::path& path) {
  SafetensorsHeader parsed = parse_header_json(header, path);
  auto& tensors = parsed.tensors;
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const auto& a, const auto& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  const std::uint64_t data_begin = kLengthBytes + header.size();
  validate_offsets(tensors, file_bytes - std::min(file_bytes, data_begin), path);
  for (const auto& tensor : tensors) validate_size(tensor, path);

  const std::uint64_t data_bytes = tensors.empty() ? 0 : tensors.back().end;
  const auto expected_bytes = checked_add(data_begin, data_bytes);
  if (!expected_bytes || *expected_bytes != file_bytes) {
    const bool cut = !expected_bytes || *expected_bytes > file_bytes;
    throw bad(path, std::string(cut ? "is cut off" : "has bytes after its last tensor") + ": its header accounts for " +
                        (expected_bytes ? std::to_string(*expected_bytes) : std::string("more than 2^64")) +
                        " bytes, the file has " + std::to_string(file_bytes))
        .hint(cut ? "the download or copy did not finish; fetch the file again"
                  : "fetch the file again; or, if these bytes are padding, cut a copy with truncate -s " +
                        std::to_string(*expected_bytes));
  }

  Container container{
      path, file_bytes, {}, std::move(parsed.metadata), std::move(parsed.warnings), {{path, file_bytes}}};
  container.tensors.reserve(tensors.size());
  for (auto& tensor : tensors)
    container.tensors.push_back({std::move(tensor.name), tensor.dtype, std::move(tensor.shape),
                                 data_begin + tensor.begin, tensor.end - tensor.begin});
  return container;
}

Container read_safetensors(const Source& source, const std::filesystem::path& path) {
  const std::uint64_t file_bytes = source.size_bytes();
  const std::string start = first_bytes(source, kLookBytes);
  refuse_foreign(start, path);
  if (file_bytes >= kLengthBytes && std::string_view(start.data(), 4) == "PK\x03\x04")
    throw bad(path, "is a zip file, as torch.save writes it, not safetensors")
        .hint("rename it to end in .bin or .pt; a model's weights file is pytorch_model.bin");
  if (file_bytes < kLengthBytes)
    throw bad(path, "has " + std::to_string(file_bytes) + " bytes, fewer than the 8 of a safetensors header's length")
        .hint("the file is empty or cut off; fetch it again");
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, start.data(), kLengthBytes);
  if (header_bytes > kMaxHeaderBytes)
    throw bad(path, "claims a header of " + std::to_string(header_bytes) + " bytes; safetensors allows 100000000")
        .at_byte(0)
        .hint("is this a safetensors file?");
  if (header_bytes > file_bytes - kLengthBytes)
    throw bad(path, "claims a header of " + std::to_string(header_bytes) + " bytes, but the file has only " +
                        std::to_string(file_bytes) + " in all")
        .at_byte(0)
        .hint("the file is cut off or not safetensors; fetch it again");
  std::string header(header_bytes, '\0');
  source.read_at(kLengthBytes, std::as_writable_bytes(std::span(header)));
  return parse_safetensors_header(header, file_bytes, path);
}

namespace {

/// Returns `text` as a JSON string, escaped like serde_json.
std::string json_name(const std::string& text) {
  try {
    return json_string(text);
  } catch (const Json::exception&) {
    throw Error(ErrorKind::kUnsupported, "the name is not UTF-8, which safetensors requires").tensor(text);
  }
}

}  // namespace

ContainerPlan plan_safetensors(std::vector<TensorEntry> tensors,
                               const std::vector<std::pair<std::string, std::string>>& metadata) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name;
  });
  // Written without a JSON document: one that keeps its order would compare every name with all others.
  std::string json = R"({"__metadata__":{"format":"pt")";
  for (const auto& [key, value] : metadata) json += fmt::format(",{}:{}", json_name(key), json_name(value));
  json += '}';
  std::uint64_t end = 0;
  std::unordered_set<std::string_view> names;
  for (TensorEntry& tensor : tensors) {
    validate_name_length(tensor.name);
    if (tensor.name == "__metadata__")
      throw Error(ErrorKind::kBadInput, "has the name that safetensors reserves for the metadata of the file")
          .tensor(tensor.name)
          .hint("give it another name (`rename`), or choose another `format`");
    if (!names.insert(tensor.name).second)
      throw Error(ErrorKind::kInternal, "a file cannot contain two entries with this name").tensor(tensor.name);
    const auto size = num_bytes(tensor.dtype, tensor.shape);
    const auto next = size ? checked_add(end, *size) : std::nullopt;
    if (!next)
      throw Error(ErrorKind::kInternal, "a tensor to write is not a whole number of bytes").tensor(tensor.name);
    tensor.offset_bytes = end;
    tensor.size_bytes = *size;
    json += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", json_name(tensor.name),
                        name(tensor.dtype), fmt::join(tensor.shape, ","), end, *next);
    end = *next;
  }
  json += '}';
  json.append((kHeaderAlignment - json.size() % kHeaderAlignment) % kHeaderAlignment, ' ');
  if (json.size() > kMaxWrittenHeaderBytes)
    throw Error(ErrorKind::kUnsupported, "a file of " + std::to_string(tensors.size()) +
                                             " tensors would have a header of " + format_bytes(json.size()) +
                                             "; loaders read at most 25 MB")
        .hint("write more, smaller files with `max-shard-size`");

  ContainerPlan plan;
  const std::uint64_t header_bytes = json.size();
  std::string header(kLengthBytes, '\0');
  std::memcpy(header.data(), &header_bytes, kLengthBytes);
  header += json;
  for (TensorEntry& tensor : tensors) tensor.offset_bytes += header.size();
  plan.size_bytes = header.size() + end;
  plan.parts.push_back({0, std::move(header)});
  plan.tensors = std::move(tensors);
  return plan;
}

}  // namespace reshard
