#pragma once

#include <string>

#include "job_report.h"
#include "reshard/base/json.h"

namespace reshard::cli {

/// A JSON document. Keys keep their insertion order.
using Document = OrderedJson;

/// The --json output of shard, consolidate and convert.
Document job_document(const JobReport& report);

/// Adds notes to a document: their texts as "notes", and as "findings" also their kinds, tensors (the first 100, and how
/// many there are) and files.
void add_notes(Document& document, const Notes& notes);

/// Returns one object per replica: tensor, text, and whether it drifted and how far.
Document divergent_document(const std::vector<Divergence>& divergent);

/// Formats a document for printing. Replaces invalid UTF-8 in names, which JSON cannot contain.
std::string to_text(const Document& document);

}  // namespace reshard::cli
