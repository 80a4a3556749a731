#pragma once

#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>

namespace reshard {

/// Container format of a checkpoint or of one rank: `--format`.
enum class Format : std::uint8_t {
  kSafetensors,  // one file
  kPytorch,      // one torch.save file
  kXser,         // torch_xla's: a reference file and a folder with one file per tensor
};

struct FormatRow {
  Format format;
  const char* name;
};
inline constexpr FormatRow kFormats[] = {
    {Format::kSafetensors, "safetensors"},
    {Format::kPytorch, "pytorch"},
    {Format::kXser, "xser"},
};

constexpr std::string_view name(Format format) {
  for (const FormatRow& row : kFormats)
    if (row.format == format) return row.name;
  return {};
}
constexpr std::optional<Format> format_from_name(std::string_view text) {
  for (const FormatRow& row : kFormats)
    if (row.name == text) return row.format;
  return std::nullopt;
}

}  // namespace reshard
