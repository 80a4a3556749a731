#pragma once

#include <string>
#include <variant>
#include <vector>

#include "json_report.h"
#include "reshard/engine/check/verify.h"
#include "reshard/engine/check/verify_manifest.h"

namespace reshard::cli {

/// The result of verify: A compared with checkpoint B, with a manifest, or with a SHA256SUMS.
struct ComparisonReport {
  std::string a;
  std::string b;  // or the path of the manifest or the SHA256SUMS
  std::variant<Verification, ManifestVerification, FilesVerification> found;
  std::vector<std::string> other_values;  // with B: "lr of model.norm.weight: 0.1 and 0.2"
  std::vector<std::string> left_behind;   // with B and --complete: what B lacks in addition to tensors
  std::vector<Divergence> divergent;
  Notes notes;

  bool same() const;
};

/// Returns the report for people: the first differences of each kind, and the verdict.
std::string comparison_text(const ComparisonReport& report);

/// Returns the JSON document, with all differences.
Document comparison_document(const ComparisonReport& report);

}  // namespace reshard::cli
