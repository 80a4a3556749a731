#include "support/older_folders.h"

#include <fmt/format.h>

#include "reshard/layouts/ranks/rank_format.h"
#include "support/saved_trees.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

fs::path place_of(RankId rank, bool of_dp, bool xser) {
  const fs::path name = rank_name(rank, false) + (of_dp ? fmt::format("_dp_rank_{:02}", rank.dp_rank) : "");
  return xser ? name : name / "checkpoint.pt";
}

/// The key of the optimizer in a rank's file.
const char* key_of(OlderForm form) {
  return form == OlderForm::kLightning ? "optimizer_states"
         : form == OlderForm::kOptimum ? "optimizer_state_dict"
                                       : "optimizer";
}

/// The weights of a rank with what examples and Lightning save beside them.
SavedTree rank_tree(const SavedTree& model, OlderForm form) {
  SavedTree tree;
  tree.structure = {{"epoch", 1}, {"global_step", 3}};
  add_under(tree, form == OlderForm::kLightning ? "state_dict" : "model", model);
  tree.structure["scheduler"] = {{"base_lrs", {0.5, 0.25}}};
  return tree;
}

}  // namespace

void arrange_older(const fs::path& folder, const fs::path& to, OlderForm form, bool xser) {
  const auto optimizers = read_saved_trees(folder / "optim");
  const bool of_dp = form != OlderForm::kByName && optimizers.count("dp_rank_01_tp_rank_00_pp_rank_00.pt") > 0;
  if (form == OlderForm::kByName)
    for (const auto& [name, model] : read_saved_trees(folder / "model"))
      write_saved_tree(to / place_of(*rank_of_name(fs::path(name).stem().string()), false, xser),
                       rank_tree(model, form), xser);
  for (const auto& [name, optimizer] : optimizers) {
    const RankId rank = *rank_of_name(fs::path(name).stem().string());
    if (form == OlderForm::kByName) {
      SavedTree tree = optimizer;
      tree.structure["dp_rank"] = rank.dp_rank;
      tree.structure["tp_rank"] = rank.tp_rank;
      write_saved_tree(to / fmt::format("optim.dp_rank_{:02}.tp_rank_{:02}", rank.dp_rank, rank.tp_rank), tree);
      continue;
    }
    SavedTree tree =
        rank_tree(read_saved_tree(folder / "model" / (rank_name({rank.tp_rank, rank.pp_rank}, true) + ".pt")), form);
    add_under(tree, key_of(form), optimizer, form == OlderForm::kLightning);
    write_saved_tree(to / place_of(rank, of_dp, xser), tree, xser);
  }
}

}  // namespace reshard::test
