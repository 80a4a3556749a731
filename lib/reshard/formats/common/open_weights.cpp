#include "reshard/formats/common/open_weights.h"

#include <fmt/format.h>

#include "reshard/base/error.h"

namespace reshard {
namespace {

/// Suffixes of the file that a download program keeps next to an unfinished file, and deletes when the file is
/// complete.
constexpr const char* kUnfinishedSuffixes[] = {
    ".aria2",       // aria2, hfd: the list of finished blocks; the file itself has its full size from the start
    ".st",          // axel: likewise
    ".part",        // Firefox, yt-dlp, KDE: the bytes so far
    ".partial",     // Internet Explorer, rclone
    ".filepart",    // WinSCP
    ".crdownload",  // Chrome, Edge
    ".download",    // Safari: a folder
    ".incomplete",  // huggingface_hub
};

}  // namespace

std::optional<std::filesystem::path> download_control_of(Files& files, const std::filesystem::path& path) {
  for (const char* suffix : kUnfinishedSuffixes) {
    std::filesystem::path control = path;
    control += suffix;
    if (files.kind_of(control) != FileKind::kNone) return control;
  }
  return std::nullopt;
}

std::unique_ptr<Source> open_weights(Files& files, const std::filesystem::path& path) {
  const auto control = download_control_of(files, path);
  if (!control) return files.open(path);
  const std::string name = control->filename().string();
  throw Error(
      ErrorKind::kBadInput,
      fmt::format("is unfinished: next to it is {}, which a download program deletes when the file is complete", name))
      .in(path)
      .hint(fmt::format(
          "resume the download; if the file is known to be complete, for instance by its SHA-256, move {} away", name));
}

}  // namespace reshard
