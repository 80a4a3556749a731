#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/layouts/cut.h"
#include "reshard/specs/family.h"

namespace reshard {

/// The forms of weights that an inference server loads, one file a rank. Nothing beside them says how they are cut (a
/// RankRecord only what was filled up): the model and these options do.
struct DeployedForm {
  /// NxD Inference's names, and heads as inference_head_slots places them; else the checkpoint's own names, and every
  /// parameter cut on its own, as NxD's shard_checkpoint does.
  bool nxdi = false;
  bool fuse_qkv = false;        // of nxdi: one projection for q, k and v
  bool vocab_parallel = false;  // of nxdi: the embedding is cut along the vocabulary, else along its columns
};

/// Whether these are names that NxD Inference gives, and of which form.
/// \returns nothing for other names.
std::optional<DeployedForm> nxdi_form(const std::vector<std::string>& names);

/// The rule of every tensor that a rank of `tp` has. Where a size does not divide, it is filled up at its end: with
/// zeros, and a bias along the outputs with the lowest finite number (NxD's ColumnParallelLinear). Heads of attention
/// are filled up with zeros.
/// \param holds Whether the checkpoint has a parameter that the family calls optional.
/// The model can be split so (prove_split with `apart` and `fill_up`); else the rules do not fit.
/// \throws Error kUnsupported for a family that NxD Inference has other names for; kBadInput for sizes that no model has.
std::vector<CutRule> deployed_rules(const Model& model, std::uint32_t tp, const DeployedForm& form,
                                    const HoldsName& holds);

}  // namespace reshard
