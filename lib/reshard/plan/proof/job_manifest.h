#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reshard/plan/job/job.h"
#include "reshard/plan/proof/manifest.h"

namespace reshard {

/// Returns the job's value of one of its layout's options; std::nullopt if it was not given.
std::optional<Manifest::OptionValue> given_option(const Job& job, const LayoutOption& option);

/// Validates, before anything is written, that a manifest can contain the names of files and tensors.
/// \throws Error kBadInput, naming the file or tensor.
void validate_manifest_names(const Job& job);

/// Returns the manifest of a job's outputs.
/// \param fingerprint  of the run.
/// \param digests      of each logical tensor of the target, in the order of TensorMap::logical.
/// \param files        the files that were written, with digests.
Manifest manifest_of(const Job& job, std::string fingerprint, const std::vector<TensorDigest>& digests,
                     std::vector<Manifest::File> files);

}  // namespace reshard
