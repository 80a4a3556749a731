#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace reshard::test {

/// Runs the commands of a transcript anew and returns the text with what they print today.
///
/// A line that begins with "$ " is a command of the shell; what it printed follows, standard error first, then
/// "[exit code N]" if that is not 0. In a Markdown file only the blocks marked ```console are transcripts. All commands
/// of a text run in one new directory, in which `testdata` leads to the repository's, on a terminal of 80 columns, and
/// `reshard` is the built program. What differs from run to run (times, memory, free space) does not count: output that
/// differs in nothing else is returned as it was.
/// \throws std::runtime_error if the system gives no terminal.
std::string replay(const std::string& text, bool markdown);

/// The first line in which two texts differ, both versions of it, under the name of the file; empty if they are equal.
std::string first_difference(const std::filesystem::path& file, const std::string& expected, const std::string& actual);

/// Checks that a file is what `renew` makes of its text, or writes it anew where RESHARD_RENEW_GOLDEN is set.
void check_renewed(const std::filesystem::path& file, const std::function<std::string(const std::string&)>& renew);

/// The same for the output in transcripts.
void check_transcripts(const std::filesystem::path& file);

}  // namespace reshard::test
