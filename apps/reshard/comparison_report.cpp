#include "comparison_report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "color.h"
#include "reshard/base/strings.h"
#include "table.h"

namespace reshard::cli {
namespace {

constexpr std::size_t kShown = 10;  // differences of each kind; --json lists all

/// Returns one line for each of the first few items.
template <typename Items, typename Text>
std::string lines_text(const Items& items, const std::string& what, const Text& text_of) {
  std::string text;
  for (std::size_t i = 0; i < std::min(items.size(), kShown); ++i) text += what + ": " + text_of(items[i]) + "\n";
  if (items.size() > kShown) text += fmt::format("{}: … and {} more\n", what, items.size() - kShown);
  return text;
}

std::string names_text(const std::vector<std::string>& names, const std::string& what) {
  return lines_text(names, what, printable);
}

std::string verdict(const ComparisonReport& report) {
  return report.same() ? styled("same:", Style::kGreen, STDOUT_FILENO)
                       : styled("different:", Style::kRed, STDOUT_FILENO);
}

/// "different: 3 of 40 tensors, 2 values"
std::string summary_of(const Verification& found, const ComparisonReport& report) {
  if (report.same())
    return fmt::format("{} {} tensors, {}\n", verdict(report), found.compared_tensors,
                       format_bytes(found.compared_bytes));
  const std::size_t alone = found.only_a.size() + found.only_b.size() + found.other_form.size();
  const std::size_t wrong = alone + found.different.size(), values = report.other_values.size();
  std::string text = verdict(report);
  if (wrong > 0) text += fmt::format(" {} of {} tensors", wrong, found.compared_tensors + alone);
  if (values > 0) text += fmt::format("{} {} of the optimizer", wrong > 0 ? "," : "", plural(values, "value"));
  if (!report.left_behind.empty())
    text += fmt::format("{} {} missing from B", wrong + values > 0 ? "," : "", report.left_behind.size());
  return text + "\n";
}

std::string found_text(const Verification& found, const ComparisonReport& report) {
  std::string text = names_text(found.only_a, "only in " + printable(report.a)) +
                     names_text(found.only_b, "only in " + printable(report.b)) +
                     names_text(found.other_form, "other shape or dtype");
  text += lines_text(found.different, "differs", [](const TensorDifference& d) {
    const bool is_apart = d.max_abs > 0;  // false if one value is a NaN
    return fmt::format("{}: {} of {} elements, first at {}: {} and {}{}", printable(d.name), d.differing, d.elems,
                       to_string(d.first), d.a, d.b, is_apart ? fmt::format("; by {:.4g} at most", d.max_abs) : "");
  });
  text += names_text(report.left_behind, "not in " + printable(report.b));
  return text + names_text(report.other_values, "differs") + summary_of(found, report);
}

std::string found_text(const ManifestVerification& found, const ComparisonReport& report) {
  std::string text = names_text(found.only_manifest, "only in the manifest") +
                     names_text(found.only_checkpoint, "not in the manifest") +
                     names_text(found.other_form, "other shape or dtype");
  text += lines_text(found.different, "differs", [](const DigestDifference& d) {
    return fmt::format(
        "{}: {}, in {}", printable(d.name),
        d.leaves == 1 ? std::string("it is one block of 4 MiB or less")
                      : fmt::format("{} of its {} blocks of 4 MiB, the first {}", d.differ.size(), d.leaves, d.first),
        list_names(d.files));
  });
  const std::size_t tensors =
      found.only_manifest.size() + found.only_checkpoint.size() + found.other_form.size() + found.different.size();
  std::string files;
  if (found.files) {
    text += names_text(found.files->missing, "file missing") + names_text(found.files->different, "file differs");
    const std::size_t count =
        report.same() ? found.files->compared_files : found.files->missing.size() + found.files->different.size();
    files = ", " + plural(count, "file");
  }
  if (report.same())
    return text + fmt::format("{} {} tensors, {}{}\n", verdict(report), found.compared_tensors,
                              format_bytes(found.compared_bytes), files);
  return text + fmt::format("{} {}{}\n", verdict(report), plural(tensors, "tensor"), files);
}

std::string found_text(const FilesVerification& found, const ComparisonReport& report) {
  std::string text = names_text(found.missing, "missing") + names_text(found.different, "differs");
  if (report.same())
    return text +
           fmt::format("{} {} files, {}\n", verdict(report), found.compared_files, format_bytes(found.compared_bytes));
  return text + fmt::format("{} {} of {} files\n", verdict(report), found.missing.size() + found.different.size(),
                            found.missing.size() + found.compared_files);
}

void add_files(Document& json, const FilesVerification& found) {
  json["files"] = found.compared_files;
  json["missing_files"] = found.missing;
  json["different_files"] = found.different;
  json["unlisted_files"] = found.unlisted;
}

void add_found(Document& json, const Verification& found, const ComparisonReport& report) {
  json["tensors"] = found.compared_tensors;
  json["bytes"] = found.compared_bytes;
  json["only_in_a"] = found.only_a;
  json["only_in_b"] = found.only_b;
  json["other_shape_or_dtype"] = found.other_form;
  json["different_values"] = report.other_values;
  json["left_behind"] = report.left_behind;
  json["different"] = Document::array();
  for (const TensorDifference& d : found.different)
    json["different"].push_back({{"name", d.name},
                                 {"elements", d.elems},
                                 {"differing", d.differing},
                                 {"first_index", d.first},
                                 {"a", d.a},
                                 {"b", d.b},
                                 {"max_abs_difference", d.max_abs}});
}

void add_found(Document& json, const ManifestVerification& found, const ComparisonReport&) {
  json["tensors"] = found.compared_tensors;
  json["bytes"] = found.compared_bytes;
  json["states_not_compared"] = found.states_left;
  json["only_in_a"] = found.only_checkpoint;
  json["only_in_manifest"] = found.only_manifest;
  json["other_shape_or_dtype"] = found.other_form;
  json["different"] = Document::array();
  for (const DigestDifference& d : found.different)
    json["different"].push_back({{"name", d.name},
                                 {"leaves", d.leaves},
                                 {"differing", d.differ},
                                 {"first_elements", d.first},
                                 {"files", d.files}});
  if (found.files) add_files(json, *found.files);
}

void add_found(Document& json, const FilesVerification& found, const ComparisonReport&) {
  add_files(json, found);
  json["bytes"] = found.compared_bytes;
}

}  // namespace

bool ComparisonReport::same() const {
  return std::visit([](const auto& one) { return one.same(); }, found) && other_values.empty() && left_behind.empty();
}

std::string comparison_text(const ComparisonReport& report) {
  return std::visit([&](const auto& found) { return found_text(found, report); }, report.found);
}

Document comparison_document(const ComparisonReport& report) {
  const bool has_b = std::holds_alternative<Verification>(report.found);
  Document json{{"command", "verify"}, {"a", report.a}, {has_b ? "b" : "manifest", report.b}, {"same", report.same()}};
  std::visit([&](const auto& found) { add_found(json, found, report); }, report.found);
  json["divergent_replicas"] = divergent_document(report.divergent);
  add_notes(json, report.notes);
  return json;
}

}  // namespace reshard::cli
