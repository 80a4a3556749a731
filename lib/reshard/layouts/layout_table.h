#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "reshard/io/files.h"
#include "reshard/layouts/core/layout.h"

namespace reshard {

/// Returns nullptr if no layout has that name.
const Layout* layout_named(std::string_view name);
/// Returns the layout of whole tensors, the output of consolidation.
const Layout& whole_layout();
/// Returns the default layout of rank files: the first.
const Layout& default_rank_layout();
/// Returns the default layout of sharded adapters: the first that has any.
const Layout& adapter_layout();

/// Completes `request` with what the compiled model at `path`, a directory or a file in it, needs, and returns that
/// model.
/// \param layout_given  whether the request names its layout.
/// \throws Error kBadInput if there is no compiled model; kUsage if `request` contradicts it.
CompiledModel complete_for(Files& files, const std::filesystem::path& path, TargetRequest& request, bool layout_given);

/// Validates the values of options that describe a source.
/// \param prefix  Precedes the options' names in errors.
/// \throws Error kUsage.
void validate_source_options(const OptionValues& values, const std::string& prefix = "");
/// Validates everything in a request that does not depend on the model: format, options and mesh.
/// \throws Error kUsage.
void validate_request(const TargetRequest& request);

}  // namespace reshard
