#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/specs/family/expression.h"
#include "reshard/specs/family/scheme_entry.h"

namespace reshard {

/// Names that a program uses for the parameters of models in its checkpoints, and how it packs them into entries.
struct Scheme {
  /// What the program cannot load, although checkpoints of its form can have it.
  struct Refusal {
    std::string parameter;              // like SchemeEntry::parameters; models without it are not concerned
    std::vector<std::string> families;  // like SchemeEntry::families
    /// Condition over the program's settings, tp_degree (the number of ranks), and properties of the parameter: rows and
    /// columns (its first and last dim) and is_tied. Absent: always.
    Expression when;
    std::string reason;  // completes "cannot load models with"
    std::string hint;    // what to try; may be empty
  };

  /// Parameters that a setting of the program alters.
  struct Altered {
    std::vector<std::string> parameters;  // like Refusal::parameter
    std::vector<std::string> families;    // like SchemeEntry::families
    std::string factor;  // parameter that multiplies the columns: its name after what "**" matches in `parameters`
    std::string kernel;  // like SchemeEntry::RankSplit::kernel: the one that needs the product
  };

  std::string program;                // "torchtitan"
  std::vector<std::string> versions;  // labels of versions whose names differ, newest first; may be empty
  std::vector<std::string> families;  // model_types of built-in families; empty if the scheme is in a family's own file
  std::vector<SchemeEntry> entries;
  std::vector<Refusal> refusals;
  std::vector<Altered> float32;  // in float32, whatever the model's dtype, if modules keep their own dtypes
  std::vector<Altered> factors;  // multiplied by the weights of the preceding norm
  std::map<std::string, Expression, std::less<>> definitions;  // names for conditions on settings
  std::vector<std::string> options;                            // flags of the layout that the program's modules imply
  bool is_of_ranks = false;   // entries are in rank files, with the rank's slices of the parameters
  bool keeps_others = false;  // parameters without an entry keep their names
  std::map<std::string, std::string>
      models;                         // prefixes of the names of several models in one file, by what they are called
  std::string wrapper;                // part of names of wrapped modules: ".base_layer"
  std::vector<std::string> left_out;  // parts of names of entries that are not read; of NxD Inference
  std::string prefix;                 // prefix of parameters that their entries lack: "model."; only if others are kept
  /// Prefix of the names of optimizer states if the state precedes the entry: "optimizer.state." for
  /// "optimizer.state.exp_avg.ENTRY". Empty if the entry precedes the state, as in torch.
  std::string before_state;
};

/// Returns the entries of `scheme` for a family with these `parameters`, with rules expanded. The first rule for a
/// parameter takes precedence. `settings` are those of the program (SchemeEntry::when); copies follow their entries.
/// \throws Error kBadInput, with the lines, if two entries have the same name, or contain the same parameter without a
///         condition that may tell them apart.
Scheme scheme_for(const Scheme& scheme, const std::string& model_type,
                  const std::set<std::string, std::less<>>& parameters, const Expression::Lookup& settings = {});

/// Returns all built-in schemes, in alphabetical order.
const std::vector<std::shared_ptr<const Scheme>>& builtin_schemes();

}  // namespace reshard
