#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reshard/plan/job/job.h"
#include "reshard/plan/proof/manifest.h"

namespace reshard {

/// What a job was given for one of its layout's options; nothing if it was not given.
std::optional<Manifest::OptionValue> given_option(const Job& job, const LayoutOption& option);

/// Validates, before anything is written, that the names of files and tensors can be in a manifest.
/// \throws Error kBadInput, naming the file or tensor.
void validate_manifest_names(const Job& job);

/// The manifest of what a job has written.
/// \param fingerprint  of the run.
/// \param digests      of each logical tensor of the target, as TensorMap::logical counts them.
/// \param files        what was written, with digests.
Manifest manifest_of(const Job& job, std::string fingerprint, const std::vector<TensorDigest>& digests,
                     std::vector<Manifest::File> files);

}  // namespace reshard
