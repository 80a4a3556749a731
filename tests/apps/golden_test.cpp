// Whole outputs of the program, as a person or another program sees them. tests/apps/golden/*.txt and the ```console
// blocks of the documents hold them; scripts/renew-golden.sh writes them anew.

#include <algorithm>
#include <filesystem>

#include "support/catch.h"
#include "support/errors.h"
#include "support/files.h"
#include "transcript.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

const fs::path kRepository = testdata("..").lexically_normal();

/// The files of the folder with that ending, sorted.
std::vector<fs::path> files_in(const fs::path& folder, const std::string& ending) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ending) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

TEST_CASE("The program prints what the golden files hold", "[golden][renewed]") {
  const std::vector<fs::path> files = files_in(kRepository / "tests/apps/golden", ".txt");
  REQUIRE(files.size() >= 9);
  check_transcripts(GENERATE_COPY(from_range(files)));
}

TEST_CASE("A transcript is run anew, and what differs from run to run is kept", "[golden]") {
  const std::string text =
      "before\n"
      "$ echo one\n"
      "another\n"
      "\n"
      "$ echo '2.50 s, 1.20 GB/s, peak memory 33 MiB'\n"
      "0.01 s, 0.02 GB/s, peak memory 3 MiB\n"
      "\n"
      "$ reshard verify; true\n"
      "$ test -d testdata/golden && (echo note >&2; exit 3)\n";
  const std::string renewed = replay(text, false);
  CHECK(
      renewed.starts_with("before\n"
                          "$ echo one\n"
                          "one\n"
                          "\n"
                          "$ echo '2.50 s, 1.20 GB/s, peak memory 33 MiB'\n"
                          "0.01 s, 0.02 GB/s, peak memory 3 MiB\n"
                          "\n"
                          "$ reshard verify; true\n"
                          "reshard: "));
  CHECK(
      renewed.ends_with("$ test -d testdata/golden && (echo note >&2; exit 3)\n"
                        "note\n"
                        "[exit code 3]\n"));
}

TEST_CASE("In a document only console blocks are transcripts", "[golden]") {
  CHECK(replay("$ echo 1\n```sh\n$ echo 2\n```\n```console\n$ echo 3\nold\n```\nafter\n", true) ==
        "$ echo 1\n```sh\n$ echo 2\n```\n```console\n$ echo 3\n3\n```\nafter\n");
}

TEST_CASE("Of two texts that differ, the first such line is shown, both versions of it", "[golden]") {
  CHECK(first_difference("f", "a\nb\n", "a\nb\n").empty());
  CHECK_THAT(first_difference("f", "a\nb\nc\n", "a\nB\nC\n"), Says("f, line 2\n  in the file: b\n  today:       B\n"));
  CHECK_THAT(first_difference("f", "a\n", "a\nb\n"), Says("line 2\n  in the file: (end of the text)\n"));
}

}  // namespace
}  // namespace reshard::test
